"""Which samples are at fault, read from the nearest tensors after the culprit whose rows are samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.culprit.group_testing import find_samples
from postmortem.replay.fixes.sanitize_input import LARGEST_INPUT, sanitized
from postmortem.replay.rerun.candidates import candidates
from postmortem.replay.step.batches import tensor_map, tensors_in
from postmortem.replay.step.overrides import Overrides
from postmortem.replay.trace.operators import FRESH

if TYPE_CHECKING:
    from postmortem.core.culprit import Phase
    from postmortem.replay.culprit.group_testing import Make
    from postmortem.replay.culprit.investigation import Investigation
    from postmortem.replay.rerun.candidates import Candidate
    from postmortem.replay.rerun.session import Traced
    from postmortem.replay.trace.records import Hit

_ROWS = 5
_READ = "read from the non-finite rows at the culprit, not confirmed by a rerun"
_READINGS = 3  # ways to read one shape: dimensions of the batch's size, consecutive rows of samples, samples in turn


def samples_in_words(samples: list[int]) -> str:
    """ "sample 7", "samples 7, 9"."""
    return f"sample{'' if len(samples) == 1 else 's'} {', '.join(map(str, samples))}"


class SampleHints:
    """Which samples the non-finite rows belong to, and whether replacing these samples cures the step."""

    def __init__(self, case: Investigation) -> None:
        self.case, self.reruns, self.samples = case, case.reruns, case.samples

    def find(self, phase: Phase, chosen: list[Candidate]) -> tuple[list[int] | None, str]:
        """The samples at fault at the candidates `chosen`, and how they were found; see `find_samples`."""
        s, batch, traced = self.samples, self.reruns.batch, self.case.traced
        stage = self.case.stage
        budget = 36 if stage == "loss" and self.reruns.whole else 14  # a run up to the loss is a third of a step

        def fails(make: Make) -> bool | None:
            return self.reruns.fails(Overrides(batch=make(s)), at=stage, alike=True)

        if self.reruns.once:
            bad = s.bad_rows(batch, lambda t: ~torch.isfinite(t)) if phase == "data" else []
            guess: list[int] | None = bad or next(iter(self.at(chosen, traced)), None)  # the likeliest reading
            return guess, "read from the non-finite rows, not confirmed by a rerun" if guess else ""
        if phase == "data":
            bad = s.bad_rows(batch, lambda t: ~torch.isfinite(t))
            if not bad:
                return None, "the non-finite values do not belong to a sample"
            return find_samples(s.size, [bad], fails, budget, odd=s.odd(batch))
        backward = any(hit.backward for c in chosen for hit in c.hits)

        def read(known: list[int]) -> list[list[int]]:
            return self._closer(chosen, known, backward=backward)

        first_only = traced.raised is not None or (stage == "loss" and len(s.parts) > 1)
        guesses = self.at(chosen, traced)
        found, trail = find_samples(s.size, guesses, fails, budget, odd=s.odd(batch), read=read, first_only=first_only)
        if found is None and guesses and made_outside(self.case, chosen[0].hits[0]):
            return guesses[0], f"{_READ}: no operation of the step made the tensor, so its samples were not replaced"
        if found is None:
            return self._row_read(chosen[0].hits[0], trail)
        if self._is_micro_batch(found):
            rest = [i for i in range(s.size) if i not in found]
            others = {rest[0], rest[len(rest) // 2], rest[-1]}  # it is unknown which of them are healthy
            if not all(fails(lambda s, other=other: s.replace(found[:1], other)) for other in others):  # type: ignore[misc]
                return None, f"micro-batch {found[0] // s.rows} as a whole makes the step fail, no particular sample"
        return found, trail

    def _row_read(self, hit: Hit, trail: str) -> tuple[list[int] | None, str]:
        """Non-finite rows of the culprit where other tensors of the batch have as many rows: its first tensors may have
        a row for each node of graphs, and the others one for each graph.

        Nodes cannot be left out. The graph is named as the sample where the batch also holds numbers of nodes.
        """
        rows, n = hit.rows.get(0, []), hit.shape[0] if hit.shape else 0
        parts = [t for t in tensors_in(self.reruns.batch) if t.dim()]
        if n == self.samples.rows or n not in {t.shape[0] for t in parts}:
            return None, trail
        if not 0 < 2 * len(rows) <= n or len(rows) > _ROWS:
            return None, trail
        indexed = any(t.dtype in (torch.int32, torch.int64) for t in parts if t.shape[0] != n)
        if n < self.samples.rows and indexed:
            self.samples.can_be_dropped = False
            return rows, f"{_READ}: other tensors of the batch have {n} rows as well"
        which = f"row {rows[0]}" if len(rows) == 1 else f"rows {', '.join(map(str, rows))}"
        told = f"the culprit makes {which} of {n} non-finite, and other tensors of the batch have {n} rows as well"
        owners = next(self.samples.guesses(hit.shape, hit.rows, self._micro(hit)), [])
        if owners:
            told += f"; by their lengths {'it is' if len(rows) == 1 else 'they are'} in {samples_in_words(owners)}"
        return None, f"{trail}; {told}"

    def _is_micro_batch(self, found: list[int]) -> bool:
        rows = self.samples.rows
        whole = 1 < rows == len(found) < self.samples.size
        return whole and found[0] % rows == 0 and found[-1] == found[0] + rows - 1

    def _closer(self, chosen: list[Candidate], known: list[int], *, backward: bool) -> list[list[int]]:
        """Guesses from a closer look at the step, with the samples `known` replaced."""
        other = self._again(known, gradients=backward)
        if backward and other.raised is not None and self.case.traced.raised is None:
            # the step writes into its batch, which must not need a gradient
            other = self._again(known, gradients=False)
        guesses: list[list[int]] = []
        if other.stage is not None:
            keys = {c.key for c in chosen}
            same = [c for c in candidates(other) if c.key in keys]
            guesses = self.at(same, other, to_the_end=True)
        return [other.seen or [], *guesses] if backward else guesses

    def _again(self, known: list[int], *, gradients: bool) -> Traced:
        raised = self.reruns.raised
        other = self.case.trace_once(
            change=lambda batch: self._prepared(batch, known, gradients=gradients),
            samples=self.samples.rows,
            after=self._odd_gradients if gradients else None,
        )
        self.reruns.raised = raised
        return other

    def _prepared(self, batch: Any, known: list[int], *, gradients: bool) -> Any:
        """The batch with the samples `known` replaced; with `gradients`, the samples get gradients of their own."""
        fine = [i for i in range(self.samples.size) if i not in known]
        batch = self.samples.replace(known, fine)(batch) if known else batch
        if not gradients:
            return batch
        return tensor_map(lambda t: t.detach().requires_grad_() if t.is_floating_point() else t, batch)

    def _odd_gradients(self, batch: Any) -> list[int]:
        """The samples with a non-finite gradient, if not all have one."""
        gradients = tensor_map(lambda t: torch.zeros_like(t) if t.grad is None else t.grad, batch)
        bad = self.samples.bad_rows(gradients, lambda t: ~torch.isfinite(t))
        return bad if len(bad) < self.samples.size else []

    def at(self, chosen: list[Candidate], traced: Traced, *, to_the_end: bool = False) -> list[list[int]]:
        """The samples that non-finite rows may belong to, the smallest set first: each operator is followed until
        there is a tensor whose rows are samples.

        to_the_end: also use the last such rows on the way, as earlier ones may be in another order.
        """
        readers: dict[int, list[Hit]] = {}
        for hit in traced.log.hits.values():
            for source in {t.source for t in hit.inputs if t.bits}:
                readers.setdefault(source, []).append(hit)
        todo = [hit for c in chosen for hit in c.hits]
        seen = {hit.index for hit in todo}
        found: list[list[list[int]]] = []
        last: list[int] = []
        last_index = -1
        followed: set[int] = set()
        """Operators that read from one whose rows were used already."""
        while todo:
            hit = todo.pop()
            guesses = self.samples.guesses(hit.shape, hit.rows, self._micro(hit))
            here = [g for g in guesses if 0 < len(g) < self.samples.rows]
            if here and hit.index not in followed:
                found.append(here)
            if here and hit.index > last_index:
                last, last_index = here[0], hit.index
            if here and not to_the_end:
                continue
            further = [h for h in readers.get(hit.index, ()) if h.index not in seen]
            seen.update(h.index for h in further)
            followed.update(h.index for h in further if here or hit.index in followed)
            todo += further
        merged = set()
        if found:
            merged = {tuple(sorted({i for of in found for i in of[min(k, len(of) - 1)]})) for k in range(_READINGS)}
        if last and 2 * len(last) <= self.samples.rows:
            # more are rather spread over samples, by a running sum or a sort
            merged.add(tuple(last))
        return [list(g) for g in sorted(merged, key=lambda g: (len(g), g))]

    def _micro(self, hit: Hit) -> int:
        """The micro-batch that an operator worked on."""
        return (hit.passes - hit.backward) % len(self.samples.parts)


def made_outside(case: Investigation, hit: Hit) -> bool:
    """Whether an operator read non-finite values that no operation of the step made, and that are no part of the batch,
    the model or the optimizer."""
    known = case.traced.known
    return hit.name not in FRESH and any(t.bits and t.source < 0 and -t.source not in known for t in hit.inputs)


def are_outliers(named: list[int] | None, case: Investigation) -> bool:
    """True if the named samples hold values beyond 1e4 and far beyond the others', and clamping these cures the
    step."""
    if not named:
        return False
    if case.reruns.once:
        return False
    large = case.samples.bad_rows(case.reruns.batch, lambda t: t.abs() > LARGEST_INPUT)
    if not large or not set(large) <= set(named):
        return False
    return case.reruns.fails(Overrides(batch=sanitized)) is False
