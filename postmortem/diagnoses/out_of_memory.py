from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from postmortem.core.patterns import later
from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.crash import Reason, crash_of, to_look_for, with_reasons
from postmortem.diagnoses.shared.last_good import watched
from postmortem.signatures import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Diagnosis, Event, Finding
    from postmortem.core.series import Series
    from postmortem.core.view import View

_PROCESS = later(r"Process (\d+) has (\d+(?:\.\d+)?) (\w+) memory in use")
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_FIRST_STEPS = 2
_PARTS = 5
_GROWN, _EVEN = 0.02, 0.25
"""Into how many parts the logged memory is cut; the growth over all of them that counts, relative to the first; and the
least of each, relative to an even growth."""
_SHORTER = "limit the length of the longest batch, and evaluate under torch.no_grad()"
_ITEM = "store loss.item() and not loss"
_KEPT = f"{_ITEM}: a stored tensor keeps its graph, and the graph all activations"


@diagnosis
class OutOfMemory:
    """The GPU had no memory left for another tensor; the numbers in the message and the step show what used the memory.

    A request larger than the whole GPU suggests a wrong shape. Memory of other processes, and memory that PyTorch has
    reserved but cannot use for the request (fragmentation), are named if either would have been enough. A failure in
    the first steps means that the model or batch does not fit; a failure after many steps suggests a longer batch, an
    evaluation or growing memory. Fields of the message:
    https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
    """

    name = "out-of-memory"
    priority = 62

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = crash_of(view, findings, "cuda-oom")
        if found is None:
            return None
        story, event = found
        explained = sorted(_reasons(view, event), key=lambda e: -e.nbytes)
        known = CATALOGUE[event.kind]
        replaced = [*known.fixes[1:], *([to_look_for(known)] if view.main("memory") is not None else [])]
        return with_reasons(story, event, [e.reason for e in explained], instead_of=replaced)


class _Explained(NamedTuple):
    """A reason, and how many bytes it explains."""

    nbytes: int
    reason: Reason


