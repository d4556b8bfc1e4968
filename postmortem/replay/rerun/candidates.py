"""The candidates for the culprit, one per place in the code, from what the tracer recorded."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postmortem.replay.trace.operators import FRESH, MAKERS, SUMS_OF_PRODUCTS
from postmortem.replay.trace.places import NOWHERE
from postmortem.replay.trace.records import Hit, Origin
from postmortem.replay.trace.singular import singular
from postmortem.replay.trace.tensors import INF, NAN, NEG

if TYPE_CHECKING:
    from postmortem.replay.rerun.session import Traced


@dataclass(slots=True)
class Candidate:
    """A place where non-finite values begin that lead to the fault.

    outside: ("parameter" | "optimizer" | "batch", name) if they came into the step with a tensor; `hits` are then the
    operators that read it. meant: an infinity that the program wrote down or handed over, as masks do. from_inf: NaN
    computed from infinities. pole: an infinity at a pole of the operator.
    """

    key: tuple[Any, ...]
    hits: list[Hit]
    module: str | None
    op: str | None
    bits: int
    outside: tuple[str, str] | None = None
    meant: bool = False
    from_inf: bool = False
    pole: bool = False

    def merge(self, other: Candidate) -> None:
        """Adds what the same place did at other times."""
        if other is self:
            return
        have = {h.index for h in self.hits}
        self.hits += [h for h in other.hits if h.index not in have]
        self.bits |= other.bits
        self.meant, self.from_inf = self.meant and other.meant, self.from_inf and other.from_inf

    @property
    def index(self) -> int:
        """Index of its first operator."""
        return self.hits[0].index


def candidates(traced: Traced) -> list[Candidate]:
    """Candidates in the order of the step; origins of the same operator at the same line are merged."""
    found: dict[tuple[Any, ...], Candidate] = {}
    for origin in traced.origins():
        made = _candidate(origin, traced)
        found.setdefault(made.key, made).merge(made)
    for source in traced.sources:
        if source < 0 and source in {-k for k in traced.known}:
            kind, name = traced.known[-source]
            hit = Hit(0, "", NOWHERE, False, "step", [], [], [])
            found.setdefault((kind, name), Candidate((kind, name), [hit], None, None, NAN, outside=(kind, name)))
    return sorted(found.values(), key=lambda c: c.index)


def _candidate(origin: Origin, traced: Traced) -> Candidate:
    hit = origin.hit
    updated = traced.stage == "param" and not set(traced.names) <= traced.buffers
    if updated and hit.index >= traced.backward_ended:
        hit.stage = "optimizer"  # of an optimizer that is not torch's, too, which has no hooks
    module = hit.where.module
    if origin.outside is not None:
        outside = traced.known.get(-origin.outside)
        if outside is not None:
            meant = not origin.bits & NAN and (origin.bits == NEG or outside[1] in traced.buffers)
            meant = meant and not _multiplied(hit, traced)
            return Candidate(outside, [hit], module, None, origin.bits, outside=outside, meant=meant)
    op = hit.forward_name or hit.name
    if op == "_to_copy" and not hit.backward and origin.outside is None:
        op = _consumer(hit, traced) or op
    if not hit.backward and singular(called := hit.where.called) and hit.first.strip("_") == called:
        op = called or op  # later operators of the call are its derivative in forward mode
    if hit.name in FRESH:
        op = hit.where.called or "tensor"
    elif hit.name in MAKERS and origin.bits & NAN:
        op = hit.where.called or op  # a NaN that torch's own code writes for an undefined result
    phase = hit.stage if hit.stage == "optimizer" else hit.backward
    key = (phase, hit.where.file, hit.where.line, hit.where.module or hit.where.owner, op)
    meant = (origin.constant or (origin.outside is not None and not origin.bits & NAN)) and not _multiplied(hit, traced)
    pole = not origin.bits & NAN and singular(op.strip("_")) and bool(origin.bits & INF)
    return Candidate(key, [hit], module, op, origin.bits, meant=meant, from_inf=origin.from_inf, pole=pole)


def _multiplied(hit: Hit, traced: Traced) -> bool:
    """Whether the infinities that an operator read or wrote are multiplied and summed: no mask is. They may have gone
    through others before that make no NaN of them."""
    waiting, seen = [hit], {hit.index}
    while waiting:
        one = waiting.pop()
        if one.name.strip("_") in SUMS_OF_PRODUCTS and any(t.bits for t in one.inputs):
            return True
        if not one.out_bits & NAN:
            waiting += [
                h
                for i, h in traced.log.hits.items()
                if i not in seen and any(t.source == one.index and t.bits for t in h.inputs)
            ]
            seen.update(h.index for h in waiting)
    return False


def _consumer(cast: Hit, traced: Traced) -> str | None:
    """The operator for which autocast cast this tensor; None if the user's line asks for the cast."""
    line = linecache.getline(cast.where.file, cast.where.line) if cast.where.file else ""
    if any(word in line for word in (".to(", "half(", "type(", "type_as(", "bfloat16(", "float16")):
        return None
    later = (
        h
        for i, h in sorted(traced.log.hits.items())
        if i > cast.index and any(t.source == cast.index for t in h.inputs)
    )
    return next((h.name for h in later), None)
