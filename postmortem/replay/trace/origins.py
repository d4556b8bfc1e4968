"""The way back: from a tensor that is not finite to the operators, or the tensors from outside, with which that began."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from postmortem.replay.trace.operators import ABSORBERS, FRESH, LOGARITHMS, MAKERS, PRODUCTS
from postmortem.replay.trace.records import Birth, Hit
from postmortem.replay.trace.tensors import INF, NAN, NEG, POS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postmortem.replay.trace.tracer import Tracer


def births(trace: Tracer, sources: Iterable[int]) -> list[Birth]:
    """Where the non-finite values of what these operators wrote began, in the order of the step.

    What does not lie on the way back from them is harmless and is not among the answers.
    """
    found: dict[tuple[int, int | None], Birth] = {}
    todo, seen = [s for s in sources if s >= 0], set()
    while todo:
        index = todo.pop()
        if index in seen:
            continue
        seen.add(index)
        hit = trace.hits.get(index)
        if hit is None:
            if index in trace.rewrites:
                todo.append(trace.rewrites[index])  # wrote a finite part of a tensor that is not finite elsewhere
            continue
        out = hit.out_bits
        wanted = NAN if out & NAN and any(t.bits & NAN for t in hit.inputs) else NAN | INF
        fresh = hit.name in FRESH  # a tensor made of Python numbers or numpy: what it reads is what it is, unless that is the batch's
        bad = [t for t in hit.inputs if t.bits & wanted and (not fresh or -t.source in trace.disowned)]
        for t in bad:
            if t.source >= 0:
                todo.append(t.source)
            else:
                found[index, t.source] = Birth(hit, outside=t.source, bits=t.bits)
        linked = _through_python(trace, hit) if not any(t.bits & NAN for t in bad) and not (fresh and bad) else None
        if linked is not None and linked < 0:
            found[index, linked] = Birth(hit, outside=linked, bits=out)
        elif linked is not None:
            todo.append(linked)
        elif not bad:
            written = bool(hit.constants) and hit.name.strip("_") not in PRODUCTS
            constant = not out & NAN and (written or hit.name in FRESH or hit.name in MAKERS)
            found[index, None] = Birth(hit, bits=out, constant=constant)
        elif (hit.name in ABSORBERS and not out & NAN) or (out & NAN and not any(t.bits & NAN for t in bad)):
            found[index, None] = Birth(hit, bits=out, from_inf=True)
        elif hit.name.strip("_") in LOGARITHMS and out & NEG:  # of a zero: no infinity that it read becomes -inf
            found[index, None] = Birth(hit, bits=NEG)
    return [found[k] for k in sorted(found, key=lambda k: (k[0], k[1] is None))]


def _through_python(trace: Tracer, hit: Hit) -> int | None:
    """The source of the number that `item()` carried from a tensor into this operator's arguments."""
    numbers = hit.constants
    if hit.name in FRESH or hit.name in MAKERS:
        numbers = numbers or [math.nan] * bool(hit.out_bits & NAN) + [math.inf] * bool(hit.out_bits & POS) + [-math.inf] * bool(hit.out_bits & NEG)
    for number in numbers:
        for index, value, source in reversed(trace.items):
            if index < hit.index and (value == number or (math.isnan(value) and math.isnan(number))):
                return source
    if hit.name not in FRESH or not hit.out_bits & NAN:
        return None
    before = [h for i, h in trace.hits.items() if i < hit.index]  # tolist() and numpy() leave no trace: the last one it may be
    return max((h.index for h in [h for h in before if h.out_bits & NAN] or before), default=None)
