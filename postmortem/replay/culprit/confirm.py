"""Which candidate is the culprit: the one whose output, when masked in a rerun, leaves the step finite."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.fixes.sanitize_input import sanitized
from postmortem.replay.rerun.candidates import Candidate, candidates
from postmortem.replay.step.overrides import Overrides
from postmortem.replay.trace.operators import canonical
from postmortem.replay.trace.tensors import NAN
from postmortem.replay.trace.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from postmortem.core.culprit import Established
    from postmortem.replay.culprit.investigation import Investigation
    from postmortem.replay.rerun.session import Traced

_ROUNDS, _AT_MOST = 4, 8
_NAMED = 4  # other candidates in a note

Mends = dict[int, "Callable[[torch.Tensor], Any]"]
_FINITE = {
    "loss": "the loss is finite",
    "grad": "the gradients are finite",
    "param": "parameters and buffers are finite",
}


class Confirm:
    """Chooses among the candidates of a traced step, and notes in the trail what decided."""

    def __init__(self, case: Investigation) -> None:
        self.case, self.reruns, self.samples = case, case.reruns, case.samples

    def choose(self, traced: Traced) -> tuple[list[Candidate], Established]:
        """The candidates at fault, the culprit first. If masking one candidate only uncovers another, the step is
        traced again with the first one masked."""
        assert traced.stage is not None
        self.stage = traced.stage
        if self.reruns.once:
            return self._first(candidates(traced)), "observed"
        first = traced
        pool: dict[Any, Candidate] = {}
        at_once: set[Any] = set()
        for _ in range(_ROUNDS):
            met = candidates(traced)
            for c in met:
                pool.setdefault(c.key, c).merge(c)
            every = sorted(pool.values(), key=lambda c: c.index)
            wanted = [c for c in every if not c.meant] or every
            # one that was only found after others were masked cannot be judged separately from them
            at_once = {c.key for c in wanted} if traced is first else at_once
            if (chosen := self._curing(wanted, at_once)) is not None:
                return chosen, "cured"
            if not wanted or not met:
                break
            traced = self.case.trace(self._mends(wanted), _outside(wanted))
            if traced.stage is None or traced.stage != first.stage:
                break
        return self._first(pool.values(), "; masking it alone does not cure the step"), "observed"

    def _first(self, found: Iterable[Candidate], tried: str = "") -> list[Candidate]:
        """The earliest candidate that is not meant, or else the earliest."""
        earliest = sorted((c for c in found if not c.meant), key=lambda c: c.index) or list(found)
        if earliest:
            self._note(f"the first place where non-finite values appear{tried}")
        return earliest[:1]

    def _curing(self, wanted: list[Candidate], at_once: set[Any]) -> list[Candidate] | None:
        """The candidates that cure the step when they are masked, alone or together; None if there are none."""
        curing = [c for c in wanted[:_AT_MOST] if c.key in at_once and self._cures([c])]
        best = self._preferred(curing, wanted)
        finite = _FINITE[self.stage]
        if best is not None:
            best = self._in_backward(best, wanted)
            if (sides := self._both_sides(best, wanted)) is not None:
                met = f"infinities from {len(sides)} operations meet in one {best.op}"
                self._note(f"{met}; with all their outputs masked, {finite}")
                return sides
            self._note(f"{_which(best, wanted)}, {finite}")
            return [best]
        if len(wanted) > 1 and self._cures(wanted):
            masked = f"only with all of them masked, {finite}; the first is named"
            self._note(f"{len(wanted)} {_places(wanted)}; {masked}")
            return wanted
        return None

    def _note(self, message: str) -> None:
        self.case.trail.append(message)

    def _preferred(self, curing: list[Candidate], every: list[Candidate]) -> Candidate | None:
        """The earliest candidate that cures, except a pole whose infinities healthy samples have as well: those are
        intended."""
        for c in curing:
            if c.pole and any(
                self._harmless_elsewhere(later) for later in every if later.from_inf and later.index > c.index
            ):
                continue
            return c
        return curing[0] if curing else None

    def _in_backward(self, best: Candidate, every: list[Candidate]) -> Candidate:
        """The derivative at the same place, if that failed and the loss itself tolerated the infinity of `best` (a
        pole, or a sum over masked values only); else `best`."""
        taken = best.pole or (best.from_inf and not best.bits & NAN)
        if self.stage != "grad" or not taken or best.hits[0].backward:
            return best

        def place(c: Candidate) -> tuple[Any, ...]:
            at = c.hits[0].where
            return c.op, at.file, at.function, at.line

        return next((c for c in every if c.hits[0].backward and place(c) == place(best)), best)

    def _both_sides(self, best: Candidate, every: list[Candidate]) -> list[Candidate] | None:
        """The sources of the infinities that meet in `best` (inf - inf, 0 * inf), where masking one leaves the other,
        so that none cures alone; None if healthy samples have them as well."""
        before = [c for c in every if c.index < best.index and c.outside is None and not (c.bits & NAN or c.from_inf)]
        before = before[:_AT_MOST]
        if not (best.from_inf and best.bits & NAN) or best.hits[0].backward or len(before) < 2:
            return None
        if self._harmless_elsewhere(best) or not self._cures(before):
            return None
        needed = before
        for c in before if len(before) > 2 else []:
            others = [n for n in needed if n is not c]
            needed = others if others and self._cures(others) else needed
        return needed

    def _harmless_elsewhere(self, later: Candidate) -> bool:
        """True if healthy samples carry the same infinities: replacing the samples in which this operator produced NaN
        by a healthy one cures the step."""
        hit = later.hits[0]
        bad = next(iter(self.samples.guesses(hit.shape, hit.rows)), None)
        if bad is None or len(bad) >= self.samples.size:
            return False
        met = (next(iter(self.samples.guesses(t.shape, t.rows)), None) for t in hit.inputs if t.bits)
        fine = [i for rows in met if rows is not None for i in rows if i not in bad]
        if not fine:
            return False
        return self.reruns.fails(Overrides(batch=self.samples.replace(bad, fine[0])), at=self.stage) is False

    def _mends(self, chosen: list[Candidate], forward: Callable[[torch.Tensor], Any] | None = None) -> Mends:
        return {
            hit.index: (_zero if hit.backward else forward or _spread)
            for c in chosen
            if c.outside is None
            for hit in c.hits
        }

    def _cures(self, chosen: list[Candidate]) -> bool:
        clean = sanitized if any(c.outside is not None and c.outside[0] == "batch" for c in chosen) else None
        overrides = Overrides(batch=clean)
        # a check in the user's code may require more than finite values: a sign, a sum
        for mend in (_spread, _alike) if self.reruns.raised is not None else (_spread,):
            tracer = Tracer(repair=self._mends(chosen, mend), look=False)
            if self.reruns.fails(overrides, at=self.stage, modes=(tracer,), mask=_outside(chosen)) is False:
                return True
        return False


def _outside(chosen: list[Candidate]) -> frozenset[tuple[str, str]]:
    """The tensors from outside the step that are masked before a rerun."""
    return frozenset(c.outside for c in chosen if c.outside is not None)


def _places(wanted: list[Candidate]) -> str:
    if all(c.outside is None for c in wanted):
        return "operations first produce an infinity or a NaN"
    return "places where non-finite values first appear"


def _which(best: Candidate, wanted: list[Candidate]) -> str:
    """`best` among the candidates, and what was done to it, as the beginning of a sentence."""
    whose = "the culprit's" if len(wanted) > 1 else "its"
    masked = f"with {whose} output masked" if best.outside is None else "with its values masked"
    if len(wanted) > 1:
        others = [_named(c) for c in wanted if c is not best]
        known = all(others) and len(others) <= _NAMED
        named = f": the culprit and {', '.join(others)}" if known else ", the culprit among them"
        return f"{len(wanted)} {_places(wanted)}{named}; {masked}"
    if best.outside is None:
        return f"the only operation that first produces an infinity or a NaN; {masked}"
    kind, name = best.outside
    where = {"batch": "the batch", "optimizer": f"the optimizer state of {name}"}.get(kind, name)
    return f"non-finite values first appear in {where} only; {masked}"


def _named(c: Candidate) -> str:
    """A candidate in a few words: "div in the backward pass of train.py:33"; empty where nothing of it is known."""
    if c.outside is not None:
        kind, name = c.outside
        return "the batch" if kind == "batch" else f"{kind} {name}"
    if not c.op:
        return ""
    at = c.hits[0].where
    place = f"{os.path.basename(at.file)}:{at.line}" if at.file else ""
    if c.hits[0].backward:
        return f"the derivative of {canonical(c.op)}{f' at {place}' if place else ''}"
    return f"{canonical(c.op)}{f' at {place}' if place else ''}"


def _zero(t: torch.Tensor) -> None:
    t.nan_to_num_(0.0, 0.0, 0.0)


def _spread(t: torch.Tensor) -> None:
    """Replaces non-finite values by finite, distinct ones: equal values would make the next variance zero."""
    good = torch.isfinite(t)
    filling = torch.linspace(0.25, 0.75, t.numel(), device=t.device, dtype=torch.float32).to(t.dtype).view(t.shape)
    t.copy_(torch.where(good, t, filling))


def _alike(t: torch.Tensor) -> None:
    """Replaces non-finite values by finite ones of the same tensor, or by zeros if it has none."""
    good = torch.isfinite(t)
    known = t[good] if good.any() else t.new_zeros(1)
    t[~good] = known[torch.arange(int((~good).sum()), device=t.device) % len(known)]
