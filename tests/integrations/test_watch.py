"""Two lines in Python, a callback of Lightning, one of transformers: the culprit at the fault, and a capture of it."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from tests import warm

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
    done = warm.run("train.py", cwd=folder, env={"HF_HUB_OFFLINE": "1"})
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


def test_levels_in_python(tmp_path: Path) -> None:
    """A history with norms, which a scan reads as one run with the log of the program, by the steps of that log."""
    source = """
        watched = postmortem.watch(model, optimizer, level="advanced")
        with open("metrics.csv", "w", buffering=1) as log, watched:
            print("step,loss", file=log)
            for step in range(100, 124):
                loss = model(data[:8])["loss"]
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(f"{step},{loss.item()}", file=log)
        rows = [json.loads(line) for line in (watched.history / "history.jsonl").open()]
        run = postmortem.load(".")
        told(watched)
        print(json.dumps([[r["step"] - r["tick"] for r in rows], "grad_norm/inner" in rows[-1], len(run.sources)]))
    """
    found, said, _ = told(tmp_path, textwrap.dedent(LOOP) + textwrap.dedent(source))
    assert said == ""
    assert found == [[100] * 23, True, 2]  # from the second step on


def test_a_budget(tmp_path: Path) -> None:
    """It rests for most steps, as a copy costs more than they allow, wakes, and finds what broke in a rest."""
    source = """
        from postmortem.attach import boundaries

        def cost(batches):
            for _ in range(batches):
                train(model, optimizer, data[:4])

        with postmortem.watch(model, optimizer, level="basic", budget=0.05) as watched:
            agent = boundaries.current()
            cost(1500)
            assert 300 < agent.rested < boundaries.listener.ticks - 5 and agent.whole.spent > 0, agent.rested
            while not agent._resting:
                cost(1)
            with torch.no_grad():
                model.inner.weight[0, 0] = float("nan")
            at = boundaries.listener.ticks
            while watched.result is None and boundaries.listener.ticks < at + 20000:
                cost(1)
        result = watched.result
        print(json.dumps([result.culprit.phase, result.tick - at >= 0]))
    """
    found, _, _ = told(tmp_path, textwrap.dedent(LOOP) + textwrap.dedent(source))
    assert found == ["none", True]


def test_updates_that_are_left_out(tmp_path: Path) -> None:
    """Parameters stay finite, the step is counted and examined once; a finite step is made."""
    source = """
        def loop(watched):
            for batch in data.split(4):
                loss = model(batch)["loss"]
                optimizer.zero_grad()
                loss.backward()
                before = model.inner.weight.clone()
                bad = watched.skip_bad(loss)
                optimizer.step()
                assert bad == torch.equal(before, model.inner.weight)

        def spoil(grad):
            return grad * float("inf") if spoil.on else grad

        spoil.on = False
        data[13, 2] = 0.5
        model.inner.bias.register_hook(spoil)
        with postmortem.watch(model, optimizer, fix=False) as watched:
            loop(watched)
            assert watched.skipped == 0
            spoil.on = True
            loop(watched)
            spoil.on = False
            loop(watched)
        assert bool(torch.isfinite(model.inner.weight).all())
        told(watched)
        print(json.dumps([watched.skipped, watched.result.tick, watched.result.culprit.phase]))
    """
    found, said, _ = told(tmp_path, textwrap.dedent(LOOP) + textwrap.dedent(source))
    assert found is not None
    assert found[:2] == [6, 6]
    assert said.count("Culprit:") <= 1


@pytest.mark.parametrize("broken", ["nan", "explodes", "fine"])
def test_latents(tmp_path: Path, broken: str) -> None:
    """A row for each denoising step, without a training; a scan finds non-finite and exploding ones, nothing else."""
    source = f"""
        torch.manual_seed(1)
        with postmortem.watch() as watched:
            for image in range(3):
                x = torch.randn(1, 4, 16, 16)
                for i, t in enumerate(range(980, 0, -20)):
                    x = 0.98 * x + 0.05 * torch.randn_like(x)
                    if image == 2 and i > 20 and {broken == "explodes"}:
                        x = x * 2.2
                    if image == 2 and i == 30 and {broken == "nan"}:
                        x[0, 0, 3, 3] = float("nan")
                    watched.latents(torch.tensor(t), x)
        report = postmortem.scan(watched.history)[0]
        row = json.loads((watched.history / "history-latents.jsonl").open().readline())
        print(json.dumps([sorted({{f.name for f in report.findings if f.severity != "info"}}),
                          sorted(row), report.last_step]))
    """
    found, said, _ = told(tmp_path, source)
    assert found is not None
    names, columns, last = found
    assert columns == ["latent/absmax", "latent/mean", "latent/nonfinite", "latent/std", "latent/t", "step", "time"]
    assert last == 146
    assert ("1 values of the latents are non-finite at denoising step 128 (timestep 380)" in said) is (broken == "nan")
    wanted = {"nan": ["nan-onset"], "explodes": ["metric-explosion"], "fine": []}
    assert names == wanted[broken]


def test_options_that_are_wrong() -> None:
    """UsageError at once, not in the training."""
    import postmortem

    for options in ({"level": "much"}, {"budget": 0}, {"budget": 5}):
        with pytest.raises(postmortem.UsageError, match=r"level is|budget is"):
            postmortem.watch(**options)  # type: ignore[arg-type]
