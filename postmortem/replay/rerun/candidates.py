"""From what the tracing engine saw to candidates for the culprit: one per place in the code."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postmortem.replay.trace.operators import FRESH, MAKERS
from postmortem.replay.trace.places import NOWHERE
from postmortem.replay.trace.records import Birth, Hit
from postmortem.replay.trace.singular import singular
from postmortem.replay.trace.tensors import INF, NAN, NEG

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postmortem.replay.rerun.reruns import Traced


@dataclass(slots=True)
class Candidate:
    """A place where non-finite values on the way to the fault begin. `outside`: ("parameter" | "optimizer" | "batch", name)
    where they came into the step with a tensor; `hits` are then its readers."""

    key: tuple[Any, ...]
    hits: list[Hit]
    module: str | None
    op: str | None
    bits: int
    outside: tuple[str, str] | None = None
    meant: bool = False
    """An infinity that the program wrote down or handed over, as masks do."""
    from_inf: bool = False
    pole: bool = False

    def merge(self, other: Candidate) -> None:
        """Takes in what the same place did at other times."""
        if other is self:
            return
        have = {h.index for h in self.hits}
        self.hits += [h for h in other.hits if h.index not in have]
        self.bits |= other.bits
        self.meant, self.from_inf = self.meant and other.meant, self.from_inf and other.from_inf

    @property
    def index(self) -> int:
        return self.hits[0].index


def candidates(traced: Traced, names: Mapping[int, str]) -> list[Candidate]:
    """Candidates in the order of the step; births at the same line by the same operator are one."""
    found: dict[tuple[Any, ...], Candidate] = {}
    for birth in traced.tracer.births(traced.sources):
        made = _candidate(birth, traced, names)
        found.setdefault(made.key, made).merge(made)
    for source in traced.sources:
        if source < 0 and source in {-k for k in traced.known}:
            kind, name = traced.known[-source]
            hit = Hit(0, "", NOWHERE, False, "step", [], [], [])
            found.setdefault((kind, name), Candidate((kind, name), [hit], None, None, NAN, outside=(kind, name)))
    return sorted(found.values(), key=lambda c: c.index)


def _candidate(birth: Birth, traced: Traced, names: Mapping[int, str]) -> Candidate:
    hit = birth.hit
    if traced.stage == "param" and hit.index >= traced.backward_ended:
        hit.stage = "optimizer"  # also where the optimizer is not one of torch's, whose steps can be told by hooks
    module = "" if hit.where.module is None else names.get(id(hit.where.module), "")
    if birth.outside is not None:
        outside = traced.known.get(-birth.outside)
        if outside is not None:
            meant = not birth.bits & NAN and (birth.bits == NEG or outside[1] in traced.buffers)
            return Candidate(outside, [hit], module, None, birth.bits, outside=outside, meant=meant)
    op = hit.forward_name or hit.name
    if op == "_to_copy" and not hit.backward and birth.outside is None:
        op = _consumer(hit, traced) or op
    if not hit.backward and singular(called := hit.where.called) and traced.tracer.first_at(hit.index).strip("_") == called:
        op = called or op  # what forward-mode differentiation runs after it is its derivative
    if hit.name in FRESH:
        op = hit.where.called or "tensor"
    elif hit.name in MAKERS and birth.bits & NAN:
        op = hit.where.called or op  # a NaN that torch's own code writes, to say that there is no answer
    phase = hit.stage if hit.stage == "optimizer" else hit.backward
    key = (phase, hit.where.file, hit.where.line, id(hit.where.module), op)
    meant = birth.constant or (birth.outside is not None and not birth.bits & NAN)
    pole = not birth.bits & NAN and singular(op.strip("_")) and bool(birth.bits & INF)
    return Candidate(key, [hit], module, op, birth.bits, meant=meant, from_inf=birth.from_inf, pole=pole)


def _consumer(cast: Hit, traced: Traced) -> str | None:
    """The operator that autocast cast this tensor for; None where the user's line asks for the cast."""
    line = linecache.getline(cast.where.file, cast.where.line) if cast.where.file else ""
    if any(word in line for word in (".to(", "half(", "type(", "type_as(", "bfloat16(", "float16")):
        return None
    later = (h for i, h in sorted(traced.tracer.hits.items()) if i > cast.index and any(t.source == cast.index for t in h.inputs))
    return next((h.name for h in later), None)
