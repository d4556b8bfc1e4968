"""One rank that is slower than the others."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.straggler_rank import StragglerRank
from tests.detectors.cases import N, fires, noise, quiet


def ranks(*levels):
    return {"step_time": {rank: level * noise(seed=rank) for rank, level in enumerate(levels)}}


@fires(StragglerRank, step=0, ranks=ranks(0.2, 0.2, 0.4, 0.2))
def one_rank_twice_as_slow(base):
    return {}


@quiet(StragglerRank, ranks=ranks(0.2, 0.21, 0.22, 0.2))
def ranks_that_differ_by_a_tenth(base):
    return {}


def late(*levels):
    """Ranks at 0.2 s that take `levels` from step 200 on."""
    return {"step_time": {k: np.where(np.arange(N) < 200, 0.2, v) * noise(seed=k) for k, v in enumerate(levels)}}


@fires(StragglerRank, step=200, ranks=late(0.2, 0.2, 0.9, 0.2))
def one_rank_becomes_slow(base):
    return base


@fires(StragglerRank, step=200, ranks=late(0.2, 0.9))
def one_of_two_ranks_becomes_slow(base):
    return base


@quiet(StragglerRank, ranks=late(0.9, 0.9, 0.9))
def all_become_slow(base):
    """That is a throughput-drop."""
    return base


def synchronous(*work):
    """Ranks that need `work` seconds of their own each, wait for the slowest, and so take the same time per step."""
    own = [level * noise(seed=k) for k, level in enumerate(work)]
    step = np.max(own, axis=0) + 0.02
    return {
        "compute_s": dict(enumerate(own)),
        "allreduce_wait_s": {k: step - mine for k, mine in enumerate(own)},
        "step_s": dict.fromkeys(range(len(work)), step),
    }


@fires(StragglerRank, step=0, ranks=synchronous(0.2, 0.2, 0.5, 0.2))
def a_rank_that_computes_longer_in_steps_of_equal_length(base):
    return {}


@fires(StragglerRank, step=0, ranks={"allreduce_wait_s": synchronous(0.2, 0.2, 0.5, 0.2)["allreduce_wait_s"]})
def a_rank_for_which_the_others_wait(base):
    return {}


@quiet(StragglerRank, ranks=synchronous(0.2, 0.2, 0.2, 0.2))
def ranks_that_wait_in_turn(base):
    return {}


@quiet(StragglerRank, ranks={"allreduce_wait_s": synchronous(0.2, 0.2, 0.23, 0.2)["allreduce_wait_s"]})
def a_wait_that_is_a_small_part_of_a_step(base):
    return {}


def test_a_late_rank_is_one_finding(view_of):
    """Time of its own and waiting of the others are one fact."""
    (found,) = StragglerRank().detect(view_of({}, ranks=synchronous(0.2, 0.2, 0.5, 0.2)))
    assert (found.rank, found.tag) == (2, "compute_s")


def test_the_first_slow_step_of_ranks_whose_times_vary(view_of):
    """Smoothing moves an edge where the others vary widely: the step named is the first slow one."""
    rng, steps = np.random.default_rng(3), np.arange(48)
    for first in range(18, 30):
        own = {k: rng.choice([0.002, 0.01, 0.035], 48) for k in range(3)}
        own[1] = np.where(steps < first, own[1], 0.14 * noise(0.1, 48))
        (found,) = StragglerRank().detect(view_of({"loss": 1 / (1 + steps)}, ranks={"compute_s": own}))
        assert (found.rank, found.step) == (1, first)
