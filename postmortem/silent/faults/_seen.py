"""What a line of the checklist that is ok is based on, in numbers; or that the program has nothing of the kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postmortem.silent.facts import LossComputed
from postmortem.silent.faults.base import NoneSeen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from postmortem.silent.look import Look


def some(found: Sequence[Any], one: str, several: str) -> str:
    """`1 call of softmax`, `3 calls of softmax`. Raises NoneSeen where there are none."""
    if not found:
        raise NoneSeen(f"none seen: no {one}")
    return f"{len(found):,} {one if len(found) == 1 else several}"


def of(look: Look, kind: type, one: str, several: str, which: Callable[[Any], Any] | None = None) -> str:
    """`some` of the facts of a kind."""
    every: list[Any] = look.of(kind)
    return some([fact for fact in every if which is None or which(fact)], one, several)


def losses(look: Look, *names: str) -> str:
    """How often losses of these functions were looked at that train."""
    known = ", ".join(names)
    found = [x for x in look.of(LossComputed) if x.name in names and x.trained]
    return some(found, f"loss ({known})", f"losses ({known})")


def between(values: Iterable[float]) -> str:
    """`0.1 to 3`, or the one value."""
    known = list(values)
    low, high = min(known), max(known)
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
