"""Ticks are mapped to logged steps by the losses: whatever a log counts, averages or rounds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import postmortem
from postmortem.attach.steps import Mapping, Pass, Way, matched
from postmortem.core.view import View


def log_of(folder: Path, columns: dict[str, list[float]], steps: list[int]) -> View:
    """The view of a CSV log."""
    lines = ["step," + ",".join(columns)]
    lines += [f"{s}," + ",".join(str(c[i]) for c in columns.values()) for i, s in enumerate(steps)]
    path = folder / "metrics.csv"
    path.write_text("\n".join(lines) + "\n")
    return View(postmortem.load(path))


def losses(n: int, start: int = 0) -> list[float]:
    """Losses that do not repeat."""
    return [round(2.0 + math.sin(0.7 * (start + k)) + 0.01 * (start + k), 6) for k in range(n)]


def passes(values: list[float], per_tick: int = 1) -> list[Pass]:
    """Backward passes, `per_tick` in each tick."""
    return [Pass(k // per_tick, v) for k, v in enumerate(values)]


def test_one_loss_a_step(tmp_path: Path) -> None:
    """A resumed run: the first tick is step 20 of the log."""
    view = log_of(tmp_path, {"loss": losses(40)}, list(range(40)))
    mapping, fidelity = matched(view, passes(losses(6, 20)), None)
    assert mapping is not None
    assert (mapping.first, mapping.step_of(5), mapping.last_whole(6)) == (20, 25, 25)
    assert (fidelity.ok, fidelity.compared, fidelity.exact, fidelity.first_step) == (True, 6, 6, 20)


def test_the_log_shows_two_decimals(tmp_path: Path) -> None:
    """Chance matches of few digits do not win over the row of right ones."""
    view = log_of(tmp_path, {"loss": [round(v, 2) for v in losses(60)]}, list(range(60)))
    mapping, fidelity = matched(view, passes(losses(9, 33)), None)
    assert mapping is not None
    assert (mapping.first, fidelity.ok, fidelity.compared) == (33, True, 9)


@pytest.mark.parametrize(("name", "made"), [("sum", math.fsum), ("mean", lambda v: math.fsum(v) / len(v))])
def test_accumulation(tmp_path: Path, name: str, made) -> None:
    """Four backward passes are one logged step, as their sum or their mean."""
    micro = [losses(4, 4 * k) for k in range(30)]
    view = log_of(tmp_path, {"loss": [made(m) for m in micro]}, list(range(1, 31)))
    mapping, fidelity = matched(view, passes([v for m in micro[10:14] for v in m], 4), None)
    assert mapping is not None
    assert (mapping.way.group, mapping.way.name, mapping.first, mapping.step_of(3)) == (4, name, 11, 14)
    assert (fidelity.ok, fidelity.compared) == (True, 4)


def test_the_last_micro_batch_is_logged(tmp_path: Path) -> None:
    """As nanoGPT does: the last loss, times the number of micro-batches."""
    micro = [[v / 4 for v in losses(4, 4 * k)] for k in range(30)]
    view = log_of(tmp_path, {"loss": [4 * m[-1] for m in micro]}, list(range(30)))
    mapping, fidelity = matched(view, passes([v for m in micro[10:16] for v in m], 4), None)
    assert mapping is not None
    assert (mapping.first, mapping.step_of(5), fidelity.ok) == (10, 15, True)


def test_a_gan_updates_three_times_a_step(tmp_path: Path) -> None:
    """D, D, G are three ticks of one step; both logged losses are compared."""
    d, g = losses(80), [v / 3 for v in losses(40, 7)]
    view = log_of(tmp_path, {"loss/D": d[1::2], "loss/G": g}, list(range(1, 41)))
    told = [v for k in range(10, 16) for v in (d[2 * k], d[2 * k + 1], g[k])]
    mapping, fidelity = matched(view, passes(told), None)
    assert mapping is not None
    assert (mapping.way.group, mapping.first, mapping.step_of(4)) == (3, 11, 12)
    assert (fidelity.ok, fidelity.compared) == (True, 12)


def test_means_between_log_lines(tmp_path: Path) -> None:
    """A trainer that logs every fifth step the mean since the last line."""
    every = losses(60)
    view = log_of(tmp_path, {"loss": [math.fsum(every[k - 5 : k]) / 5 for k in range(5, 61, 5)]}, list(range(5, 61, 5)))
    mapping, fidelity = matched(view, passes(every[20:37]), None)
    assert mapping is not None
    assert (mapping.first, mapping.step_of(0), fidelity.ok) == (21, 21, True)


def test_every_tenth_step_is_logged(tmp_path: Path) -> None:
    """Steps between the lines are counted as well."""
    every = losses(100)
    view = log_of(tmp_path, {"loss": every[::10]}, list(range(0, 100, 10)))
    mapping, fidelity = matched(view, passes(every[40:65]), None)
    assert mapping is not None
    assert (mapping.first, mapping.step_of(24), fidelity.ok, fidelity.compared) == (40, 64, True, 3)


def test_a_non_finite_micro_batch_ends_its_step(tmp_path: Path) -> None:
    """The program stops in the middle of a step; its logged loss is NaN, and so is that of the rerun."""
    micro = [losses(4, 4 * k) for k in range(12)]
    view = log_of(tmp_path, {"loss": [*(math.fsum(m) for m in micro[:11]), math.nan]}, list(range(12)))
    told = [v for m in micro[8:11] for v in m] + [micro[11][0], math.nan]
    mapping, fidelity = matched(view, passes(told, 4), None)
    assert mapping is not None
    assert (mapping.step_of(3), fidelity.ok, fidelity.compared) == (11, True, 4)


@pytest.mark.parametrize("between", [1, 5])
def test_numbers_in_place_of_nan(tmp_path: Path, between: int) -> None:
    """Transformers replaces a NaN by the mean of its log interval, and logs 0 from then on."""
    every = losses(30)
    lines = range(between, 31, between)
    logged = [math.fsum(every[s - between : s]) / between if s < 20 else 0.0 for s in lines]
    logged[list(lines).index(20)] = 1.7 if between > 1 else 0.0
    view = log_of(tmp_path, {"loss": logged}, list(lines))
    told = passes([*every[10:19], math.nan])
    mapping, fidelity = matched(view, told, None, masked=20)
    assert mapping is not None
    assert (mapping.step_of(9), fidelity.ok) == (20, True)
    assert matched(view, told, None) != (mapping, fidelity)


def test_another_order_of_the_data_is_not_the_run(tmp_path: Path) -> None:
    """Losses of the same size that are none of the logged ones: no mapping, and the reasons are said."""
    view = log_of(tmp_path, {"loss": losses(200)}, list(range(200)))
    mapping, fidelity = matched(view, passes([v + 0.003 for v in losses(20, 50)]), None)
    assert mapping is None
    assert (fidelity.ok, bool(fidelity.reasons)) == (False, True)
    assert "does not follow the log" in fidelity.note


def test_a_log_without_a_loss(tmp_path: Path) -> None:
    """Nothing can be compared; that is no sign of another run."""
    view = log_of(tmp_path, {"accuracy": losses(20, 400)}, list(range(20)))
    mapping, fidelity = matched(view, passes(losses(5)), None)
    assert (mapping, fidelity.ok, fidelity.reasons) == (None, False, ())


@pytest.mark.parametrize("sign", [1, -1])
def test_a_loss_under_a_name_of_its_own(tmp_path: Path, sign: int) -> None:
    """A bound that is maximised, or a name that nobody knows: the values say what it is."""
    view = log_of(tmp_path, {"elbo": [sign * v for v in losses(40)], "rate": losses(40, 400)}, list(range(40)))
    mapping, fidelity = matched(view, passes(losses(6, 20)), None)
    assert mapping is not None
    assert (mapping.first, fidelity.ok, fidelity.compared) == (20, True, 6)


def test_a_constant_is_no_loss(tmp_path: Path) -> None:
    """A series without a loss's name must meet several different values."""
    view = log_of(tmp_path, {"rate": [0.0125] * 40}, list(range(40)))
    assert matched(view, passes([0.0125] * 6), None)[0] is None


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_log_their_mean(tmp_path: Path, rank: int) -> None:
    """The rank that fails alone has told its non-finite loss when the others have not."""
    logged = [(a + 1.7 * b) / 2 for a, b in zip(losses(40), losses(40, 10), strict=True)]
    view = log_of(tmp_path, {"loss": [*logged[:24], *[math.nan] * 16]}, [*range(40)])
    told = [passes(losses(4 + rank, 20)), passes([*(v * 1.7 for v in losses(4, 30)), math.nan])]
    mapping, fidelity = matched(view, told[rank], rank, [told[1 - rank]])
    assert mapping is not None
    assert (mapping.first, mapping.step_of(4), fidelity.compared >= 4) == (20, 24, True)


