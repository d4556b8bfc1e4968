"""A page of a scan and the text of a replay, printed into the log of the training, are not read as its output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import postmortem
from postmortem.core.culprit import Culprit, Fidelity, Fix, Raised, ReplayResult
from postmortem.core.skipped import Skip
from postmortem.readers.text import read_text
from postmortem.reporters import REPORTERS, RenderOptions
from postmortem.reporters.replay_text import replay_lines
from tests.readers.text.test_own_output import log, points_of

SAMPLES = Path(__file__).parents[3] / "sample_runs"
FOUND = Culprit(
    cause="forward-op",
    phase="forward",
    op="log",
    file=__file__,
    line=8,
    step=7,
    tensor={"input 0": {"shape": [32, 16], "dtype": "float32", "min": 0.0, "max": 1.5, "loss": 7.5}},
    fixes=(Fix(name="lower_lr", cured=False, how="rate 0.01"), Fix(name="eps", cured=True, how="kept away")),
    suggestion=f"--- {__file__}\n+++ {__file__}\n@@ -8 +8 @@\n-loss = 1 / 0\n+loss = 1 / 2\n",
    how=("step 900 loss 1.25 was repeated", "step 901 loss 1.5 as well"),
)


@pytest.fixture(scope="module")
def scanned() -> Any:
    return postmortem.scan(SAMPLES)


def replay(culprit: Culprit = FOUND, **options: Any) -> str:
    base: dict[str, Any] = {
        "target": "runs/" + "a" * 80,
        "recipe": "r.py",
        "checkpoint": "c/step_5.pt",
        "step": 7,
        "fidelity": Fidelity(ok=False, compared=3, note="loss 7.5 at step 7, logged 2.5", reasons=("loss 3",)),
        "next": ("lower the lr: 0.1 to 0.05",),
        "fitted": ("model: 6 of 6 tensors",),
    }
    return "\n".join(replay_lines(ReplayResult(culprit=culprit, **{**base, **options})))


def page(report: Any, *, verbose: bool, width: int = 100) -> str:
    return REPORTERS["text"](report, RenderOptions(verbose=verbose, width=width))


def unchanged(folder: Path, text: str, lines: int | None = None) -> None:
    """The log with the text in it has the points and events of the log alone."""
    path, alone = folder / "train.log", folder / "alone.log"
    path.write_text(log(text))
    alone.write_text(log(""))
    read = read_text(path)
    assert points_of(read) == points_of(read_text(alone))
    assert read.events == []
    assert read.skipped[Skip.OWN] == (lines or sum(1 for line in text.splitlines() if line.strip()))


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [60, 100])
def test_pages_of_a_scan(tmp_path: Path, scanned: Any, verbose: bool, width: int) -> None:
    """Of one run, and of several; all their labels are known."""
    several = page(scanned, verbose=verbose, width=width)
    unchanged(tmp_path, several + "\n")
    for run in scanned.runs:
        unchanged(tmp_path, page(type(scanned)(**{**vars_of(scanned), "runs": (run,)}), verbose=verbose, width=width))


def vars_of(report: Any) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__dataclass_fields__}


@pytest.mark.parametrize(
    "text",
    [
        replay(),
        replay(fidelity=Fidelity(ok=True, compared=3, note="3 of 3 losses equal")),
        replay(Culprit(cause="none", phase="none", how=("step 7 loss 0.5",))),
        replay(
            Culprit(cause="none", phase="none"),
            command=("python", "train.py"),
            protection="an overlay",
            raised=Raised(type="ValueError", message="loss 3", file="train.py", line=3),
        ),
    ],
    ids=["lead", "faithful", "nobody", "raised"],
)
def test_texts_of_a_replay(tmp_path: Path, text: str) -> None:
    """With a suggestion, with source lines that look like a log, without a culprit, and of a command."""
    unchanged(tmp_path, text + "\n")


def test_over_the_end_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the block ends within the text: what follows in the next one belongs to it."""
    text = replay()
    lines = sum(1 for line in text.splitlines() if line.strip())
    for block in (900, 1100, 1400, 1700, 2000):
        monkeypatch.setattr("postmortem.readers.text.lines.blocks.BLOCK", block)
        path = tmp_path / "train.log"
        path.write_text(log(text + "\n", range(60)))
        read = read_text(path)
        assert [s for _, s, _ in points_of(read)] == list(range(60)), block
        assert read.skipped[Skip.OWN] <= lines


def test_a_training_that_prints_such_words(tmp_path: Path) -> None:
    """The first words of a line are not enough, and what follows a page is the training's again."""
    path = tmp_path / "train.log"
    path.write_text(log("FAILED      to load the cache\nReplay of game 3\nHEALTHY     2 of 3 workers\n"))
    assert Skip.OWN not in read_text(path).skipped
