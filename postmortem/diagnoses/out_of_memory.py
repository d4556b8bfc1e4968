from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses._story import watched
from postmortem.diagnoses.crash import Reason, because, crash_of
from postmortem.signatures import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Diagnosis, Event, Finding
    from postmortem.core.view import View

_PROCESS = re.compile(r"Process (\d+) has ([\d.]+ \w+) memory in use")
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_FIRST_STEPS = 2


@diagnosis
class OutOfMemory:
    """The GPU had no room for one more tensor; the numbers of the message, and when it was, tell who took it.

    A request above the size of the GPU is a wrong shape. Memory of other processes, and memory that PyTorch keeps
    reserved but cannot use for the request (fragmentation), are named where either would have been enough. What
    fails in the first steps does not fit; what fails after many met a longer batch, an evaluation, or grew. Fields
    of the message: https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
    """

    name = "out-of-memory"
    priority = 62

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = crash_of(view, findings, "cuda-oom")
        if found is None:
            return None
        story, event = found
        reasons = [Reason(r.evidence, r.advice) for r in sorted(_reasons(view, event), key=lambda r: -r.nbytes)]
        general = CATALOGUE[event.kind].fixes
        return because(replace(story, next=(general[0], *story.next[len(general) :])), event, reasons)


class _Room(NamedTuple):
    """A reason, and how many bytes it explains."""

    evidence: str
    advice: str
    nbytes: int


def _reasons(view: View, event: Event) -> Iterator[_Room]:
    fields = {name.removesuffix("_bytes"): value for name, value in event.fields.items() if name.endswith("_bytes")}
    requested, total = fields.get("requested", 0), fields.get("total", 0)
    gpu = f"GPU {event.fields['gpu']}" if "gpu" in event.fields else "the GPU"
    if requested > total > 0:
        advice = "look at the shapes at that line: a wrong dimension, or attention that grows with the square of the length"
        yield _Room(f"one tensor of {_size(requested)} is more than all of {gpu} ({_size(total)})", advice, requested)
        return
    missing = requested - fields.get("free", 0)
    others = _others(event.message, fields)
    # older wordings do not name processes; the CUDA context and NCCL take a few GiB beside what PyTorch reserved
    unnamed = total - fields.get("free", 0) - fields.get("reserved", total) if not others else 0
    held = sum(others.values()) or (unnamed if unnamed > total // 10 else 0)
    if held >= max(missing, total // 50) > 0:
        who = ", ".join(f"process {pid} {_size(nbytes)}" for pid, nbytes in others.items()) or "all but what this process reserved and what is free"
        advice = f"free {gpu}: nvidia-smi shows whose processes these are; ranks that share one need torch.cuda.set_device(local_rank)"
        yield _Room(f"others hold {_size(held)} of the {_size(total)} of {gpu}: {who}", advice, held)
    spare = fields.get("reserved_unallocated", fields.get("reserved", 0) - fields.get("allocated", 0))
    if spare >= requested > 0:
        evidence = f"{_size(spare)} are reserved by PyTorch but in pieces too small for the {_size(requested)} asked for: fragmentation"
        yield _Room(evidence, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", spare)
    yield from _when(view, event)


def _others(message: str, fields: dict[str, int]) -> dict[str, int]:
    """Bytes of other processes on the GPU, by id. Without "this process has" the own one, whose id in a container is not
    known, is the smallest that has what PyTorch says it has."""
    found = {pid: round(float(size[0]) * _UNITS.get(size[1], 1)) for pid, text in _PROCESS.findall(message) if (size := text.split())}
    if "in_use" in fields:
        return found
    own = fields.get("allocated", 0) + fields.get("reserved_unallocated", 0)
    fit = [pid for pid, nbytes in found.items() if 0 < own <= nbytes]
    mine = min(fit, key=found.__getitem__, default=None)
    return {pid: nbytes for pid, nbytes in found.items() if pid != mine} if mine is not None else {}


def _when(view: View, event: Event) -> Iterator[_Room]:
    series = next(iter(watched(view)), None)
    if series is None or event.step is None:
        return
    steps = int((series.step <= event.step).sum())
    if steps <= _FIRST_STEPS:
        fixes = CATALOGUE["cuda-oom"].fixes[0]
        evidence = "it was in the first steps, where it shows whether model, gradients, optimizer state and activations fit"
        yield _Room(evidence, fixes, 0)
        return
    course = ""
    if (memory := view.main("memory")) is not None:
        before = memory.finite.value[memory.finite.step <= event.step]
        if len(before) > _FIRST_STEPS:
            course = f"; {memory.tag} was {before[len(before) // 10]:.4g} early on and {before[-1]:.4g} before it"
    advice = "bound the length of the longest batch, and evaluate under torch.no_grad(); if memory grew, keep loss.item() and not loss"
    yield _Room(f"{steps} logged steps before it fitted: one batch, the evaluation, or memory that grew{course}", advice, 0)


def _size(nbytes: int) -> str:
    unit = next((u for u in ("GiB", "MiB") if nbytes >= _UNITS[u]), "KiB")
    return f"{nbytes / _UNITS[unit]:.4g} {unit}"