def test_only_the_first_rank_logs(tmp_path: Path) -> None:
    """The process at fault is another one."""
    view = log_of(tmp_path, {"loss": losses(40)}, list(range(40)))
    mapping, fidelity = matched(view, passes([v * 1.7 for v in losses(6, 20)]), 1, [passes(losses(6, 20))])
    assert mapping is not None
    assert (mapping.first, fidelity.ok) == (20, True)


def test_a_rank_without_a_log_fails_first(tmp_path: Path) -> None:
    """Its failing step is one after those that the logging rank has ended, and has that number."""
    view = log_of(tmp_path, {"loss": losses(30)}, list(range(30)))
    others, own = passes(losses(3, 20)), passes([*losses(3, 50), math.nan])
    mapping, fidelity = matched(view, own, 1, [others])
    assert mapping is not None
    assert (mapping.first, mapping.step_of(2), mapping.step_of(3), mapping.last_whole(3)) == (20, 22, 23, 22)
    assert (fidelity.ok, fidelity.compared) == (True, 3)


@pytest.mark.parametrize("critic_first", [True, False])
def test_a_generator_that_is_trained_in_every_second_step(tmp_path: Path, critic_first: bool) -> None:
    """Steps of two backward passes and steps of one, as with WGAN-GP: the loss of the critic shows where they begin."""
    d, g = losses(40), [v / 3 for v in losses(40, 7)]
    logged_g = [g[k - (k + 1) % 2] for k in range(40)]
    view = log_of(tmp_path, {"d_loss": [*d[:27], *[math.nan] * 13], "g_loss": logged_g}, list(range(40)))
    told: list[Pass] = []
    of: dict[int, int] = {}
    for k in range(20, 27):
        both = [d[k], g[k]] if critic_first else [g[k], d[k]]
        for value in both if k % 2 else [d[k]]:
            of[len(told)] = k
            told.append(Pass(len(told), value))
    of[len(told)] = 27
    told.append(Pass(len(told), math.nan))
    mapping, fidelity = matched(view, told, None)
    assert mapping is not None
    assert {p.tick: mapping.step_of(p.tick) for p in told} == of
    assert (fidelity.ok, fidelity.exact >= 7) == (True, True)
    assert mapping.last_whole(2) == 20 if critic_first else 21


def test_an_uneven_log_of_other_losses_is_not_followed(tmp_path: Path) -> None:
    """Where no logged value is met there is no mapping either."""
    view = log_of(tmp_path, {"loss": losses(40)}, list(range(40)))
    told = [Pass(k, 5.0 + 0.01 * k) for k in range(12)]
    mapping, fidelity = matched(view, told, None)
    assert mapping is None
    assert not fidelity.ok


def test_the_passes_of_another_run_have_their_own_losses() -> None:
    """A further run of the program is numbered as the first one is; beyond known uneven steps it has no step."""
    first, other = ([Pass(tick, loss) for tick in range(3)] for loss in (1.0, 2.0))
    even = Mapping(Way(1, 0, ""), 5, tuple(first))
    assert [(step, p.loss) for step, p in even.numbered([*other, Pass(3, 2.0)])] == [(5 + i, 2.0) for i in range(4)]
    uneven = Mapping(Way(1, 0, ""), 5, tuple(first), uneven=(5, 5, 6))
    assert [(step, p.loss) for step, p in uneven.numbered([*other, Pass(3, 2.0)])] == [(5, 2.0), (5, 2.0), (6, 2.0)]
