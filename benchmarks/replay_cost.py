"""The cost of replay in plain steps of the same model, compared with torch's detect_anomaly in the same run.

    python benchmarks/replay_cost.py [--device cuda] [--size tiny|30m|all] [--repeats N]

Prints for each model: seconds of a plain step (zero_grad, forward, backward, optimizer), and as multiples of it the
same step under the tracing engine and under detect_anomaly, the peak memory of the tracing step (GPU: torch's own
count; CPU: growth of the process in a process of its own), and the whole diagnosis of a step with a fault in the
forward or the backward pass (samples, precision and fixes in it), with the roll-forward and the reruns in fp64 and
bf16 counted apart: the best of three, and the first, which finds nothing in any cache.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import resource
import statistics
import sys
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

from postmortem.replay.culprit.localize import localize
from postmortem.replay.model import TrainStep
from postmortem.replay.rerun.reruns import Reruns
from postmortem.replay.roll import roll as rolling
from postmortem.replay.step.overrides import NOTHING, Overrides
from postmortem.replay.trace.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = {"tiny": (2, 32, 2, 16, 100, 4), "30m": (6, 512, 8, 128, 22000, 2)}
"""name -> layers, width, heads, context, vocabulary, batch."""
FAULTS = {"forward": "mask", "backward": "weight"}
"""phase of the fault -> what of the batch is zero for a sample."""


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    """A decoder with tied embeddings."""

    def __init__(self, layers: int, width: int, heads: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.ln(x), self.tokens.weight)


def loss_of(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """A mean over each sample's tokens, 0 / 0 under a mask of zeros, and a penalty with a derivative of 0 / 0 at 0."""
    logits = model(batch["ids"][:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1), batch["ids"][:, 1:].flatten(), reduction="none").view(
        len(logits), -1
    )
    penalty = (logits.mean((1, 2)) * batch["weight"]).square().sqrt()
    return ((losses * batch["mask"]).sum(1) / batch["mask"].sum(1) + 0.1 * penalty).mean()


def build(size: str, device: str, fault: str | None = None) -> TrainStep:
    """The step; `fault`, one of FAULTS, is in sample 1."""
    layers, width, heads, context, vocabulary, batch = SIZES[size]
    torch.manual_seed(0)
    model = GPT(layers, width, heads, context, vocabulary).to(device)
    data = {
        "ids": torch.randint(0, vocabulary, (batch, context + 1), device=device),
        "mask": torch.ones(batch, context, device=device),
    }
    data["weight"] = torch.ones(batch, device=device)
    if fault is not None:
        data[FAULTS[fault]][1] = 0.0
    return TrainStep(model, torch.optim.AdamW(model.parameters(), lr=1e-4), loss_of, data)


def one_step(built: TrainStep) -> None:
    built.optimizer.zero_grad()
    built.step(built.model, built.batch).backward()
    built.optimizer.step()


def seconds(built: TrainStep, around: Any, repeats: int, device: str) -> list[float]:
    """Seconds (CPU time on a CPU, else wall time) of each of `repeats` steps under the context that `around` makes."""
    out = []
    for _ in range(repeats):
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        clock = time.perf_counter if device.startswith("cuda") else time.process_time
        started = clock()
        with around():
            one_step(built)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        out.append(clock() - started)
    return out


