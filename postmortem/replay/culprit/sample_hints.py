"""Samples that a traced step points at: from where it went wrong to the nearest tensors whose rows are samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.culprit.group_testing import find_samples
from postmortem.replay.fixes.sanitize_input import LARGEST_INPUT, sanitized
from postmortem.replay.rerun.candidates import candidates
from postmortem.replay.step.batches import tensor_map
from postmortem.replay.step.runner import Overrides

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from postmortem.core.culprit import Phase
    from postmortem.replay.culprit.group_testing import Make
    from postmortem.replay.rerun.candidates import Candidate
    from postmortem.replay.rerun.reruns import Session, Traced
    from postmortem.replay.rerun.samples import Samples
    from postmortem.replay.trace.records import Hit

_READINGS = 3  # of one shape: its dimensions of the batch's size, rows of samples in a row, samples in turn


class Readings:
    """`samples` of the step of `session`; `names`: id of a module -> its qualified name; `trace(change=…, samples=…)` is a traced rerun of
    the changed batch that notes the rows of every operator that is not finite."""

    def __init__(self, session: Session, samples: Samples, names: Mapping[int, str], trace: Callable[..., Traced]) -> None:
        self.session, self.samples, self.names, self.trace = session, samples, names, trace

    def find(self, phase: Phase, chosen: list[Candidate], traced: Traced) -> tuple[list[int] | None, str]:
        """The samples at fault where the step went wrong at the candidates `chosen`, as `find_samples` answers."""
        s, stage = self.samples, traced.stage or "param"
        budget = 36 if stage == "loss" and self.session.whole else 14  # up to the loss is a third of a step
        odd = s.odd(self.session.batch)

        def fails(make: Make) -> bool | None:
            return self.session.fails(Overrides(batch=make(s)), at=stage, alike=True)

        if phase == "data":
            bad = s.bad_rows(self.session.batch, lambda t: ~torch.isfinite(t))
            return find_samples(s.size, [bad], fails, budget, odd=odd) if bad else (None, "what is not finite belongs to no sample")
        backward = any(hit.backward for c in chosen for hit in c.hits)
        first_only = traced.raised is not None or (traced.stage == "loss" and len(self.samples.parts) > 1)

        def read(known: list[int]) -> list[list[int]]:
            other = self._again(known, gradients=backward)
            if backward and other.raised is not None and traced.raised is None:  # a step may write into its batch, if that needs no gradient
                other = self._again(known, gradients=False)
            keys = {c.key for c in chosen}
            guesses = self.at([c for c in candidates(other, self.names) if c.key in keys], other, to_the_end=True) if other.stage is not None else []
            return [self._odd_gradients(other.batch), *guesses] if backward else guesses

        found, how = find_samples(s.size, self.at(chosen, traced), fails, budget, odd=odd, read=read, first_only=first_only)
        if found and 1 < s.rows == len(found) < s.size and found[0] % s.rows == 0 and found[-1] == found[0] + s.rows - 1:
            rest = [i for i in range(s.size) if i not in found]
            others = {rest[0], rest[len(rest) // 2], rest[-1]}  # which of them are fine is not known
            if not all(fails(lambda s, other=other: s.replace(found[:1], other)) for other in others):  # type: ignore[misc]
                return None, f"micro-batch {found[0] // s.rows} as a whole makes the step fail, no sample in particular"
        return found, how

    def _again(self, known: list[int], *, gradients: bool) -> Traced:
        """A closer look at the step, with the samples `known` replaced."""
        raised = self.session.raised
        other = self.trace(change=lambda batch: self._prepared(batch, known, gradients=gradients), samples=self.samples.rows)
        self.session.raised = raised
        return other

    def _prepared(self, batch: Any, known: list[int], *, gradients: bool) -> Any:
        """The batch with the samples `known` replaced; with `gradients`, the way back leads to the samples themselves."""
        fine = [i for i in range(self.samples.size) if i not in known]
        batch = self.samples.replace(known, fine)(batch) if known else batch
        return tensor_map(lambda t: t.detach().requires_grad_() if t.is_floating_point() else t, batch) if gradients else batch

    def _odd_gradients(self, batch: Any) -> list[int]:
        """The samples whose own gradient is not finite, where others' is."""
        gradients = tensor_map(lambda t: torch.zeros_like(t) if t.grad is None else t.grad, batch)
        bad = self.samples.bad_rows(gradients, lambda t: ~torch.isfinite(t))
        return bad if len(bad) < self.samples.size else []

    def at(self, chosen: list[Candidate], traced: Traced, *, to_the_end: bool = False) -> list[list[int]]:
        """What the rows say of the samples, the smallest set first: each operator is followed until rows of some samples are seen.

        to_the_end: also what the last such rows on the way say: those before may be in another order.
        """
        readers: dict[int, list[Hit]] = {}
        for hit in traced.tracer.hits.values():
            for source in {t.source for t in hit.inputs if t.bits}:
                readers.setdefault(source, []).append(hit)
        todo = [hit for c in chosen for hit in c.hits]
        seen = {hit.index for hit in todo}
        found: list[list[list[int]]] = []
        last: list[int] = []
        after = -1
        behind: set[int] = set()
        while todo:
            hit = todo.pop()
            here = [g for g in self.samples.guesses(hit.shape, hit.rows, self._micro(hit)) if 0 < len(g) < self.samples.rows]
            if here and hit.index not in behind:
                found.append(here)
            if here and hit.index > after:
                last, after = here[0], hit.index
            if here and not to_the_end:
                continue
            further = [h for h in readers.get(hit.index, ()) if h.index not in seen]
            seen.update(h.index for h in further)
            behind.update(h.index for h in further if here or hit.index in behind)
            todo += further
        if 2 * len(last) > self.samples.rows:
            last = []  # a running sum, a sort: rather spread over samples than theirs
        merged = {tuple(sorted({i for of in found for i in of[min(k, len(of) - 1)]})) for k in range(_READINGS)} if found else set()
        return [list(g) for g in sorted(merged | {tuple(last)} if last else merged, key=lambda g: (len(g), g))]

    def _micro(self, hit: Hit) -> int:
        """The micro-batch that an operator worked on."""
        return (hit.passes - hit.backward) % len(self.samples.parts)


def are_outliers(named: list[int] | None, session: Session, samples: Samples) -> bool:
    """Whether the named samples hold values beyond 1e4 and far beyond the others', and clamping them cures the step."""
    if not named:
        return False
    large = samples.bad_rows(session.batch, lambda t: t.abs() > LARGEST_INPUT)
    if not large or not set(large) <= set(named):
        return False
    return session.fails(Overrides(batch=sanitized)) is False
