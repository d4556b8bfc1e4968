"""Which of the candidates it was: each is repaired in a rerun, and the one that cures is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.fixes.sanitize_input import sanitized
from postmortem.replay.rerun.candidates import Candidate, candidates
from postmortem.replay.step.runner import Overrides
from postmortem.replay.trace.tensors import NAN
from postmortem.replay.trace.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from postmortem.core.culprit import Established
    from postmortem.replay.rerun.reruns import Session, Traced
    from postmortem.replay.rerun.samples import Samples

_ROUNDS, _AT_MOST = 4, 8

Mends = dict[int, "Callable[[torch.Tensor], Any]"]


class Confirm:
    """Chooses among the candidates of a traced step. `names`: id of a module -> its qualified name; `trace(repair,
    prepare)` traces a rerun; `how` is where the findings are noted."""

    def __init__(self, session: Session, samples: Samples, names: Mapping[int, str], trace: Callable[..., Traced], how: list[str]) -> None:
        self.session, self.samples, self.names, self.trace, self.how = session, samples, names, trace, how

    def choose(self, traced: Traced) -> tuple[list[Candidate], Established]:
        """The culprit first. Where repairing one origin only uncovers another one, the step is traced again with it repaired."""
        assert traced.stage is not None
        self.stage = traced.stage
        first = traced
        pool: dict[Any, Candidate] = {}
        at_once: set[Any] = set()
        for _ in range(_ROUNDS):
            met = candidates(traced, self.names)
            for c in met:
                pool.setdefault(c.key, c).merge(c)
            every = sorted(pool.values(), key=lambda c: c.index)
            wanted = [c for c in every if not c.meant] or every
            # one that came to light by repairing others cannot be told, alone, from what hides them
            at_once = {c.key for c in wanted} if traced is first else at_once
            curing = [c for c in wanted[:_AT_MOST] if c.key in at_once and self._cures([c])]
            best = self._preferred(curing, wanted)
            if best is not None:
                best = self._in_backward(best, wanted)
                if (sides := self._both_sides(best, wanted)) is not None:
                    self.how.append(f"{len(sides)} origins whose infinities meet in one {best.op}; repaired together, the {self.stage} is finite")
                    return sides, "cured"
                which = "the only origin" if len(wanted) == 1 else f"one of {len(wanted)} origins"
                self.how.append(f"{which} of what is not finite; repaired, the {self.stage} is finite")
                return [best], "cured"
            if len(wanted) > 1 and self._cures(wanted):
                self.how.append(f"{len(wanted)} origins of what is not finite, which only together cure the {self.stage}; the first is named")
                return wanted, "cured"
            if not wanted or not met:
                break
            traced = self.trace(self._mends(wanted), self._preparation(wanted))
            if traced.stage is None or traced.stage != first.stage:
                break
        chosen = sorted((c for c in pool.values() if not c.meant), key=lambda c: c.index) or list(pool.values())
        if chosen:
            self.how.append("the earliest origin of what is not finite; repairing it alone does not cure the step")
        return chosen[:1], "observed"

    def _preferred(self, curing: list[Candidate], every: list[Candidate]) -> Candidate | None:
        """The earliest origin that cures, except a pole whose infinities healthy samples meet as well: those are meant."""
        for c in curing:
            if c.pole and any(self._harmless_elsewhere(later) for later in every if later.from_inf and later.index > c.index):
                continue
            return c
        return curing[0] if curing else None

    def _in_backward(self, best: Candidate, every: list[Candidate]) -> Candidate:
        """Where the loss took the infinity of a pole, or of a sum over masked values only, and the derivative at the same place
        failed: the derivative."""
        taken = best.pole or (best.from_inf and not best.bits & NAN)
        if self.stage != "grad" or not taken or best.hits[0].backward:
            return best
        here = best.hits[0].where
        same = (c for c in every if c.hits[0].backward and c.op == best.op and (c.hits[0].where.code, c.hits[0].where.line) == (here.code, here.line))
        return next(same, best)

    def _both_sides(self, best: Candidate, every: list[Candidate]) -> list[Candidate] | None:
        """The origins of two infinities that only meet in `best` (inf - inf, 0 times inf), if they are no healthy samples' as well:
        each alone leaves the other one, so that neither cures."""
        before = [c for c in every if c.index < best.index and c.outside is None and not (c.bits & NAN or c.from_inf)][:_AT_MOST]
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
        """Whether the infinities that an operator made NaN of also reached samples that are fine: with those in which it
        made NaN replaced by such a one, the step is cured."""
        hit = later.hits[0]
        bad = next(iter(self.samples.guesses(hit.shape, hit.rows)), None)
        if bad is None or len(bad) >= self.samples.size:
            return False
        met = (next(iter(self.samples.guesses(t.shape, t.rows)), None) for t in hit.inputs if t.bits)
        fine = [i for rows in met if rows is not None for i in rows if i not in bad]
        return bool(fine) and self.session.fails(Overrides(batch=self.samples.replace(bad, fine[0])), at=self.stage) is False

    def _mends(self, chosen: list[Candidate], forward: Callable[[torch.Tensor], Any] | None = None) -> Mends:
        return {hit.index: (_zero if hit.backward else forward or _spread) for c in chosen if c.outside is None for hit in c.hits}

    def _preparation(self, chosen: list[Candidate]) -> Callable[[], None]:
        kinds = {c.outside for c in chosen if c.outside is not None}

        def prepare() -> None:
            with torch.no_grad():
                for kind, name in kinds:
                    tensors = (
                        [t for n, t in self.session.state_tensors().items() if n == name]
                        if kind == "parameter"
                        else [t for n, t in self.session.optimizer_tensors() if n == name and t.is_floating_point()]
                        if kind == "optimizer"
                        else []
                    )
                    for t in tensors:
                        t.nan_to_num_(0.0, 0.0, 0.0)

        return prepare

    def _cures(self, chosen: list[Candidate]) -> bool:
        clean = sanitized if any(c.outside is not None and c.outside[0] == "batch" for c in chosen) else None
        overrides = Overrides(batch=clean)
        # what raises may ask for more than finite values: of a sign, of a sum
        for mend in (_spread, _alike) if self.session.raised is not None else (_spread,):
            tracer = Tracer(repair=self._mends(chosen, mend), look=False)
            if self.session.fails(overrides, at=self.stage, modes=(tracer,), prepare=self._preparation(chosen)) is False:
                return True
        return False


def _zero(t: torch.Tensor) -> None:
    t.nan_to_num_(0.0, 0.0, 0.0)


def _spread(t: torch.Tensor) -> None:
    """Puts harmless, distinct values where a tensor is not finite: equal ones would make the next variance zero."""
    good = torch.isfinite(t)
    filling = torch.linspace(0.25, 0.75, t.numel(), device=t.device, dtype=torch.float32).to(t.dtype).view(t.shape)
    t.copy_(torch.where(good, t, filling))


def _alike(t: torch.Tensor) -> None:
    """Puts values that the tensor has elsewhere where it is not finite, or zeros where it has none."""
    good = torch.isfinite(t)
    known = t[good] if good.any() else t.new_zeros(1)
    t[~good] = known[torch.arange(int((~good).sum()), device=t.device) % len(known)]
