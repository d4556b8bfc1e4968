"""Replicas that start from different weights."""

from __future__ import annotations

from postmortem.silent.faults.replicas_start_different import ReplicasStartDifferent
from tests.silent.faults.cases import blamed, quiet
from tests.silent.faults.rank_programs import AVERAGE, ranks


@blamed(ReplicasStartDifferent, at="model = nn.Sequential")
def a_seed_for_each_rank() -> str:
    return ranks(seed="rank", between=AVERAGE)


@quiet(ReplicasStartDifferent)
def the_same_seed() -> str:
    return ranks(between=AVERAGE)


@quiet(ReplicasStartDifferent)
def the_weights_of_the_first_rank() -> str:
    broadcast = "for p in model.parameters(): dist.broadcast(p.data, 0)"
    return ranks(seed="rank", first=broadcast, between=AVERAGE)


@quiet(ReplicasStartDifferent)
def trainings_of_their_own() -> str:
    return ranks(seed="rank")
