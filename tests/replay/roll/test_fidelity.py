"""Fidelity: replayed losses against logged ones, to the digits that a log shows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
from hypothesis import given, settings
from hypothesis import strategies as st

from postmortem.core.points import PointsBuilder
from postmortem.core.run import Run, Stream, segments
from postmortem.core.view import View
from postmortem.replay.roll.fidelity import Digits, LoggedLoss, compare, logged_losses
from postmortem.replay.roll.rounding import Rounding
from postmortem.replay.step.result import StepResult

FORMATS = ("{:.2f}", "{:.4f}", "{:.3e}", "{:.4g}", "{:.6g}", "{!r}")
values = st.lists(st.floats(1e-4, 1e4), min_size=20, max_size=60)


@settings(max_examples=60, deadline=None)
@given(values=values, form=st.sampled_from(FORMATS))
def test_what_was_printed_is_recognised(values: list[float], form: str) -> None:
    """However a loss was printed, its own value counts as the same."""
    printed = [float(form.format(v)) for v in values]
    digits = Digits.of(printed)
    assert all(digits.same(p, v) for p, v in zip(printed, values, strict=True))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_another_value_is_not(seed: int) -> None:
    """Four printed decimals tell losses apart that differ by more than the last of them; all digits tell a float32
    apart."""
    losses = np.random.default_rng(seed).uniform(0.5, 3.0, 50)
    digits = Digits.of([round(v, 4) for v in losses])
    assert not any(digits.same(round(v, 4), v + 2e-4) for v in losses)
    exact = Digits.of([float(np.float32(v)) for v in losses])
    assert not any(exact.same(float(np.float32(v)), float(np.nextafter(np.float32(v), np.float32(9)))) for v in losses)


def test_nonfinite_values() -> None:
    """NaN and inf are the same as each other, and never the same as a number."""
    digits = Digits.of([1.25])
    assert digits.same(math.nan, math.inf)
    assert not digits.same(math.nan, 1.0)
    assert not digits.same(1.0, math.inf)


def results(losses: list[float], first: int = 0) -> list[StepResult]:
    return [StepResult(step=first + i, loss=v, losses={"loss": v}) for i, v in enumerate(losses)]


def logged(values: dict[int, float], tag: str = "loss", mean: bool = False) -> LoggedLoss:
    return LoggedLoss(tag, values, Digits.of(list(values.values())), mean)


def test_best_of_several_tags_is_taken() -> None:
    """Where several tags could hold the loss, the one that agrees is taken and named."""
    replayed = results([1.25, 1.5, 1.75])
    found = compare(
        replayed,
        {"loss": [logged({0: 9.0, 1: 8.0}, "other"), logged({0: 1.25, 2: 1.75}, "train/loss")]},
        checkpoint="c",
        first_step=0,
    )
    assert (found.ok, found.compared, found.exact, found.max_rel_error, found.first_mismatch) == (True, 2, 2, 0.0, None)
    assert "train/loss" in found.note


def test_the_last_micro_batch_alone() -> None:
    """Under accumulation some scripts log the loss of the last micro-batch, not the mean: that is compared where it
    agrees better."""
    replayed = [StepResult(step=i, loss=2.0 + i, losses={"loss": 2.0 + i}, last={"loss": 0.3 * i}) for i in range(4)]
    values = {i: float(np.float32(0.3 * i)) for i in range(4)}
    both = [logged(values), LoggedLoss("loss", values, Digits.of(list(values.values())), last=True)]
    found = compare(replayed, {"loss": both})
    assert (found.ok, found.exact, found.compared) == (True, 4, 4)
    assert "loss (of the last micro-batch)" in found.note
    mean = compare([StepResult(step=i, loss=v, losses={"loss": v}) for i, v in values.items()], {"loss": both})
    assert mean.ok
    assert "micro-batch" not in mean.note


def test_mismatch_is_placed() -> None:
    """The first step at which the losses part is named, and how far they are apart."""
    found = compare(results([1.25, 1.5, 2.75, 9.0]), {"loss": [logged({0: 1.25, 1: 1.5, 2: 1.75, 3: 2.0})]})
    assert (found.ok, found.exact, found.first_mismatch) == (False, 2, 2)
    assert found.max_rel_error == pytest.approx(7 / 9)


def test_rounding_of_another_machine_is_faithful() -> None:
    """Differences in the last digits are said and do not count against the replay; a NaN on one side only does."""
    values = {i: float(np.float32(1 + i / 7)) for i in range(5)}
    close = compare(results([v * (1 + 1e-6) for v in values.values()]), {"loss": [logged(values)]})
    assert close.ok
    assert close.exact < close.compared
    assert "within a relative error of" in close.note
    assert not compare(results([*list(values.values())[:4], math.nan]), {"loss": [logged(values)]}).ok
    a_step_off = compare(results([v * (1 + 4e-5) for v in values.values()]), {"loss": [logged(values)]})
    assert not a_step_off.ok


def test_rounding_is_what_was_measured() -> None:
    """A difference that grows is rounding as far as reruns differ as much; beyond that the replay does not follow."""
    values = {i: float(np.float32(1 + i / 7)) for i in range(4)}
    grown = results([v * (1 + e) for v, e in zip(values.values(), (0, 1e-6, 4e-5, 4e-4), strict=True)])
    losses = {"loss": [logged(values)]}
    chaotic = Rounding({0: 0.0, 1: 1e-6, 2: 1e-5, 3: 1e-4})
    assert compare(grown, losses, rounding=chaotic).ok
    assert "moves them by 1.0e-04" in compare(grown, losses, rounding=chaotic).note
    stable = compare(grown, losses, rounding=Rounding({0: 0.0, 1: 1e-7, 2: 1e-7, 3: 2e-7}))
    assert not stable.ok
    assert "does not follow the log" in stable.note


def test_reasons_in_order() -> None:
    """Without a saved random state that comes first; first losses that agree speak for the batches and weights."""
    off = results([2.0, 2.0, 2.0])
    first = compare(off, {"loss": [logged({0: 1.0, 1: 1.5})]}, random_state=False).reasons
    assert ["random state" in first[0], "drawn ahead" in first[1], "configuration" in first[2]] == [True] * 3
    later = compare(off, {"loss": [logged({0: 2.0, 1: 1.5})]}).reasons
    assert ["learning rate" in later[0], "drawn ahead" in later[1]] == [True] * 2
    assert compare(off, {"loss": [logged({0: 2.0, 1: 2.0})]}).reasons == ()


def test_nothing_to_compare() -> None:
    """Without a logged loss nothing vouches for the replay."""
    found = compare(results([1.0]), {})
    assert (found.ok, found.compared) == (False, 0)
    assert "could not be compared" in found.note


def result(step: int, loss: float) -> StepResult:
    return StepResult(step=step, loss=loss, losses={"loss": loss})


def test_single_value_that_may_be_a_mean_says_nothing() -> None:
    """One logged value whose interval was replayed in part is no mismatch: it may be a mean. With the whole interval it
    is one."""
    values = {5: 9.0, 10: 4.0, 15: 3.0}
    losses = {"loss": [LoggedLoss("loss", values, Digits(6, 9)), LoggedLoss("loss", values, Digits(6, 9), mean=True)]}
    assert compare([result(step, 1.0) for step in range(8, 12)], losses).compared == 0
    whole = compare([result(step, 1.0) for step in range(6, 12)], losses)
    assert (whole.ok, whole.compared, whole.exact) == (False, 1, 0)
    single = compare([result(10, 4.0)], losses)
    assert (single.ok, single.compared) == (True, 1)


def test_means_agree_to_single_precision() -> None:
    """Trainers add up in single precision: a mean that differs in its last digit is the same, a plain loss is not."""
    values = {5: 9.0, 10: 1.00000012}
    mean = LoggedLoss("loss", values, Digits(20, 17, whole=True), mean=True)
    assert mean.same(1.00000012, 1.00000031)
    assert not LoggedLoss("loss", values, Digits(20, 17, whole=True)).same(1.00000012, 1.00000061)


def test_values_that_the_logger_replaced_are_not_compared() -> None:
    """From the step on at which the log may show numbers in place of NaN a number is no mismatch with a NaN; with
    another number it is."""
    loss = LoggedLoss("loss", {1: 0.5, 2: 0.4, 3: 0.0}, Digits(1, 1), masked=2)
    fidelity = compare([result(1, 0.5), result(2, 0.4), result(3, math.nan)], {"loss": [loss]})
    assert (fidelity.ok, fidelity.compared) == (True, 2)
    assert not compare([result(1, math.nan), result(2, 0.4)], {"loss": [loss]}).ok
    assert not compare([result(1, 0.5), result(2, 0.9)], {"loss": [loss]}).ok


@pytest.mark.parametrize("name", ["loss/gen/total", "gen/total", "GEN/total"])
def test_a_loss_with_the_name_of_its_tag(name: str) -> None:
    """A named loss may have the tag's whole name, or its last parts."""
    builder = PointsBuilder()
    for tag, value in (("loss/gen/total", 2.0), ("loss/disc/total", 3.0)):
        builder.extend(tag, np.arange(4), np.full(4, value), np.arange(4.0))
    points = builder.build()
    stream = Stream("csv", "exp", points, *segments(points))
    view = View(Run(name="exp", path=Path("exp"), streams=[stream], event_list=[], problems=[], sources=[]))
    assert {
        n: [one.tag for one in found if not one.last] for n, found in logged_losses(view, None, [name]).items()
    } == {name: ["loss/gen/total"]}
