"""The fidelity of a replay: replayed losses compared with the logged ones, to the digits that the log shows."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.culprit import Fidelity
from postmortem.core.errors import ReplayError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postmortem.core.series import Series
    from postmortem.core.view import View
    from postmortem.replay.step.result import StepResult

NOT_THAT_OF_THE_RUN = (
    "the batch order, the state or the code is not that of the run, so the replay may not show what happened"
)
"""Of the note of a replay that differs from the log."""
SAME_RUN = 1e-3
"""Relative error up to which the fidelity is good although some digits differ. Kernels of another machine or thread
count round differently, and the difference grows with the steps; a wrong batch, state or learning rate makes a far
larger one."""
SAME_STATE = 1e-5
"""The same for the first loss that is compared, where rounding errors have not grown: a larger error
shows a state that is one step off."""
SAME_MEAN = 1e-6
"""The same for means over steps, which trainers sum in fp32, and for the loss of one micro-batch, which
is divided and multiplied again."""


@dataclass(frozen=True, slots=True)
class Digits:
    """How many digits of a tag a log shows: at most `decimals` after the point and `significant` ones. `whole`: it
    shows every digit of float32 or float64 values."""

    decimals: int
    significant: int
    whole: bool = False

    @classmethod
    def of(cls, values: Sequence[float]) -> Digits:
        """The most digits that any of the values has; a number does not keep its trailing zeros."""
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
        """True if `replayed` would have been logged as `logged`; two non-finite values are the same."""
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
    """(mantissa, "e", exponent) of the shortest decimal that parses to `value`, as a float32 if it is one."""
    single = np.float32(value)
    text = np.format_float_scientific(single if float(single) == value else value, trim="-")
    return text.partition("e")


@dataclass(frozen=True, slots=True)
class LoggedLoss:
    """One logged tag with its values by step.

    mean: each value is the mean of the steps since the last one. last: each value is the loss of the last micro-batch
    alone, as nanoGPT and Lightning log it. masked: from this step on, numbers may stand in place of non-finite values.
    """

    tag: str
    values: dict[int, float]
    digits: Digits
    mean: bool = False
    masked: int | None = None
    last: bool = False

    def same(self, logged: float, replayed: float) -> bool:
        """True if they are equal to the digits that the log shows, or close if rounding depends on the trainer."""
        if self.digits.same(logged, replayed):
            return True
        return (self.mean or self.last) and math.isclose(logged, replayed, rel_tol=SAME_MEAN)

    def pairs(self, results: Sequence[StepResult], name: str | None) -> list[tuple[int, float, float]]:
        """(step, logged, replayed) of the steps that have both, without replaced values. `name` None: the sum of the
        losses."""
        return [
            (step, logged, got)
            for step, logged, got in self._pairs(results, name)
            if not self._replaced(step, logged, got)
        ]

    def _replaced(self, step: int, logged: float, replayed: float) -> bool:
        """True if the logged number may stand in place of a non-finite value."""
        return self.masked is not None and step >= self.masked and math.isfinite(logged) and not math.isfinite(replayed)

    def _pairs(self, results: Sequence[StepResult], name: str | None) -> list[tuple[int, float, float]]:
        got: dict[int, float] = {}
        for r in results:
            losses = r.last if self.last else r.losses
            if name is not None and name in losses:
                got[r.step] = losses[name]
            elif name is None and (losses or not self.last):
                got[r.step] = sum(losses.values()) if self.last else r.loss
        if not self.mean:
            return [(s, self.values[s], got[s]) for s in got if s in self.values]
        found = []
        for before, step in itertools.pairwise(sorted(self.values)):
            since = range(before + 1, step + 1)
            if all(s in got for s in since):
                found.append((step, self.values[step], float(np.mean([got[s] for s in since]))))
        return found


def logged_losses(
    view: View | None, logged: str | Mapping[str, str] | None, names: Sequence[str], *, masked: int | None = None
) -> dict[str | None, list[LoggedLoss]]:
    """The tags that may hold each loss that a step returns, by its name (None: the sum of the losses).

    logged: `TrainStep.logged`, a tag or {name of a loss: tag}. masked: from this step on, the log may hold numbers in
    place of non-finite values. Raises ReplayError if the log has no such tag.
    """
    if view is None:
        return {}
    found = _by_loss(view, logged, names)
    return {name: [replace(loss, masked=masked) for loss in losses] for name, losses in found.items()}


def _by_loss(
    view: View, logged: str | Mapping[str, str] | None, names: Sequence[str]
) -> dict[str | None, list[LoggedLoss]]:
    single = list(names) == ["loss"]
    if isinstance(logged, str):
        return {(names[0] if len(names) == 1 else None): _candidates(_tagged(view, logged))}
    if logged:
        return {(name if name in names else None): _candidates(_tagged(view, tag)) for name, tag in logged.items()}
    if single:
        series = view.of("loss") or [s for s in view.series if _last(s.tag) in ("loss", "nll", "objective")]
        return {"loss": _candidates(series)}
    exact = {s.tag: [s] for s in view.series}
    by_name: dict[str | None, list[LoggedLoss]] = {
        n: _candidates(exact.get(n) or [s for s in view.series if _is_name(s.tag, n)]) for n in names
    }
    if not any(by_name.values()):
        by_name = {None: _candidates(view.of("loss"))}
    return {n: found for n, found in by_name.items() if found}


def _tagged(view: View, tag: str) -> list[Series]:
    exact = [s for s in view.series if s.tag == tag]
    found = exact or [s for s in view.series if s.tag.endswith("/" + tag) or tag.endswith("/" + s.tag)]
    if not found:
        tags = [s.tag for s in view.series]
        known = did_you_mean(tag, tags)
        raise ReplayError(f"the recipe gives logged={tag!r}, but the log has no such tag{known}")
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
    """How well the replayed losses agree with one logged tag (`of`).

    exact, compared, finite: numbers of values. error, first_error: largest and first relative error. mismatch: the
    first step that differs.
    """

    exact: int
    compared: int
    error: float
    first_error: float
    mismatch: int | None
    nonfinite_differs: bool
    finite: int
    of: LoggedLoss


def _score(candidate: LoggedLoss, results: Sequence[StepResult], name: str | None) -> _Score:
    pairs = candidate.pairs(results, name)
    differing = [step for step, a, b in pairs if not candidate.same(a, b)]
    finite = [(a, b) for _, a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    errors = [0.0 if candidate.same(a, b) else abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in finite]
    differs = any(math.isfinite(a) != math.isfinite(b) for _, a, b in pairs)
    return _Score(
        exact=len(pairs) - len(differing),
        compared=len(pairs),
        error=max(errors, default=0.0),
        first_error=next(iter(errors), 0.0),
        mismatch=min(differing, default=None),
        nonfinite_differs=differs,
        finite=len(finite),
        of=candidate,
    )


def compare(
    results: Sequence[StepResult],
    losses: Mapping[str | None, Sequence[LoggedLoss]],
    *,
    checkpoint: str | None = None,
    first_step: int | None = None,
) -> Fidelity:
    """The fidelity of a roll. If several tags may hold a loss, the one that agrees best counts.

    A value that differs does not count if it may be a mean over steps that were not all replayed.
    """
    scores = []
    for name, candidates in losses.items():
        every = [_score(c, results, name) for c in candidates]
        unread = {s.of.tag for s in every if s.of.mean and not s.compared}
        ranked = [s for s in every if s.compared and (s.exact or s.of.tag not in unread)]
        if ranked:
            scores.append(max(ranked, key=lambda s: (s.exact / s.compared, -s.error, s.compared)))
    compared, exact = sum(s.compared for s in scores), sum(s.exact for s in scores)
    if not compared:
        note = "no replayed step has a logged loss: the replay could not be compared with the log"
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
    tags = ", ".join(s.of.tag + _kind(s.of) for s in scores)
    reproduced = f"{exact} of {compared} logged values"
    if exact == compared and not any(s.finite for s in scores):
        little = "which says little about the state before"
        return f"only non-finite losses could be compared: {tags} is non-finite where the replay is, {little}"
    if exact == compared:
        return f"{compared} logged value{'s' if compared > 1 else ''} of {tags} reproduced to every logged digit"
    if ok:
        others = f"the others within a relative error of {error:.1e}: rounding of another machine"
        return f"{reproduced} of {tags} reproduced to every logged digit, {others}"
    return (
        f"the replay differs from {tags} at step {mismatch} ({reproduced} reproduced, relative error up to "
        f"{error:.1e}): {NOT_THAT_OF_THE_RUN}"
    )


def _kind(loss: LoggedLoss) -> str:
    if loss.mean:
        return " (means over the steps since the previous log line)"
    return " (of the last micro-batch)" if loss.last else ""
