"""Replicas that drift apart."""

from __future__ import annotations

from postmortem.silent.faults.replicas_not_synchronised import ReplicasNotSynchronised
from tests.silent.faults.cases import blamed, quiet
from tests.silent.faults.rank_programs import AVERAGE, NET, ranks


@blamed(ReplicasNotSynchronised, at="model.module(x)")
def the_wrapper_is_passed_by() -> str:
    return ranks(f"DistributedDataParallel({NET})", call="model.module")


@blamed(ReplicasNotSynchronised, at="loss.backward()")
def averaged_after_the_step() -> str:
    return ranks(after=AVERAGE)


@quiet(ReplicasNotSynchronised)
def the_wrapper_is_called() -> str:
    return ranks(f"DistributedDataParallel({NET})")


@quiet(ReplicasNotSynchronised)
def averaged_by_hand() -> str:
    return ranks(between=AVERAGE)


@quiet(ReplicasNotSynchronised)
def two_trainings_of_their_own() -> str:
    return ranks()


@quiet(ReplicasNotSynchronised, status="not checked")
def one_process() -> str:
    return """
        import torch

        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(8):
            loss = (model(torch.randn(8, 4)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """
