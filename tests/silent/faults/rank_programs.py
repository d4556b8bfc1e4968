"""A small training in two processes, of which the cases of ranks are made.

The model is kept to the end of the process: torch joins gloo's thread where it frees a DDP model, and holds the lock of
Python there, for which that thread may be waiting (seen in torch 2.13, in 9 of 40 processes that were forked late).
"""

from __future__ import annotations

LOOP = """
    import datetime
    import os
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    kept = []


    def worker(rank):
        limit = datetime.timedelta(seconds=50)
        place = f"file://{{os.getcwd()}}/ranks"
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2, timeout=limit)
        torch.manual_seed({seed})
        model = {model}
        {first}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(rank)
        for step in range(10):
            x = torch.randn(16, 4, generator=generator)
            loss = ({call}(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            {between}
            optimizer.step()
            {after}
        kept.append(model)
        dist.destroy_process_group()


    mp.start_processes(worker, nprocs=2, start_method="fork")
"""
NET = "nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))"
AVERAGE = "for p in model.parameters(): dist.all_reduce(p.grad); p.grad /= 2"


def ranks(
    model: str = NET,
    *,
    call: str = "model",
    seed: str = "0",
    first: str = "pass",
    between: str = "pass",
    after: str = "pass",
) -> str:
    return LOOP.format(model=model, call=call, seed=seed, first=first, between=between, after=after)
