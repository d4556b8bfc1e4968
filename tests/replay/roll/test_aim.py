"""Which step a replay rolls to, and from which checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from postmortem import api  # noqa: E402
from postmortem.core.errors import ReplayError  # noqa: E402
from postmortem.core.model import Checkpoint, Finding  # noqa: E402
from postmortem.core.view import View  # noqa: E402
from postmortem.replay.roll.aim import Aim, aim_at  # noqa: E402
from postmortem.replay.roll.start import choose_checkpoint  # noqa: E402


def finding(name: str, tag: str, step: int, end: int | None = None, severity: str = "error") -> Finding:
    return Finding(code="X", name=name, severity=severity, message="", tag=tag, step=step, end_step=end)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("findings", "step", "nonfinite"),
    [
        ([finding("nan-onset", "train/loss", 82), finding("inf-onset", "grad_norm", 60)], 82, True),
        ([finding("inf-onset", "grad_norm", 60)], 60, True),
        ([finding("lr-jump", "lr", 40), finding("nan-onset", "train/loss", 82)], 82, True),
        ([finding("nan-onset", "val/loss", 50)], 99, False),
        ([finding("divergence", "train/loss", 30)], 99, False),
        ([finding("loss-scale-collapse", "scale", 30, 45)], 45, False),
        ([finding("nan-onset", "train/loss", 20, severity="info")], 99, False),
        ([], 99, False),
    ],
)
def test_step(tmp_path: Path, findings: list[Finding], step: int, nonfinite: bool) -> None:
    """The first non-finite loss before anything else; a value of an evaluation is no step; without a fault the end of
    the log."""
    (tmp_path / "progress.csv").write_text(
        "step,train/loss,grad_norm,val/loss,lr,scale\n" + "".join(f"{i},1.5,2,1,0.1,8\n" for i in range(100))
    )
    report = api.scan(tmp_path).runs[0]
    assert report.run is not None
    report.findings = tuple(findings)
    aim = aim_at(View(report.run), report, None)
    assert (aim.step, aim.nonfinite) == (step, nonfinite)
    assert aim_at(View(report.run), report, 7).step == 7


def test_masked_losses_and_a_divergence_asked_for(tmp_path: Path) -> None:
    """A replaced loss is aimed at where its gradient shows it; asked for the step where a divergence begins, the replay
    follows it."""
    (tmp_path / "progress.csv").write_text("step,train/loss,grad_norm\n" + "".join(f"{i},1.5,2\n" for i in range(100)))
    report = api.scan(tmp_path).runs[0]
    assert report.run is not None
    view = View(report.run)
    report.findings = (finding("nonfinite-gradient", "grad_norm", 70), finding("masked-nonfinite", "train/loss", 80))
    aim = aim_at(view, report, None)
    assert (aim.step, aim.masked, aim.nonfinite) == (70, 70, True)
    report.findings = (finding("nan-onset", "train/loss", 71), finding("nonfinite-gradient", "grad_norm", 70))
    assert aim_at(view, report, None).masked is None
    report.findings = (finding("divergence", "train/loss", 30),)
    assert (aim_at(view, report, 30).step, aim_at(view, report, 30).asked) == (99, 30)
    assert aim_at(view, report, 40).step == 40


def test_newest_finite_before_the_step(tmp_path: Path) -> None:
    """The newest finite one before the step; none finite: the newest; none before it: the recipe's initial state."""
    empty = api.load(tmp_path)
    for step in (10, 20, 30, 40):
        value = float("nan") if step in (30, 40) else 1.0
        torch.save({"model": {"w": torch.full((2,), value)}}, tmp_path / f"step_{step}.pt")
    run = replace(
        empty, checkpoints=[Checkpoint(path=str(tmp_path / f"step_{s}.pt"), step=s) for s in (10, 20, 30, 40)]
    )

    def chosen(step: int, given: Path | None = None, good: int | None = None) -> str:
        diagnosis = SimpleNamespace(last_good_checkpoint=str(tmp_path / f"step_{good}.pt"))
        report: Any = good and SimpleNamespace(diagnosis=diagnosis, checkpoints=())
        path = choose_checkpoint(tmp_path, run, report, Aim(step), given)
        assert path is not None
        return path.name

    assert chosen(35) == "step_20.pt"
    assert chosen(20) == "step_10.pt"  # the one of the very step may be from after it
    assert (chosen(35, good=10), chosen(20, good=20)) == ("step_10.pt", "step_10.pt")
    assert chosen(35, tmp_path / "step_30.pt") == "step_30.pt"
    assert choose_checkpoint(tmp_path, run, None, Aim(5), None) is None  # the recipe's initial state
    with pytest.raises(ReplayError, match="is of step 40, not before step 35"):
        chosen(35, tmp_path / "step_40.pt")
    run = replace(run, checkpoints=run.checkpoints[2:])
    assert chosen(35) == "step_30.pt"