def _reasons(view: View, event: Event) -> Iterator[_Explained]:
    fields = {name.removesuffix("_bytes"): value for name, value in event.fields.items() if name.endswith("_bytes")}
    requested, total, free = (fields.get(name, 0) for name in ("requested", "total", "free"))
    gpu = f"GPU {event.fields['gpu']}" if "gpu" in event.fields else "the GPU"
    if requested > total > 0:
        advice = (
            "check the shapes at that line: a wrong dimension, or attention, which grows with the square of the length"
        )
        evidence = f"one tensor of {_in_units(requested)} is larger than all memory of {gpu} ({_in_units(total)})"
        yield _Explained(requested, Reason(evidence, (advice,)))
        return
    allowed = fields.get("allowed", total)
    if total > 0 and requested > free:
        yield from _held_by_others(event.message, fields, gpu)
    elif 0 < allowed < total and requested > 0:
        share = f"{_in_units(allowed)} of the {_in_units(total)} of {gpu} ({_in_units(free)} of the GPU is free)"
        evidence = f"this process may use {share}: it reached its own limit"
        yield _Explained(free, Reason(evidence, ("raise or remove torch.cuda.set_per_process_memory_fraction",)))
    spare = fields.get("reserved_unallocated", fields.get("reserved", 0) - fields.get("allocated", 0))
    if spare >= requested > 0:
        pieces = f"in pieces too small for the requested {_in_units(requested)}"
        evidence = f"{_in_units(spare)} is reserved by PyTorch, but {pieces}: fragmentation"
        yield _Explained(spare, Reason(evidence, ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",)))
    for reason in _when(view, event):
        yield _Explained(0, reason)


def _held_by_others(message: str, fields: dict[str, int], gpu: str) -> Iterator[_Explained]:
    """The memory of other processes, if it would have been enough and is more than a fiftieth of the GPU."""
    total, free = fields["total"], fields.get("free", 0)
    others = _others(message, fields)
    # older messages do not name processes; the CUDA context and NCCL take a few GiB besides what PyTorch reserved
    unnamed = total - free - fields.get("reserved", total) if not others else 0
    held = sum(others.values()) or (unnamed if unnamed > total // 10 else 0)
    if held >= max(fields["requested"] - free, total // 50):
        who = ", ".join(f"process {pid} {_in_units(nbytes)}" for pid, nbytes in others.items())
        who = who or "everything except what this process reserved and what is free"
        advice = (
            f"free {gpu}: nvidia-smi shows whose processes these are; "
            "ranks that share one need torch.cuda.set_device(local_rank)"
        )
        hold = "hold" if others else "likely hold"  # what the message does not name may be the program's own as well
        evidence = f"other processes {hold} {_in_units(held)} of the {_in_units(total)} of {gpu}: {who}"
        yield _Explained(held, Reason(evidence, (advice,)))


def _others(message: str, fields: dict[str, int]) -> dict[str, int]:
    """Bytes of other processes on the GPU, by process id.

    Without "this process has" in the message, the own process is the smallest with at least the memory that PyTorch
    reports of it: its id inside a container is a different one.
    """
    found = {pid: round(float(size) * _UNITS.get(unit, 1)) for pid, size, unit in _PROCESS.findall(message)}
    if "in_use" in fields:
        return found
    own = fields.get("allocated", 0) + fields.get("reserved_unallocated", 0)
    fit = [pid for pid, nbytes in found.items() if 0 < own <= nbytes]
    mine = min(fit, key=found.__getitem__, default=None)
    return {pid: nbytes for pid, nbytes in found.items() if pid != mine} if mine is not None else {}


def _when(view: View, event: Event) -> Iterator[Reason]:
    """The reason that follows from the number of steps done; nothing if none are known."""
    series = next(iter(watched(view)), None)
    if series is None or event.step is None:
        return
    steps = int((series.step <= event.step).sum())
    if steps <= _FIRST_STEPS:
        evidence = (
            "it failed in the first steps: model, gradients, optimizer state and activations likely do not fit together"
        )
        yield Reason(evidence, (CATALOGUE[event.kind].fixes[0],))
        return
    memory = view.main("memory")
    known = memory.finite if memory is not None else None
    course = _course(known.take(known.step <= event.step)) if known is not None else None
    if course is not None:
        yield course
        return
    evidence = f"memory sufficed for {steps} logged steps; a larger batch, an evaluation or a leak may explain it"
    yield Reason(evidence, (f"{_SHORTER}; if memory grew, {_ITEM}",))


def _course(memory: Series) -> Reason | None:
    """What the logged memory did up to the failure; None where there are too few values to tell."""
    n = len(memory)
    if n < _PARTS:
        return None
    value, tag = memory.value, memory.tag
    levels = [float(np.median(part)) for part in np.array_split(value, _PARTS)]
    rises = np.diff(levels)
    ends = f"from {number(value[0])} at step {memory.step[0]} to {number(value[-1])} at step {memory.step[-1]}"
    if (rises > 0).all() and rises.sum() > _GROWN * levels[0] and rises.min() > _EVEN * rises.sum() / len(rises):
        evidence = (
            f"memory use ({tag}) rises steadily {ends}, in each fifth of the {n} logged values: a leak is a possible "
            "cause, growing batches are another"
        )
        return Reason(evidence, (_KEPT, "record allocations with torch.cuda.memory._record_memory_history()"))
    low, high = float(value.min()), float(value.max())
    if high - low <= _GROWN * abs(high):
        same = number(low) == number(high)
        where = f"at {number(low)}" if same else f"between {number(low)} and {number(high)}"
        evidence = (
            f"memory use ({tag}) stays {where} in all {n} values up to the failure: a "
            "larger batch or an evaluation may explain it, a leak is not seen"
        )
        return Reason(evidence, (_SHORTER,))
    evidence = (
        f"memory use ({tag}) goes {ends}, not steadily: a larger batch, an evaluation or a leak may explain the failure"
    )
    return Reason(evidence, (f"{_SHORTER}; if memory grew, {_ITEM}",))


def _in_units(nbytes: int) -> str:
    unit = next((u for u in ("GiB", "MiB") if nbytes >= _UNITS[u]), "KiB")
    return f"{number(nbytes / _UNITS[unit])} {unit}"
