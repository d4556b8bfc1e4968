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
