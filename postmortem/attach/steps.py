"""Maps ticks to logged steps, by comparing the computed losses with the logged ones.

A log counts what it likes: updates, iterations with several updates (a GAN), every tenth step, with or without the
steps of a former process. So the losses decide. Every backward pass of the program gave one; a logged value is one of
them, the sum or the mean of a few that follow each other (accumulation, means between log lines), to the digits that
the log shows.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from postmortem.attach.by_value import REGULAR, can_tell, different
from postmortem.attach.uneven import numbers_of
from postmortem.attach.uneven import results as results_of
from postmortem.core.culprit import Fidelity
from postmortem.replay.roll.fidelity import ANOTHER_SETUP, LoggedLoss, candidates, compare
from postmortem.replay.step.result import StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from postmortem.core.series import Series
    from postmortem.core.view import View

_MOST = 16
"""Backward passes of one logged step that are tried."""
_CLOSE = 1e-5
"""Relative difference up to which a replayed loss may be a logged one: of other kernels, or a rounded multiple."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One backward pass: its tick, and the loss at which it began."""

    tick: int
    loss: float


@dataclass(frozen=True, slots=True)
class Way:
    """How `group` losses of backward passes make the value of one logged step: all of them, or that at `at`."""

    group: int
    at: int | None
    name: str

    def values(self, losses: Sequence[float]) -> list[float]:
        """The values of the whole groups, and of a last one that is not whole but already non-finite."""
        made = []
        for start in range(0, len(losses), self.group):
            part = list(losses[start : start + self.group])
            if self.at is not None:
                part = part[self.at : self.at + 1]
                made += part
            elif len(part) == self.group or not all(map(math.isfinite, part)):
                made.append(_WAYS[self.name](part))
        return made


_WAYS: dict[str, Callable[[list[float]], float]] = {
    "sum": math.fsum,
    "mean": lambda part: math.fsum(part) / len(part),
    "last, undivided": lambda part: part[-1] * len(part),
}


