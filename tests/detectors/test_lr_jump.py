"""Learning rates that a restart changed, and schedules that only look like it."""

from pathlib import Path

import numpy as np
import pytest

import postmortem
from postmortem.detectors.lr_jump import LrJump
from tests.detectors.cases import fires, put, quiet, spoiled

STEPS = np.r_[0:200, 150:400]


def cosine(step):
    return 1e-3 * (0.55 + 0.45 * np.cos(np.pi * step / 400))


@fires(LrJump, step=300)
def a_rate_back_at_its_peak(base):
    return spoiled(base, "lr", put(slice(300, None), 1e-3))


@quiet(LrJump)
def a_schedule_that_restarts_every_hundred_steps(base):
    return base | {"lr": cosine(4 * (np.arange(400) % 100))}


def found(view_of, steps, rates):
    return list(LrJump().detect(view_of({"train/loss": (steps, 2.0 - steps / 1000), "lr": (steps, rates)})))


@pytest.mark.parametrize("factor", [0.1, 0.7, 10.0])
def test_another_rate_at_the_same_steps(view_of, factor):
    """A resume with a lower or higher rate than the same steps had before is named once, at its first step."""
    rates = cosine(STEPS)
    rates[200:] *= factor
    (finding,) = found(view_of, STEPS, rates)
    assert (finding.step, finding.severity, finding.tag) == (150, "warning", "lr")
    assert finding.evidence["after"] == pytest.approx(factor * finding.evidence["before"], rel=1e-4)


@pytest.mark.parametrize(
    "rates",
    [
        cosine(STEPS),
        np.where(STEPS < 170, 1e-3, 1e-4),
        1e-3 * (0.55 + 0.45 * np.cos(np.pi * (STEPS % 60) / 60)),
        1e-3 * np.minimum(1, (STEPS + 1) / 300),
        np.where(np.arange(450) == 200, 1e-5, cosine(STEPS)),
    ],
    ids=["cosine", "step decay", "warm restarts", "warm-up", "one odd row"],
)
def test_a_schedule_that_was_restored(view_of, rates):
    """Drops, warm restarts and a warm-up that fall into the steps done twice are those of the schedule."""
    assert not [f for f in found(view_of, STEPS, rates) if f.step == 150]


def test_rows_at_other_steps(view_of):
    """Where the restart logs between the steps of before, it is compared with the rows around: a drop between them is
    none."""
    steps = np.r_[0:200:10, 155:400:10]
    assert found(view_of, steps, np.where(steps < 174, 1e-3, 1e-4)) == []
    (finding,) = found(view_of, steps, np.where(np.arange(len(steps)) < 20, 1e-3, 1e-4))
    assert finding.step == 155


def test_another_training_in_the_same_log(view_of):
    """A log that starts again at its first step holds a second training, which has its own learning rate."""
    steps = np.r_[0:200, 0:200]
    assert found(view_of, steps, np.where(np.arange(400) < 200, 1e-3, 1e-4)) == []


@pytest.mark.parametrize(("stairs", "names"), [((1e-5, 2e-4, 3.5e-4, 5e-4), []), ((1e-5, 2e-4), ["lr-jump"])])
def test_the_stairs_of_a_warm_up_by_epochs_are_no_jump(view_of, stairs, names):
    """A rate that is constant in each epoch rises to its peak; one that falls after its only jump does not warm up."""
    rates = np.r_[np.repeat(stairs, 40), stairs[-1] * np.linspace(1, 0.1, 200)]
    assert [f.name for f in found(view_of, np.arange(len(rates)), rates)] == names


def test_another_training_with_another_rate(tmp_path: Path) -> None:
    """A training that begins at the first step has its own rate, although that is printed only once an epoch."""
    runs = ((1e-3, 650), (1e-4, 210))
    rows = [
        f"iter: {i}, loss: {2 / i:.5f}" + (f", lr: {rate * (1 - i / 9000):.6f}" if i > 600 and i % every == 0 else "")
        for rate, every in runs
        for i in range(10, 4000, 10)
    ]
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    assert "lr-jump" not in [f.name for f in postmortem.scan(tmp_path).runs[0].findings]
