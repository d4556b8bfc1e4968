"""How faithful a replay is: replayed losses against the logged ones, to the digits that the log shows."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.culprit import Fidelity
from postmortem.core.errors import did_you_mean
from postmortem.replay.step.runner import ReplayError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postmortem.core.series import Series
    from postmortem.core.view import View
    from postmortem.replay.step.runner import StepResult

SAME_RUN = 1e-3
"""Relative difference up to which a replay counts as faithful although not every digit agrees: kernels of another machine
or thread count round differently, and that grows with the steps; a wrong batch, state or learning rate changes the loss by far more."""
SAME_STATE = 1e-5
"""The same for the first loss that is compared, where rounding has not had the time to grow: a state one step off shows here."""

SAME_MEAN = 1e-6
"""The same for means over steps, which trainers add up in single precision, and for one micro-batch, divided and multiplied again."""


@dataclass(frozen=True, slots=True)
class Digits:
    """How many digits a log shows of a quantity: `decimals` behind the point and `significant` ones, at most; `whole`: it shows
    every digit of its float32 or float64 values."""

    decimals: int
    significant: int
    whole: bool = False

    @classmethod
    def of(cls, values: Sequence[float]) -> Digits:
        """From the values themselves, as numbers keep no trailing zeros: the most that any of them has."""
        decimals = significant = 0
        for value in values:
            if math.isfinite(value) and value:
                mantissa, _, exponent = _shortest(abs(value))
                digits = mantissa.replace(".", "").rstrip("0")
                significant = max(significant, len(digits))
                decimals = max(decimals, len(digits) - 1 - int(exponent))
        single = all(float(np.float32(v)) == v for v in values if math.isfinite(v))
        return cls(decimals, significant, significant > (7 if single else 12))

    def same(self, logged: float, replayed: float) -> bool:
        """Whether `replayed` would have been logged as `logged`; two non-finite values are the same."""
        if not math.isfinite(logged) or not math.isfinite(replayed):
            return math.isfinite(logged) == math.isfinite(replayed)
        if np.float32(logged) == np.float32(replayed):
            return True
        if self.whole:
            return False
        order = math.floor(math.log10(abs(logged))) if logged else -300
        unit = max(10.0**-self.decimals, 10.0 ** (order - self.significant + 1))
        return abs(logged - replayed) <= 0.5 * unit * (1 + 1e-6) + 1e-7 * abs(replayed)


def _shortest(value: float) -> tuple[str, str, str]:
    """Mantissa and exponent of the shortest decimal that reads as `value`: as a float, or as a float32 where it is one."""
    single = np.float32(value)
    text = np.format_float_scientific(single if float(single) == value else value, trim="-")
    return text.partition("e")


@dataclass(frozen=True, slots=True)
class LoggedLoss:
    """One logged tag with its values by step. `mean`: the log shows the mean of the steps since the one before; `last`: that of the
    last micro-batch alone (as nanoGPT and Lightning do). From step
    `masked` on it may show numbers in place of values that were not finite."""

    tag: str
    values: dict[int, float]
    digits: Digits
    mean: bool = False
    masked: int | None = None
    last: bool = False

    def same(self, logged: float, replayed: float) -> bool:
        """Whether they are equal as the log shows them; a mean depends on the order of its terms, a part of it on how it was divided."""
        return self.digits.same(logged, replayed) or ((self.mean or self.last) and math.isclose(logged, replayed, rel_tol=SAME_MEAN))

    def pairs(self, results: Sequence[StepResult], name: str | None) -> list[tuple[int, float, float]]:
        """(step, logged, replayed) where both exist and neither was replaced; `name` None is the step's whole loss."""
        every = self._pairs(results, name)
        return [(s, a, b) for s, a, b in every if self.masked is None or s < self.masked or math.isfinite(b) or not math.isfinite(a)]

    def _pairs(self, results: Sequence[StepResult], name: str | None) -> list[tuple[int, float, float]]:
        if self.last:
            got = {r.step: sum(r.last.values()) if name is None else r.last[name] for r in results if r.last and (name is None or name in r.last)}
        else:
            got = {r.step: r.loss if name is None else r.losses[name] for r in results if name is None or name in r.losses}
        if not self.mean:
            return [(s, self.values[s], got[s]) for s in got if s in self.values]
        steps = sorted(self.values)
        found = []
        for before, step in itertools.pairwise(steps):
            if all(s in got for s in range(before + 1, step + 1)):
                found.append((step, self.values[step], float(np.mean([got[s] for s in range(before + 1, step + 1)]))))
        return found


def logged_losses(
    view: View | None, logged: str | Mapping[str, str] | None, names: Sequence[str], *, masked: int | None = None
) -> dict[str | None, list[LoggedLoss]]:
    """For each loss that a step returns (None: their sum) the tags that may hold it; from step `masked` on they may hold replaced values.

    `logged` is the recipe's word for it: a tag, or {loss name: tag}. ReplayError where the log has no such tag.
    """
    if view is None:
        return {}
    found = _by_loss(view, logged, names)
    return {name: [replace(loss, masked=masked) for loss in losses] for name, losses in found.items()}


