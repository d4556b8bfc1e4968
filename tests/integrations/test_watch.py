"""Two lines in Python, a callback of Lightning, one of transformers: the culprit at the fault, and a capture of it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="forks a process that computes")]

COMMON = """
    import json, torch
    from torch import nn
    import postmortem

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x, labels=None):
            out = self.inner(x).squeeze(-1)
            loss = (out ** 2 + torch.log(5 - x.amax(1))).mean()  # here
            return {"loss": loss, "logits": out}

    torch.manual_seed(0)
    data = torch.randn(24, 4)
    data[13, 2] = 6.0

    def told(watched):
        result = watched.result
        found = None
        if result is not None:
            c = result.culprit
            found = [c.phase, c.op, c.line, result.tick, result.raised.type if result.raised else None]
        print(json.dumps(found))
"""


def told(folder: Path, source: str) -> tuple[list[object] | None, str, list[Path]]:
    """What a program found: phase, operator, line, tick, exception; its stderr, and its captures."""
    import json

    (folder / "train.py").write_text(textwrap.dedent(COMMON) + textwrap.dedent(source))
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return found, done.stderr, sorted((folder / "postmortem-report" / "captures").glob("[!.]*"))


def line_of(folder: Path) -> int:
    """The line that fails."""
    lines = (folder / "train.py").read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if "# here" in line)


LOOP = """
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(model, optimizer, rows):
        for batch in rows.split(4):
            loss = model(batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def test_two_lines(tmp_path: Path) -> None:
    """The optimizer was made before; after the block nothing is watched, and a block in a block is one."""
    source = """
        with postmortem.watch() as watched:
            with postmortem.watch() as inner:
                train(model, optimizer, data)
        train(Net(), torch.optim.SGD(model.parameters(), lr=0.1), data)
        assert inner.result is None and len(watched.captures) == 1
        told(watched)
    """
    found, said, captures = told(tmp_path, textwrap.dedent(LOOP) + textwrap.dedent(source))
    assert found == ["forward", "log", line_of(tmp_path), 3, None]
    assert said.count("Culprit:") == 1
    assert len(captures) == 1
    assert f"postmortem replay postmortem-report/captures/{captures[0].name} -- " in said


def test_nothing_is_said_of_a_healthy_training(tmp_path: Path) -> None:
    """No culprit, no capture, no output."""
    source = "with postmortem.watch(model, optimizer) as watched:\n    train(model, optimizer, data[:8])\ntold(watched)"
    found, said, captures = told(tmp_path, textwrap.dedent(LOOP) + source)
    assert (found, said, captures) == (None, "", [])


def test_an_exception_passes(tmp_path: Path) -> None:
    """It is told with its line, and goes on to whoever catches it."""
    source = """
        try:
            with postmortem.watch(captures=0) as watched:
                train(model, optimizer, data[:8])
                raise KeyError("lost")
        except KeyError:
            told(watched)
    """
    found, _, captures = told(tmp_path, textwrap.dedent(LOOP) + textwrap.dedent(source))
    assert found == ["none", None, None, None, "KeyError"]
    assert captures == []


def test_lightning(tmp_path: Path) -> None:
    """A short training of the real library."""
    pytest.importorskip("lightning")
    source = """
        import lightning
        from postmortem.integrations.lightning import PostmortemCallback

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = Net()

            def training_step(self, batch, index):
                return self.net(batch)["loss"]

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.01)

        watched = PostmortemCallback(fix=False)
        quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[watched], **quiet)
        trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=4))
        told(watched)
    """
    found, _, captures = told(tmp_path, source)
    assert found == ["forward", "log", line_of(tmp_path), 3, None]
    assert len(captures) == 1


def test_transformers(tmp_path: Path) -> None:
    """A short training of the real library."""
    pytest.importorskip("transformers")
    source = """
        from transformers import Trainer, TrainingArguments
        from postmortem.integrations.transformers import PostmortemCallback

        watched = PostmortemCallback(fix=False)
        rows = [{"x": row, "labels": row} for row in data]
        args = TrainingArguments("out", per_device_train_batch_size=4, max_steps=6, report_to=[], use_cpu=True,
                                 save_strategy="no", disable_tqdm=True, seed=1, data_seed=1)
        Trainer(Net(), args, train_dataset=rows, callbacks=[watched]).train()
        told(watched)
    """
    found, _, captures = told(tmp_path, source)
    assert found is not None
    assert found[:3] == ["forward", "log", line_of(tmp_path)]
    assert len(captures) == 1
