"""Workers that draw the same numbers."""

from __future__ import annotations

from postmortem.silent.faults.identical_worker_randomness import IdenticalWorkerRandomness
from tests.silent.faults.cases import blamed, quiet

LOOP = """
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.manual_seed(0)


    class Noisy(Dataset):
        def __init__(self):
            self.rng = np.random.default_rng(0)

        def __len__(self):
            return 64

        def __getitem__(self, i):
            return torch.full((4,), float(i)) + torch.as_tensor({noise}).float()


    def seed_worker(worker):
        {seed}


    loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=seed_worker)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for epoch in range(2):
        for x in loader:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def loop(noise: str, seed: str = "pass") -> str:
    return LOOP.format(noise=noise, seed=seed)


@blamed(IdenticalWorkerRandomness, at="loader = DataLoader")
def a_generator_of_the_dataset() -> str:
    return loop("self.rng.normal(size=4)")


@blamed(IdenticalWorkerRandomness, at="loader = DataLoader")
def one_seed_for_all_workers() -> str:
    return loop("np.random.normal(size=4)", "np.random.seed(1)")


@quiet(IdenticalWorkerRandomness)
def a_list_of_samples() -> str:
    """To which there are no weak references."""
    return loop("0").replace("DataLoader(Noisy()", "DataLoader([torch.randn(4) for _ in range(64)]")


@quiet(IdenticalWorkerRandomness)
def the_global_generators() -> str:
    """PyTorch seeds them, each worker with another number."""
    return loop("np.random.normal(size=4)")


@quiet(IdenticalWorkerRandomness)
def a_seed_for_each_worker() -> str:
    return loop("np.random.normal(size=4)", "np.random.seed(torch.initial_seed() % 2**32)")


@quiet(IdenticalWorkerRandomness)
def a_generator_that_nobody_uses() -> str:
    return loop("0.0", "np.random.seed(1)")