def _by_loss(view: View, logged: str | Mapping[str, str] | None, names: Sequence[str]) -> dict[str | None, list[LoggedLoss]]:
    single = list(names) == ["loss"]
    if isinstance(logged, str):
        return {(names[0] if len(names) == 1 else None): _candidates(_tagged(view, logged))}
    if logged:
        return {(name if name in names else None): _candidates(_tagged(view, tag)) for name, tag in logged.items()}
    if single:
        return {"loss": _candidates(view.of("loss") or [s for s in view.series if _last(s.tag) in ("loss", "nll", "objective")])}
    exact = {s.tag: [s] for s in view.series}
    by_name: dict[str | None, list[LoggedLoss]] = {n: _candidates(exact.get(n) or [s for s in view.series if _is_name(s.tag, n)]) for n in names}
    if not any(by_name.values()):
        by_name = {None: _candidates(view.of("loss"))}
    return {n: found for n, found in by_name.items() if found}


def _tagged(view: View, tag: str) -> list[Series]:
    exact = [s for s in view.series if s.tag == tag]
    found = exact or [s for s in view.series if s.tag.endswith("/" + tag) or tag.endswith("/" + s.tag)]
    if not found:
        tags = [s.tag for s in view.series]
        raise ReplayError(f"the recipe says the loss is logged as {tag!r}, but the log has no such tag{did_you_mean(tag, tags)}")
    return found


def _last(tag: str) -> str:
    return tag.lower().replace(".", "/").rsplit("/", 1)[-1]


def _is_name(tag: str, name: str) -> bool:
    whole, last, name = tag.lower(), _last(tag), name.lower()
    return (
        last == name
        or whole.endswith(f"/{name}")
        or last in (f"{name}_loss", f"loss_{name}", f"{name}loss")
        or name in (f"{last}_loss", f"loss_{last}")
    )


def _candidates(series: Sequence[Series]) -> list[LoggedLoss]:
    found = []
    for s in series:
        values = {int(k): float(v) for k, v in zip(s.step, s.value, strict=True)}
        digits = Digits.of(s.value[:: max(1, len(s) // 2000)].tolist())
        found += [LoggedLoss(s.tag, values, digits), LoggedLoss(s.tag, values, digits, last=True)]
        if len(s) > 1 and np.median(np.diff(s.step)) > 1:
            found.append(LoggedLoss(s.tag, values, digits, mean=True))
    return found


@dataclass(frozen=True, slots=True)
class _Score:
    exact: int
    compared: int
    error: float
    first_error: float
    mismatch: int | None
    nonfinite_differs: bool
    finite: int
    of: LoggedLoss | None


def _score(candidate: LoggedLoss, results: Sequence[StepResult], name: str | None) -> _Score:
    pairs = candidate.pairs(results, name)
    wrong = [step for step, a, b in pairs if not candidate.same(a, b)]
    finite = [(a, b) for _, a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    errors = [0.0 if candidate.same(a, b) else abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in finite]
    differs = any(math.isfinite(a) != math.isfinite(b) for _, a, b in pairs)
    right, largest = len(pairs) - len(wrong), max(errors, default=0.0)
    return _Score(right, len(pairs), largest, next(iter(errors), 0.0), min(wrong, default=None), differs, len(finite), candidate)


def compare(
    results: Sequence[StepResult], losses: Mapping[str | None, Sequence[LoggedLoss]], *, checkpoint: str | None = None, first_step: int | None = None
) -> Fidelity:
    """The fidelity of a roll. Where several tags could hold a loss, the one that agrees best is taken and named.

    A value that differs and may be a mean over steps that were not all replayed says nothing.
    """
    scores = []
    for name, candidates in losses.items():
        every = [_score(c, results, name) for c in candidates]
        unread = {s.of.tag for s in every if s.of is not None and s.of.mean and not s.compared}
        ranked = [s for s in every if s.compared and (s.exact or s.of is None or s.of.tag not in unread)]
        if ranked:
            scores.append(max(ranked, key=lambda s: (s.exact / s.compared, -s.error, s.compared)))
    compared, exact = sum(s.compared for s in scores), sum(s.exact for s in scores)
    if not compared:
        note = "no step that was replayed has a logged loss to compare with: nothing vouches for this replay"
        return Fidelity(ok=False, checkpoint=checkpoint, first_step=first_step, note=note)
    error = max(s.error for s in scores)
    mismatch = min((s.mismatch for s in scores if s.mismatch is not None), default=None)
    close = error <= SAME_RUN and not any(s.nonfinite_differs or s.first_error > SAME_STATE for s in scores)
    ok = exact == compared or close
    return Fidelity(
        ok=ok,
        checkpoint=checkpoint,
        first_step=first_step,
        compared=compared,
        exact=exact,
        max_rel_error=error,
        first_mismatch=mismatch,
        note=_note(scores, compared, exact, error, mismatch, ok),
    )


def _note(scores: Sequence[_Score], compared: int, exact: int, error: float, mismatch: int | None, ok: bool) -> str:
    told = [
        (s.of.tag, " (means over the steps between two lines)" if s.of.mean else " (of the last micro-batch)" if s.of.last else "")
        for s in scores
        if s.of
    ]
    tags = ", ".join(tag + how for tag, how in told)
    if exact == compared and not any(s.finite for s in scores):
        return f"only what is not finite could be compared: {tags} is so where the replay is, which says little of the state before"
    if exact == compared:
        return f"{compared} logged loss{'es' if compared > 1 else ''} of {tags} reproduced, every digit"
    if ok:
        return f"{exact} of {compared} logged losses of {tags} reproduced to every digit, the others within {error:.1e}: rounding of another machine"
    return (
        f"the replay parts from {tags} at step {mismatch} ({exact} of {compared} logged losses reproduced, relative error up to {error:.1e}): "
        "the batch order, the state or the code is not the run's, so what it shows may not be what happened"
    )
