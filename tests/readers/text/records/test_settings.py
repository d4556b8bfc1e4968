"""Settings that a training prints before its first step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from postmortem import api
from postmortem.readers.text import read_text
from postmortem.readers.text.records.settings import settings_in

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS: dict[str, dict[str, Any]] = {
    "lr = 0.3, batch size 32": {"lr": 0.3, "batch_size": 32},
    "lr=0.3 batch_size=32 amp=False": {"lr": 0.3, "batch_size": 32, "amp": False},
    "Training with a learning rate of 0.1 on 4 GPUs": {"learning_rate": 0.1},
    "Namespace(lr=0.3, betas=(0.9, 0.95), out='a,b',\n  on=device(type='cpu'))": {
        "lr": 0.3,
        "betas": (0.9, 0.95),
        "out": "a,b",
        "on": "device(type='cpu')",
    },
    'config: {\n  "lr": 0.1,\n  "fp16": true\n}': {"lr": 0.1, "fp16": True},
    "lr: 0.3\nbatch_size: 32\nhidden: 64": {"lr": 0.3, "batch_size": 32, "hidden": 64},
    "  lr ............ 3e-4\n  micro-batch-size ....... 4\n  tensor-size ... 2": {
        "lr": 3e-4,
        "micro_batch_size": 4,
        "tensor_size": 2,
    },
    "optimizer: adamw": {"optimizer": "adamw"},
    "Found 100 classes": {},
    "Loading /data/x: 3 files": {},
    "params: 1000000": {},
    "Epoch 1/10": {},
    "model: Sequential(\n  (0): Linear(in_features=8, out_features=32, bias=True)\n)": {},
    "{'files': 3, 'tokens': 100}": {},
    "Namespace(lr=0.3, never closed": {"lr": 0.3},
}
ROWS = [f"step {i} loss {2 - i / 40:.3f}" for i in range(40)]


@pytest.mark.parametrize("text", SETTINGS)
def test_forms(text: str) -> None:
    """Each form in which settings are printed; a sentence with a number is none."""
    assert settings_in(text.split("\n")) == SETTINGS[text]


@pytest.mark.parametrize(
    "prefix", ["", "2026-11-27 04:11:02,123 INFO train - ", "[2026-11-27 04:11:02][train][INFO] - "]
)
@pytest.mark.parametrize(
    "head", ["Namespace(lr=0.3, batch_size=32)", "lr: 0.3\nbatch_size: 32\nseed: 1", "lr = 0.3, batch size 32"]
)
def test_they_are_the_configuration(tmp_path: Path, prefix: str, head: str) -> None:
    """Behind the prefix of a logger as well; the values of the training are those without them, and none more."""
    lines = [prefix + line for line in [*head.split("\n"), *ROWS]]
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    run = api.load(path)
    assert run.config == {"lr": 0.3, "batch_size": 32} | ({"seed": 1} if "seed" in head else {})
    assert set(run.frame["tag"]) == {"loss"}
    assert len(run.frame) == len(ROWS)


def test_what_is_printed_later_is_no_setting(tmp_path: Path) -> None:
    """A learning rate in the middle of a training is a value of it."""
    path = tmp_path / "train.log"
    path.write_text("\n".join([*ROWS[:20], "lr: 0.3", *ROWS[20:]]) + "\n")
    assert read_text(path).config == {}


def test_a_diverged_run_names_its_learning_rate(tmp_path: Path) -> None:
    """The rate that the head of the log has, and not "not logged"."""
    losses = [7.03, 5.74, 479.0, 16805368.0, 1.09e21, "inf", *["nan"] * 30]
    rows = [f"step {i} loss {loss}" for i, loss in enumerate(losses)]
    (tmp_path / "train.log").write_text("\n".join(["lr = 0.3, batch size 32", *rows]) + "\n")
    (report,) = api.scan(tmp_path).runs
    assert report.diagnosis is not None
    assert "The learning rate, lr = 0.3, may be too high" in report.diagnosis.summary
    assert "lr: 0.3 → 0.1 (a third of its value at the onset)" in report.diagnosis.next
