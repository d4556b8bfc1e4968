"""From a non-finite tensor back to the operators, or the tensors from outside the step, where that began."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from postmortem.replay.trace.operators import ABSORBERS, FRESH, LOGARITHMS, MAKERS, PRODUCTS
from postmortem.replay.trace.records import Hit, Origin, TraceLog
from postmortem.replay.trace.tensors import INF, NAN, NEG, POS

if TYPE_CHECKING:
    from collections.abc import Iterable


def origins(log: TraceLog, sources: Iterable[int]) -> list[Origin]:
    """Where the non-finite values that the operators `sources` wrote began, in the order of the step.

    Non-finite values that do not lead to these operators are harmless and are left out.
    """
    found: dict[tuple[int, int | None], Origin] = {}
    todo, seen = [s for s in sources if s >= 0], set()
    while todo:
        index = todo.pop()
        if index in seen:
            continue
        seen.add(index)
        hit = log.hits.get(index)
        if hit is None:
            if index in log.rewrites:
                todo.append(log.rewrites[index])  # wrote finite values into a part of a non-finite tensor
            continue
        out = hit.out_bits
        wanted = NAN if out & NAN and any(t.bits & NAN for t in hit.inputs) else NAN | INF
        # a tensor made from Python numbers or numpy reads only itself, unless that is a tensor of the batch
        fresh = hit.name in FRESH
        bad = [t for t in hit.inputs if t.bits & wanted and (not fresh or -t.source in log.disowned)]
        for t in bad:
            if t.source >= 0:
                todo.append(t.source)
            else:
                found[index, t.source] = Origin(hit, outside=t.source, bits=t.bits)
        linked = _through_python(log, hit) if not any(t.bits & NAN for t in bad) and not (fresh and bad) else None
        if linked is not None and linked < 0:
            found[index, linked] = Origin(hit, outside=linked, bits=out)
        elif linked is not None:
            todo.append(linked)
        elif not bad:
            written = bool(hit.constants) and hit.name.strip("_") not in PRODUCTS
            constant = not out & NAN and (written or hit.name in FRESH or hit.name in MAKERS)
            found[index, None] = Origin(hit, bits=out, constant=constant)
        elif (hit.name in ABSORBERS and not out & NAN) or (out & NAN and not any(t.bits & NAN for t in bad)):
            found[index, None] = Origin(hit, bits=out, from_inf=True)
        elif hit.name.strip("_") in LOGARITHMS and out & NEG:  # log(0): no infinity in the input gives -inf
            found[index, None] = Origin(hit, bits=NEG)
    return [found[k] for k in sorted(found, key=lambda k: (k[0], k[1] is None))]


def _through_python(log: TraceLog, hit: Hit) -> int | None:
    """The source of the tensor whose number `item()` carried into the arguments of this operator."""
    numbers = hit.constants
    if not numbers and (hit.name in FRESH or hit.name in MAKERS):
        numbers = [value for bit, value in ((NAN, math.nan), (POS, math.inf), (NEG, -math.inf)) if hit.out_bits & bit]
    for number in numbers:
        for index, value, source in reversed(log.items):
            if index < hit.index and (value == number or (math.isnan(value) and math.isnan(number))):
                return source
    if hit.name not in FRESH or not hit.out_bits & NAN:
        return None
    # tolist() and numpy() leave no trace: assume the last possible operator
    before = [h for i, h in log.hits.items() if i < hit.index]
    return max((h.index for h in [h for h in before if h.out_bits & NAN] or before), default=None)
