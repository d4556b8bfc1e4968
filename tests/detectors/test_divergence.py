"""A loss that climbs and does not come back, also from the first step on, where there is no level to compare with."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import postmortem
from postmortem.detectors.divergence import Divergence
from tests.detectors.cases import fires, noise, quiet, scale, spoiled


@fires(Divergence, step=None)
def a_loss_that_climbs_to_the_end(base):
    return spoiled(base, "train/loss", scale(slice(200, None), np.exp(np.arange(200) / 60)))


@quiet(Divergence)
def a_climb_that_comes_back(base):
    return spoiled(base, "train/loss", scale(slice(200, 260), np.exp(np.r_[0:1.5:30j, 1.5:0:30j])))


def found(folder: Path, losses: np.ndarray) -> list[int | None]:
    rows = "".join(f"{step},{loss}\n" for step, loss in enumerate(losses))
    (folder / "metrics.csv").write_text("step,loss\n" + rows)
    [run] = postmortem.scan(folder).runs
    return [f.step for f in run.findings if f.code == "LOS002"]


@pytest.mark.parametrize("onset", [1, 2])
def test_a_loss_that_blows_up_from_the_start(tmp_path: Path, onset: int) -> None:
    """A loss that leaves its first value for good is divergence, at the first point that left it."""
    noise = np.random.default_rng(onset).normal(0, 3, 120)
    losses = np.exp(np.clip(3 * np.arange(120), 0, 40) + noise)
    losses[: onset + 1] = [2.0] * onset + [60.0]
    losses[onset + 1 :] = np.maximum(losses[onset + 1 :], 30.0)
    losses[100:] = np.exp(np.abs(noise[100:]) + 3)
    assert found(tmp_path, losses) == [onset]


def test_the_climb_from_the_first_value_counts_from_its_first_point(tmp_path: Path) -> None:
    """Points on the way up, each well above the one before, belong to it; noise about the first value does not."""
    high = np.exp(np.random.default_rng(0).normal(5, 0.3, 100))
    assert found(tmp_path, np.r_[3.7, 4.5, 7.1, 20.9, high]) == [1]
    assert found(tmp_path, np.r_[3.7, 3.8, 3.6, 3.9, 20.9, high]) == [4]


@pytest.mark.parametrize(("power", "last", "names"), [(2, 120, []), (5, 120, ["divergence"]), (2, 10, ["divergence"])])
def test_a_value_loss_grows_with_the_return(tmp_path: Path, power: int, last: int, names: list[str]) -> None:
    """The squared error of a value function may grow with the square of the return, and not without it."""
    noise = np.random.default_rng(3).normal(0, 1, (3, 120))
    true = np.linspace(20, 120, 120)
    returns = np.linspace(20, last, 120) + 2 * noise[0]
    critic = 5 * (true / 20) ** power * np.exp(0.1 * noise[1])
    lines = [
        f"update={10 * i} ep_return={returns[i]:.2f} policy_loss={noise[2][i]:.4f} value_loss={critic[i]:.4f}"
        for i in range(120)
    ]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    [run] = postmortem.scan(tmp_path).runs
    assert [f.name for f in run.findings if f.name == "divergence"] == names


def test_a_rise_that_comes_back_to_the_first_value_is_none(tmp_path: Path) -> None:
    """A loss that climbs high and is back near its first value before the end did not leave it for good."""
    rise = np.exp(np.r_[np.linspace(0, 6, 60), np.linspace(6, 0, 60)])
    assert found(tmp_path, rise + 1) == []


@pytest.mark.parametrize(("end", "names"), [(0.8, []), (9.0, ["divergence"])])
def test_a_discriminator_may_come_to_guess(tmp_path: Path, end: float, names: list[str]) -> None:
    """The loss of one that is ahead at first rises to what guessing costs; above that it diverges."""
    n = 120
    ahead = 0.15 + (end - 0.15) / (1 + np.exp(-(np.arange(n) - 60) / 8))
    generator = 3 - np.arange(n) / 80 + 0.1 * np.sin(np.arange(n))
    rows = "".join(f"{i},{g:.4f},{d:.4f}\n" for i, (g, d) in enumerate(zip(generator, ahead, strict=True)))
    (tmp_path / "metrics.csv").write_text("step,Loss/G/loss,Loss/D/loss\n" + rows)
    [run] = postmortem.scan(tmp_path).runs
    assert [f.name for f in run.findings if f.severity == "error"] == names


@pytest.mark.parametrize("rows", [19, 25, 40])
@pytest.mark.parametrize("up", [5, 8])
def test_a_steady_climb_at_the_end_of_a_short_log(tmp_path: Path, rows: int, up: int) -> None:
    """Few epochs, of which the last each are worse than the one before: the bend of the curve is no noise."""
    low = rows - 1 - up
    row = np.arange(rows)
    losses = np.exp(np.where(row <= low, -3 * row / low, -3 + 2 * (row - low) / up))
    (step,) = found(tmp_path, losses)
    assert step is not None
    assert low <= step <= low + 3
    losses[-3:] = losses[low]  # the last epochs are as good as the best: it comes back
    assert found(tmp_path, losses) == []


@pytest.mark.parametrize(("level", "names"), [(2.7, ["divergence"]), (40.0, [])])
def test_a_part_that_rises_where_nothing_is_learned(tmp_path: Path, level: float, names: list[str]) -> None:
    """That the losses compete does not excuse it if every score stays near zero, here in per cent."""
    rows = "".join(
        f"{i},{3.3 if i < 2 else 5 + i / 80 + 0.02 * np.sin(i):.4f},{1.6 - i / 120:.4f},{level + 0.1 * np.cos(i):.3f}\n"
        for i in range(120)
    )
    (tmp_path / "metrics.csv").write_text("step,task_loss,kd_loss,val_acc\n" + rows)
    [run] = postmortem.scan(tmp_path).runs
    assert [f.name for f in run.findings if f.severity == "error"] == names


@pytest.mark.parametrize(("end", "names"), [(0.8, []), (9.0, ["divergence"])])
def test_the_discriminator_of_an_encoder(tmp_path: Path, end: float, names: list[str]) -> None:
    """What is called a discriminator has an adversary, whatever that is called."""
    ahead = 0.02 + (end - 0.02) / (1 + np.exp(-(np.arange(90) - 45) / 6))
    rows = "".join(
        f"Epoch {i}/90 - Loss Encoder: {-i / 3:.4f}, Loss Discriminator: {d:.4f}\n" for i, d in enumerate(ahead)
    )
    (tmp_path / "train.log").write_text(rows)
    [run] = postmortem.scan(tmp_path).runs
    assert [f.name for f in run.findings if f.severity == "error"] == names


def test_a_part_that_begins_with_a_d_is_no_discriminator(tmp_path: Path) -> None:
    """Only names that mean a discriminator, beside those of a generator, may rise to what guessing costs."""
    rows = "".join(f"{i},{0.15 * np.exp(i / 50):.4f},{3 - i / 80:.4f}\n" for i in range(120))
    (tmp_path / "metrics.csv").write_text("step,dice_loss,giou_loss\n" + rows)
    [run] = postmortem.scan(tmp_path).runs
    assert [f.name for f in run.findings if f.severity == "error"] == ["divergence"]


def test_the_values_that_are_named_are_in_the_log(tmp_path: Path) -> None:
    """Both levels of the sentence are values of the log at the steps that it names."""
    rng = np.random.default_rng(5)
    t = np.arange(300)
    loss = (0.4 + 2 * np.exp(-t / 30) + 1.5 * np.clip((t - 200) / 60, 0, 1)) * np.exp(0.05 * rng.standard_normal(300))
    (tmp_path / "metrics.csv").write_text("step,loss\n" + "".join(f"{i},{v:.4g}\n" for i, v in enumerate(loss)))
    [run] = postmortem.scan(tmp_path).runs
    [finding] = [f for f in run.findings if f.name == "divergence"]
    named = re.findall(r"([\d.]+) at step (\d+)", finding.message)
    assert len(named) == 2
    assert all(float(value) == float(f"{loss[int(step)]:.4g}") for value, step in named)


RNG = np.random.default_rng(13)


@pytest.mark.parametrize(
    ("losses", "onset"),
    [
        (np.r_[0.5 * np.ones(40), -np.exp(0.25 * np.arange(80))] + 0.1 * RNG.standard_normal(120), 50),
        (-200 * (1 - np.exp(-np.arange(120) / 20)) + RNG.standard_normal(120), None),  # a log-likelihood
        (3e5 - 5e5 * (1 - np.exp(-np.arange(120) / 20)) + RNG.standard_normal(120), None),  # of many pixels
        (-2.0 * np.arange(120), None),  # the value that a policy raises
        (-(10 ** np.minimum(0.2 * np.arange(120), 7)) + RNG.standard_normal(120), None),  # comes to rest
    ],
)
def test_a_loss_without_a_lower_bound(losses: np.ndarray, onset: int | None, tmp_path: Path) -> None:
    """A loss whose size grows by five orders and still grows at the end diverges; one that converges below zero not."""
    assert found(tmp_path, losses) == ([] if onset is None else [onset])


@pytest.mark.parametrize(
    ("name", "rate", "severity"),
    [
        ("epsilon", np.linspace(1, 0.05, 200), None),
        ("ε", np.zeros(200), None),
        ("Adam/eps_rate", np.linspace(1, 0.05, 200), "error"),
        ("epsilon", np.linspace(0.05, 1, 200), "error"),
    ],
)
def test_a_loss_beside_a_share_of_random_actions_grows_with_the_values(
    tmp_path: Path, name: str, rate: np.ndarray, severity: str | None
) -> None:
    """Only a rate that falls, or stays, is one of exploration."""
    rises = np.linspace(1, 3.5, 200) * np.exp(0.2 * np.random.default_rng(1).standard_normal(200))
    rows = "".join(f"{i},{loss},{r}\n" for i, (loss, r) in enumerate(zip(rises, rate, strict=True)))
    (tmp_path / "metrics.csv").write_text(f"episode,loss,{name}\n" + rows)
    [run] = postmortem.scan(tmp_path).runs
    assert next((f.severity for f in run.findings if f.code == "LOS002"), None) == severity


def test_advice_for_a_loss_without_a_lower_bound_asks_for_its_minimum(tmp_path: Path) -> None:
    """No learning rate helps a loss that has none."""
    falls = -np.exp(np.arange(300) / 15)
    (tmp_path / "metrics.csv").write_text("step,loss\n" + "".join(f"{i},{x}\n" for i, x in enumerate(falls)))
    [run] = postmortem.scan(tmp_path).runs
    assert run.diagnosis is not None
    assert "minimum" in run.diagnosis.next[0]
    rises = np.exp(np.r_[np.linspace(1, 0, 150), np.arange(150) / 15])
    (tmp_path / "metrics.csv").write_text("step,loss\n" + "".join(f"{i},{x}\n" for i, x in enumerate(rises)))
    [run] = postmortem.scan(tmp_path).runs
    assert run.diagnosis is not None
    assert not any("minimum" in step for step in run.diagnosis.next)


def test_a_loss_that_is_the_mirror_image_of_another(view_of):
    """A likelihood that is to rise, printed as the loss, beside its negative; without that it is a divergence."""
    at = np.arange(60)
    rises = 8 + 1.6 * at + np.log(noise(0.2, n=60))
    for other, severity in ((2.5 - rises, "warning"), (3 * np.exp(-at / 20), "error")):
        (found,) = Divergence().detect(view_of({"loss": rises, "loss_data": other}))
        assert found.severity == severity
        assert ("sign turned" in found.message) is (severity == "warning")