@dataclass(frozen=True, slots=True)
class Mapping:
    """Group number k of backward passes is the logged step ``first + k``.

    uneven: the logged step of each pass, where their number differs from step to step; by: the loss that shows it.
    """

    way: Way
    first: int
    passes: tuple[Pass, ...]
    uneven: tuple[int, ...] = ()
    by: LoggedLoss | None = None

    def numbered(self, passes: Sequence[Pass] | None = None) -> list[tuple[int, Pass]]:
        """Each backward pass with the logged step to which it belongs; `passes` are those of another run of the same
        program. Where their number differs from step to step, passes beyond those of this run have no step."""
        each = self.passes if passes is None else passes
        numbers = self.uneven or [self.first + i // self.way.group for i in range(len(each))]
        return list(zip(numbers, each, strict=False))

    def step_of(self, tick: int) -> int | None:
        """The logged step of a tick; for one without a backward pass of its own that of the last before it."""
        return next((step for step, p in reversed(self.numbered()) if p.tick <= tick), None)

    def with_later(self, passes: Sequence[Pass]) -> Mapping:
        """With the passes of this process in later ticks than those of the rank whose losses the log holds."""
        last = max((p.tick for p in self.passes), default=-1)
        later = [p for p in passes if p.tick > last] if not self.uneven else []
        return replace(self, passes=(*self.passes, *later)) if later else self

    def last_whole(self, ticks: int) -> int | None:
        """The last logged step all of whose backward passes belong to ticks that have ended; `ticks` of them have."""
        ended = sum(p.tick < ticks for p in self.passes)
        if self.uneven:
            later = min(self.uneven[ended:], default=None)
            return max((step for step in self.uneven[:ended] if later is None or step < later), default=None)
        return self.first + ended // self.way.group - 1 if ended >= self.way.group else None


def ways(passes: Sequence[Pass]) -> Iterator[Way]:
    """What may make a logged value, the likeliest first."""
    per_tick = Counter(p.tick for p in passes).most_common(1)
    usual = per_tick[0][1] if per_tick else 1
    groups = dict.fromkeys([usual, *(usual * k for k in range(2, 9)), *range(1, _MOST + 1)])
    for group in groups:
        if group == 1:
            yield Way(1, 0, "")
            continue
        yield from (Way(group, None, name) for name in _WAYS)
        yield from (Way(group, at, "") for at in reversed(range(group)))


def matched(
    view: View | None,
    passes: Sequence[Pass],
    rank: int | None,
    others: Sequence[Sequence[Pass]] = (),
    *,
    masked: int | None = None,
) -> tuple[Mapping | None, Fidelity]:
    """The mapping under which the losses of a process are those of the log, and how closely they are.

    others: the backward passes of the other ranks. masked: from this step on, the log may hold numbers in place of
    non-finite values. None, with a fidelity that is not ok, where the program does not
    follow the log; without reasons where nothing could be compared.
    """
    if not passes:
        return None, Fidelity(ok=False, note="no backward pass was seen: there is nothing to compare with the log")
    series = [replace(loss, masked=masked) for loss in logged_losses(view, rank)]
    told = [list(passes), *of_ranks(passes, others)]
    best: tuple[tuple[float, ...], Mapping] | None = None
    for variant in told if series else ():
        found = _best(series, variant)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
        if best is not None and _certain(best[0]):
            break
    if best is not None and best[0][-1] >= _ENOUGH:
        return best[1].with_later(passes), _fidelity(best[1], series)
    for mapping, loss in (found for variant in told for found in under_other_names(view, variant, series)):
        return mapping, _fidelity(mapping, [loss])
    if not series:
        note = "the rerun could not be compared with the log: none of its series holds the losses of the rerun"
        return None, Fidelity(ok=False, note=note)
    return None, _unlike(series, passes)


def _best(series: Sequence[LoggedLoss], passes: Sequence[Pass]) -> tuple[tuple[float, ...], Mapping] | None:
    """The mapping that meets most of the values, with its score; the last part of that is the share that is met."""
    best: tuple[tuple[float, ...], Mapping] | None = None
    usual = next(ways(passes)).group
    alike = begins_alike(series, passes)
    for way in ways(passes):
        values = way.values([p.loss for p in passes])
        if not any(map(math.isfinite, values)) and any(math.isfinite(p.loss) for p in passes):
            continue
        for loss in series:
            for first, hits, met in _offsets(loss, values):
                if alike is not None and hits == 1 and way.at is not None and way.group > usual:
                    continue  # one loss of many, by leaving out those that the log does not have
                score = (hits / (met + 0.5), hits, -way.group, hits / met)  # 9 of 10 is more than 1 of 1
                if best is None or score > best[0]:
                    best = score, Mapping(way, first, tuple(passes))
        if best is not None and _certain(best[0]):
            return best
    for loss in series:
        for numbers, met in numbers_of(loss, series, [p.loss for p in passes], _same):
            uneven = (met / (met + 0.5), float(met), -math.inf, 1.0)
            if best is None or uneven > best[0]:
                best = uneven, Mapping(Way(1, 0, ""), numbers[0], tuple(passes), numbers, loss)
    return best


def begins_alike(series: Sequence[LoggedLoss], passes: Sequence[Pass]) -> int | None:
    """The only logged step that holds the first of the losses, where the log goes on and none of the next ones is that
    of its step: the weights and the batch are those of the run there, and no later ones are. None otherwise."""
    values = [p.loss for p in passes[: 1 + _NEXT]]
    if len(values) < 1 + _NEXT or not all(map(math.isfinite, values)):
        return None
    for loss in (s for s in series if not s.mean):
        at = [step for step, logged in loss.values.items() if _same(loss, logged, values[0])]
        later = [(loss.values.get(at[0] + k), values[k]) for k in range(1, len(values))] if len(at) == 1 else []
        known = [(logged, value) for logged, value in later if logged is not None]
        if known and not any(_same(loss, logged, value) for logged, value in known):
            return at[0]
    return None


def _certain(score: tuple[float, ...]) -> bool:
    return score[-1] == 1 and score[1] >= _SURE


def of_ranks(passes: Sequence[Pass], others: Sequence[Sequence[Pass]]) -> Iterator[list[Pass]]:
    """What a log of all ranks holds: the mean or the sum of their losses; what that of one holds: its own."""
    if not others:
        return
    every = [_by_place(p) for p in (passes, *others)]
    common: dict[tuple[int, int], list[float]] = {}
    for place in sorted(set().union(*every)):
        values = [known[place] for known in every if place in known]
        if len(values) == len(every) or not all(map(math.isfinite, values)):
            common[place] = values if len(values) == len(every) else [math.nan]
    for made in (lambda values: math.fsum(values) / len(values), math.fsum):
        yield [Pass(tick, made(values)) for (tick, _), values in common.items()]
    yield from (list(known) for known in others if known)


def _by_place(passes: Sequence[Pass]) -> dict[tuple[int, int], float]:
    """(tick, number of the backward pass in it) -> loss."""
    seen: Counter[int] = Counter()
    found = {}
    for p in passes:
        found[p.tick, seen[p.tick]] = p.loss
        seen[p.tick] += 1
    return found


def under_other_names(
    view: View | None, passes: Sequence[Pass], known: Sequence[LoggedLoss]
) -> Iterator[tuple[Mapping, LoggedLoss]]:
    """Series that nobody would take for a loss, or whose sign is another, and that hold the losses value by value.

    Nothing but the values says so: all of them must be met, several different ones, and of many digits.
    """
    if view is None:
        return
    plain = [loss for s in view.series for loss in _kinds(s) if can_tell(loss)]
    for way in itertools.islice(ways(passes), _LIKELY):
        values = way.values([p.loss for p in passes])
        if different(values[:_LOOKED]) < REGULAR:
            continue
        for loss in plain:
            for signed in (loss, _negated(loss)):
                if any(signed.tag == k.tag for k in known) or not _meets(signed, values[:_LOOKED]):
                    continue
                for first, hits, met in _offsets(signed, values):
                    if hits == met and different(_logged_at(signed, first, len(values))) >= REGULAR:
                        yield Mapping(way, first, tuple(passes)), signed


def _negated(loss: LoggedLoss) -> LoggedLoss:
    return replace(loss, tag=f"-{loss.tag}", values={step: -value for step, value in loss.values.items()})


def _meets(loss: LoggedLoss, values: Sequence[float]) -> bool:
    """A cheap look: several of the values, at whatever step, are in the series."""
    logged = np.fromiter(loss.values.values(), dtype=np.float64)
    sought = np.array([v for v in values if math.isfinite(v)])
    near = np.isclose(logged[None, :], sought[:, None], rtol=1e-3, atol=10.0**-loss.digits.decimals)
    return int(near.any(axis=1).sum()) >= REGULAR


def _logged_at(loss: LoggedLoss, first: int, n: int) -> Iterator[float]:
    return (loss.values[step] for step in range(first, first + n) if step in loss.values)


_NEXT = 2  # losses after the first one of a rerun that show whether it goes on as the log does
_LIKELY = 9  # ways that are tried on series of other names: a loss a step, and those of its usual number of passes
_LOOKED = 24
_SURE = 4  # values of a log that are met without one that is not
_ENOUGH = 0.5  # share of the logged values that must be met


def by_rank(view: View | None, passes: dict[int, list[Pass]], *, masked: int | None = None) -> dict[int, Fidelity]:
    """How closely each rank that has a log of its own follows that. passes: of each rank."""
    logs = {s.rank for s in view.series} if view is not None else set()
    own = {rank: p for rank, p in sorted(passes.items()) if rank in logs}
    return {rank: matched(view, p, rank, masked=masked)[1] for rank, p in own.items()}


def logged_losses(view: View | None, rank: int | None) -> list[LoggedLoss]:
    """The logged tags that are losses of the training, those of this rank where ranks log on their own."""
    if view is None:
        return []
    found = view.of("loss") or [s for s in view.series if "loss" in s.tag.lower() or "nll" in s.tag.lower()]
    found += [s for s in view.series if "loss" in s.tag.lower() and s not in found and s.role is None]
    own = [s for s in found if s.rank == rank] if rank is not None else []
    return [loss for s in own or found for loss in _kinds(s)]


def _kinds(series: Series) -> list[LoggedLoss]:
    return [loss for loss in candidates([series]) if not loss.last]


def _offsets(loss: LoggedLoss, values: Sequence[float]) -> Iterator[tuple[int, int, int]]:
    """(first step, number of logged values that are met, number that can be compared) for the likeliest first step."""
    if loss.mean:
        values = _means(loss, values)
    steps = np.fromiter(loss.values, dtype=np.int64)
    logged = np.fromiter(loss.values.values(), dtype=np.float64)
    votes: Counter[int] = Counter()
    for k, value in enumerate(values):
        if math.isfinite(value):
            unit = 10.0**-loss.digits.decimals
            near = np.abs(logged - value) <= max(unit, 1e-3 * abs(value))
            votes.update(int(s) - k for s, v in zip(steps[near], logged[near], strict=True) if _same(loss, v, value))
    if not votes and values and not any(map(math.isfinite, values)):
        bad = [int(s) for s, v in loss.values.items() if not math.isfinite(v)]
        votes.update(bad[:1])
    for first, _ in votes.most_common(3):
        lead = _between(loss) - 1 if loss.mean else 0
        met = range(lead, len(values))
        pairs = _pairs(loss, first, values, met)
        if pairs:
            yield first, sum(_same(loss, a, b) for a, b in pairs), len(pairs)


def _pairs(loss: LoggedLoss, first: int, values: Sequence[float], numbers: Iterable[int]) -> list[tuple[float, float]]:
    """(logged, made) of the values with these numbers that the log holds as they were."""
    known = ((first + k, values[k]) for k in numbers if first + k in loss.values)
    return [(loss.values[step], made) for step, made in known if not loss.replaced(step, loss.values[step], made)]


def _means(loss: LoggedLoss, values: Sequence[float]) -> list[float]:
    """For each value the mean of it and those before it that belong to one log line."""
    between = _between(loss)
    lead = [math.nan] * min(between - 1, len(values))
    return lead + [math.fsum(values[k : k + between]) / between for k in range(len(values) - between + 1)]


def _between(loss: LoggedLoss) -> int:
    """Steps between two log lines."""
    return max(1, int(np.median(np.diff(sorted(loss.values)))))


def _same(loss: LoggedLoss, logged: float, value: float) -> bool:
    return loss.same(float(logged), value) or (
        math.isfinite(logged) and math.isfinite(value) and math.isclose(logged, value, rel_tol=_CLOSE)
    )


def _fidelity(mapping: Mapping, series: Sequence[LoggedLoss]) -> Fidelity:
    """The comparison of `replay`, of every logged loss that some of the backward passes make."""
    if mapping.by is not None:
        made = results_of(mapping.uneven, [p.loss for p in mapping.passes], mapping.by)
        return replace(compare(made, {mapping.by.tag: [mapping.by]}), first_step=mapping.first)
    losses = [p.loss for p in mapping.passes]
    group = mapping.way.group
    every = [Way(group, at, "") for at in range(group)] if mapping.way.at is not None else [mapping.way]
    results: dict[int, dict[str, float]] = {}
    taken: dict[str | None, list[LoggedLoss]] = {}
    for i, way in enumerate(every):
        values = way.values(losses)
        mine = [loss for loss in series if _follows(loss, mapping.first, values)]
        if mine:
            taken[str(i)] = mine
            for k, value in enumerate(values):
                results.setdefault(mapping.first + k, {})[str(i)] = value
    done = [StepResult(step=s, loss=math.fsum(r.values()), losses=r, last=r) for s, r in sorted(results.items())]
    return replace(compare(done, taken), first_step=mapping.first)


def _follows(loss: LoggedLoss, first: int, values: Sequence[float]) -> bool:
    made = _means(loss, values) if loss.mean else values
    pairs = _pairs(loss, first, made, range(_between(loss) - 1 if loss.mean else 0, len(made)))
    return bool(pairs) and sum(_same(loss, a, b) for a, b in pairs) >= _ENOUGH * len(pairs)


def _unlike(series: Sequence[LoggedLoss], passes: Sequence[Pass]) -> Fidelity:
    tags = ", ".join(dict.fromkeys(loss.tag for loss in series))
    n = len(passes)
    which = "the loss" if n == 1 else f"the {n} losses"
    note = f"the rerun does not follow the log: {which} of its backward passes are not those of {tags}"
    reasons: tuple[str, ...] = (
        "another order of the data: a resumed run that shuffles anew",
        "dropout, noise or shuffling, whose random state the program does not restore",
        ANOTHER_SETUP,
    )
    at = begins_alike(series, passes)
    if at is not None:
        note = f"{note}, but for the first, which is that of step {at}"
        reasons = (f"another learning rate, optimizer state or clipping: the first loss is that of step {at}", *reasons)
    return Fidelity(ok=False, note=note, reasons=reasons)
