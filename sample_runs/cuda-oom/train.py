"""Encode documents of growing length until one does not fit on the GPU. Metrics on stdout, the traceback on stderr."""

import torch
from torch import nn

GIB = 2**30
CAPACITY, RESERVED = 79.10 * GIB, 61.38 * GIB


def attention(model: nn.Module, x: torch.Tensor, length: int) -> torch.Tensor:
    scores = 12 * 2 * length * length * 16  # bytes of the attention matrix: heads, half precision, batch
    if (
        RESERVED + scores > CAPACITY
    ):  # no GPU is needed to make this sample: the check and the words are the allocator's
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {scores / GIB:.2f} GiB. GPU 0 has a total capacity of "
            f"{CAPACITY / GIB:.2f} GiB of which "
            f"{(CAPACITY - RESERVED) / GIB:.2f} GiB is free. Including non-PyTorch memory, this process has "
            f"{RESERVED / GIB:.2f} GiB memory in use. "
            "Of the allocated memory 58.02 GiB is allocated by PyTorch, and 2.71 GiB is reserved by PyTorch but "
            "unallocated. If reserved but "
            "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
            "fragmentation.  See documentation "
            "for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )
    return model(x)


def main() -> None:
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(8)
    weights = torch.randn(8, generator=g)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(1, 501):
        x = torch.randn(32, 8, generator=g)
        length = 512 + int(torch.randint(0, 512, (), generator=g)) + (6656 if step == 188 else 0)
        loss = (attention(model, x, length).squeeze(-1) - x @ weights).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 2 == 0:
            print(f"step: {step}/500 | loss: {loss.item():.5f} | lr: 2.0e-03 | seq_len: {length}", flush=True)


if __name__ == "__main__":
    main()
