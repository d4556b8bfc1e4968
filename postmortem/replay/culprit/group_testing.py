"""Which samples are at fault, in few reruns: guesses are confirmed, and without guesses groups are tested.

Generalised binary splitting finds d bad samples among n in about d log2(n / d) + 2 d reruns (Du and Hwang,
Combinatorial Group Testing). In a large batch a group is run as a small batch, which costs its share; the result is
then confirmed on the whole batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from postmortem.replay.rerun.samples import Samples

    Make = Callable[[Samples], Any]

_LARGE = 16  # batches of at least this size are searched by smaller ones
_FEW = 8  # a small batch is filled up to this many samples: batch statistics need some
_PAIRS = 4  # up to this many samples are examined one by one
_LEAST = 0.2  # cost of a rerun with a very small batch
_SPACING = 0.7  # size of the next group, in mean distances of bad samples: such a group fails about half of the time
_TRACED = 2.0  # cost of a traced rerun

Answer = tuple[list[int] | None, str]


def find_samples(
    size: int,
    guesses: Sequence[list[int]],
    fails: Callable[[Make], bool | None],
    budget: float = 16,
    *,
    odd: Sequence[list[int]] = (),
    read: Callable[[list[int]], list[list[int]]] | None = None,
    first_only: bool = False,
) -> Answer:
    """(samples at fault, how they were found). None instead of the samples if it is all of them, or no particular one.

    guesses: samples that the non-finite rows at the culprit belong to. budget: total cost of the reruns, in
    reruns of the whole batch. fails: ``fails(make)`` runs the step on the batch that the transform ``make(samples)``
    makes and returns whether it still
    fails, None if it could not be run. odd: groups of samples that stand out in the batch. read: ``read(samples)``
    traces the step with these replaced and makes further guesses. first_only: the step ends at the first micro-batch,
    or the first sample, that fails.
    """
    search = _Search(size, fails, budget)
    return search.guessed(guesses, read, first_only) or search.standing_out(odd) or search.by_groups()


class _Search:
    def __init__(self, size: int, fails: Callable[[Make], bool | None], budget: float) -> None:
        self.size, self.fails, self.left = size, fails, float(budget)

    # ---- reruns

    def run(self, make: Make, share: float = 1.0) -> bool | None:
        self.left -= max(share, _LEAST)
        return self.fails(make)

    def replaced(self, bad: Collection[int], healthy: int | Sequence[int]) -> bool | None:
        failed = self.run(lambda s: s.replace(bad, healthy))
        if failed is None:  # another number of rows may not fit where the program wrote them
            failed = self.run(lambda s: s.replace(bad, healthy, keep_lengths=True))
        return failed

    def without(self, out: Collection[int]) -> bool | None:
        return self.run(lambda s: s.drop(out), 1 - len(out) / self.size)

    def few(self, kept: Sequence[int], healthy: int) -> bool | None:
        return self.run(lambda s: s.few(kept, healthy), len(kept) / self.size)

    def rest(self, samples: Collection[int]) -> list[int]:
        inside = set(samples)
        return [i for i in range(self.size) if i not in inside]

    # ---- what points at samples

    def guessed(
        self, guesses: Sequence[list[int]], read: Callable[[list[int]], list[list[int]]] | None, first_only: bool
    ) -> Answer | None:
        known: list[int] = []
        while True:
            for guess in guesses:
                answer = self.guess(sorted({*known, *guess}), partial=first_only)
                if answer is not None:
                    return answer
            if read is None or self.left <= _TRACED:
                return None
            if first_only and guesses:
                grown = sorted({*known, *next(filter(None, guesses), [])})
                if grown == known:
                    return None
                known = grown
            self.left -= _TRACED
            guesses = read(known)
            if not guesses:
                return None
            if not first_only:
                read = None

    def guess(self, bad: list[int], *, partial: bool) -> Answer | None:
        rest = self.rest(bad)
        if not bad or not rest:
            return None
        cured = self.replaced(bad, rest) is False
        if not cured and 1 < len(bad) <= _PAIRS:  # where they are compared, copies of one sample fail as well
            cured = self.run(lambda s: s.replace_each(bad, rest)) is False
        if not cured and not partial and self.without(bad) is False:
            return bad, "read from the non-finite rows at the culprit; without them, the step does not fail"
        if not cured:
            return None
        read = "read from the non-finite rows at the culprit"
        return self.fewer(bad, rest), f"{read}; with a healthy sample instead, the step does not fail"

    def standing_out(self, odd: Sequence[list[int]]) -> Answer | None:
        for group in odd:
            rest = self.rest(group)
            if self.replaced(group, rest[0]) is not False:
                continue
            bad = group if len(group) == 1 else self.split(group, rest)
            if bad != group and not (bad and self.proven(bad, rest[0])):
                if len(group) > _PAIRS:
                    continue  # most of them only look odd
                bad = group  # they fail together
            return bad, "outliers of the batch; with a healthy sample instead, the step does not fail"
        return None

    # ---- group testing

    def by_groups(self) -> Answer:
        size = self.size
        if size < 2:
            return None, "the batch has only one sample"
        probes = sorted({0, size // 2, size - 1})
        alone = {i: self.alone(i) for i in probes}
        healthy = [i for i in probes if alone[i] is False]
        if not healthy:
            if all(alone.values()) and self.without(range(size // 2, size)) and self.without(range(size // 2)):
                return None, (
                    "not known: with copies of any sample that was tried the step fails as well; all are at fault, or "
                    "what the program does with them"
                )
            return self.together()
        if size >= _LARGE and self.run(lambda s: s.only(healthy[:1])):
            return self.together()  # even copies of a healthy sample fail
        for small in (True, False) if size >= _LARGE else (False,):
            bad = self.split(self.rest(healthy[:1]), healthy, small=small)
            if bad and len(bad) < size - 1 and self.proven(bad, healthy[0]):
                return self.fewer(bad, healthy[0]), "found by bisecting the batch"
            if self.left <= 0:
                return None, "not narrowed down within the allowed number of reruns"
        return self.together(healthy[0])

    def alone(self, sample: int) -> bool | None:
        """True if copies of one sample fail, as many as a group holds or, if those cannot be run, a whole batch of
        them."""
        found = self.few([sample] * _FEW, sample) if self.size >= _LARGE else None
        return self.run(lambda s: s.only([sample])) if found is None else found

    def split(self, samples: list[int], healthy: Sequence[int], *, small: bool | None = None) -> list[int] | None:
        """The bad ones of `samples`, which fail together; None if the budget does not suffice.

        A group is run with copies of a healthy sample in place of all others or, with `small`, as a batch of its own,
        filled up with healthy samples.
        """
        small = self.size >= _LARGE if small is None else small
        fine = list(healthy)

        def fails(group: list[int]) -> bool:
            nonlocal small
            found = self.few([*group, *fine[: max(0, _FEW - len(group))]], fine[0]) if small else None
            if found is None:  # a batch of another size may not run
                small = False
                found = self.replaced(self.rest(group), fine[0])
            if found is False:
                fine.extend(group)
            return bool(found)

        bad: list[int] = []
        left, size = list(samples), max(1, len(samples) // 2)
        while left:
            group = left[:size]
            if (bad or len(group) < len(left)) and not fails(group):
                left, size = left[size:], 2 * size
            else:
                while len(group) > 1 and self.left > 0:
                    half = group[: len(group) // 2]
                    if fails(half):
                        group = half
                    else:  # the first half is fine, so the second one fails
                        left, group = left[len(half) :], group[len(half) :]
                bad, left = [*bad, *group], left[1:]
                size = max(1, round(_SPACING * (len(samples) - len(left)) / len(bad)))
            if self.left <= 0:
                return None
        return sorted(bad)

    def proven(self, bad: list[int], healthy: int) -> bool:
        """True if the step is fine without these samples and fails with no others; groups may fail only together."""
        return self.replaced(bad, healthy) is False and self.replaced(self.rest(bad), healthy) is True

    def fewer(self, bad: list[int], healthy: int | Sequence[int]) -> list[int]:
        """`bad` without samples that only look bad because of the copies, or of what samples share: a part whose
        replacement cures, and of that the samples that are needed."""
        while len(bad) > 1 and self.left > 0:
            halves = bad[: len(bad) // 2], bad[len(bad) // 2 :]
            enough = [half for half in halves if self.replaced(half, healthy) is False]
            if len(enough) != 1:
                break  # if either half is enough, they fail together
            bad = enough[0]
        if 2 < len(bad) <= (_PAIRS if self.size >= _LARGE else self.size) and self.left > 0:
            spare = [i for i in bad if self.replaced([b for b in bad if b != i], healthy) is False]
            needed = [i for i in bad if i not in spare]
            if spare and needed and self.replaced(needed, healthy) is False:
                return needed
        return bad

    def together(self, healthy: int | None = None) -> Answer:
        """A smallest set of samples that fails together and without which the step is fine, found by leaving others
        out.

        Delta debugging (Zeller and Hildebrandt 2002). The others become copies of the `healthy` sample; if none is
        known they are dropped, as the fault may lie between samples and copies would create new ones.
        """

        def without(out: list[int]) -> bool | None:
            return self.without(out) if healthy is None else self.replaced(out, healthy)

        kept, parts = list(range(self.size)), 2
        while len(kept) > 2 and self.left > 0:
            length = -(-len(kept) // parts)
            rests = [kept[:i] + kept[i + length :] for i in range(0, len(kept), length)]
            smaller = next((rest for rest in rests if self.left > 0 and without(self.rest(rest))), None)
            if smaller is not None:
                kept, parts = smaller, max(2, min(parts - 1, len(smaller)))
            elif parts >= len(kept):
                break
            else:
                parts = min(len(kept), 2 * parts)
        if len(kept) < self.size and self.left > -2 and without(kept) is False:
            # it also fails with the others in their place, or it depends on how many there are
            if len(kept) > 3 and (len(kept) > self.size // 2 or without(kept[len(kept) // 2 :])):
                return None, "no particular sample: the step fails if enough of them are in the batch"
            # of three, the others may only let it run that far
            needed = [i for i in kept if without([i]) is False] if len(kept) == 3 else []
            kept = needed if 1 < len(needed) < len(kept) else kept
            return kept, "they make the step fail only together; found by leaving out the others"
        return None, "no particular sample"