def peak() -> int:
    """Peak memory of this process in KiB (VmHWM: unlike ru_maxrss it does not begin with the parent's)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")))


def _grown(size: str, traced: bool, answer: Any) -> None:
    torch.set_num_threads(1)
    built = build(size, "cpu")
    gc.collect()
    before = peak()
    with Tracer() if traced else nullcontext():
        one_step(built)
    answer.put(peak() - before)


def memory(size: str, device: str) -> float:
    """Peak memory of a step under the tracer over that of a plain step."""
    found = []
    for traced in (False, True):
        if device.startswith("cuda"):
            built = build(size, device)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            with Tracer(deferred=True) if traced else nullcontext():
                one_step(built)
            found.append(torch.cuda.max_memory_allocated() - before)
            continue
        context = multiprocessing.get_context("spawn")
        answer = context.Queue()
        process = context.Process(target=_grown, args=(size, traced, answer))
        process.start()
        found.append(answer.get())
        process.join()
    return found[1] / max(1, found[0])


def diagnosis(size: str, device: str, plain: float, fault: str) -> tuple[float, float, int, Any]:
    """Plain steps that a diagnosis takes (without, with roll-forward, fp64 and bf16 reruns), its reruns, answer."""
    clock = time.perf_counter if device.startswith("cuda") else time.process_time
    built = build(size, device, fault)
    apart = 0.0
    session: list[Reruns] = []

    def timed(function: Any, counts: Any) -> Any:
        def run(*args: Any, **how: Any) -> Any:
            nonlocal apart
            started = clock()
            result = function(*args, **how)
            apart += (clock() - started) * counts(*args)
            return result

        return run

    def precise(of: Reruns, overrides: Overrides = NOTHING) -> bool:
        session[:] = [of]
        return overrides.dtype in ("fp64", "bf16")

    with (
        mock.patch.object(rolling, "roll", timed(rolling.roll, lambda *_: True)),
        mock.patch.object(Reruns, "fails", timed(Reruns.fails, precise)),
    ):
        started = clock()
        culprit = localize(built)
        took = clock() - started
    return (took - apart) / plain, took / plain, session[0].runs, culprit


def ways(device: str) -> dict[str, Any]:
    """name -> what makes the context of a step; on a GPU the tracer keeps its sums there and reads them once."""
    deferred = device.startswith("cuda")
    return {
        "plain": nullcontext,
        "traced": lambda: Tracer(deferred=deferred, within="others"),
        "traced in the optimizer": lambda: Tracer(deferred=deferred, within="optimizers"),
        "detect_anomaly": lambda: torch.autograd.detect_anomaly(check_nan=True),
    }


def step_times(built: TrainStep, device: str, repeats: int) -> dict[str, float]:
    """Median seconds of a step in each of `ways`, interleaved: a busy machine slows all of them alike."""
    contexts = ways(device)
    for around in contexts.values():
        seconds(built, around, 2, device)
    times: dict[str, list[float]] = {name: [] for name in contexts}
    for _ in range(repeats):
        for name, around in contexts.items():
            times[name] += seconds(built, around, 1, device)
    return {name: statistics.median(t) for name, t in times.items()}


def lines(size: str, device: str, repeats: int) -> Iterator[str]:
    """What the steps and diagnoses of a model cost, a line at a time."""
    built = build(size, device)
    best = step_times(built, device, repeats * (20 if size == "tiny" else 1))
    plain = best["plain"]
    parameters = sum(p.numel() for p in built.model.parameters())
    yield f"{size}: {parameters / 1e6:.1f} M parameters on {device}, plain step {plain * 1e3:.1f} ms"
    second = best["traced in the optimizer"] / plain  # only where a parameter fails
    traced, anomaly = best["traced"] / plain, best["detect_anomaly"] / plain
    yield f"  traced x{traced:.2f} (in the optimizer x{second:.2f})   detect_anomaly x{anomaly:.2f}"
    yield f"  memory of the traced step x{memory(size, device):.2f}"
    for fault in FAULTS:
        tried = [diagnosis(size, device, plain, fault) for _ in range(3)]
        without, whole, runs, culprit = min(tried, key=lambda one: one[0])
        first = tried[0]
        steps = f"{without:.1f} plain steps, the first of three {first[0]:.1f}, {runs} reruns"
        yield f"  whole diagnosis, fault in the {fault} pass: {steps}"
        yield f"    with the roll-forward and the fp64 and bf16 reruns {whole:.1f}, the first of three {first[1]:.1f}"
        yield f"    answer: {culprit.phase} {culprit.op} line {culprit.line} samples {culprit.samples}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", default="all", choices=[*SIZES, "all"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    for size in SIZES if options.size == "all" else [options.size]:
        for line in lines(size, options.device, options.repeats):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
