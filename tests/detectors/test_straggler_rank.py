"""One rank that is slower than the others."""

from __future__ import annotations

from postmortem.detectors.straggler_rank import StragglerRank
from tests.detectors.cases import fires, noise, quiet


def ranks(*levels):
    return {"step_time": {rank: level * noise(seed=rank) for rank, level in enumerate(levels)}}


@fires(StragglerRank, step=0, ranks=ranks(0.2, 0.2, 0.4, 0.2))
def one_rank_twice_as_slow(base):
    return {}


@quiet(StragglerRank, ranks=ranks(0.2, 0.21, 0.22, 0.2))
def ranks_that_differ_by_a_tenth(base):
    return {}
