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
    from postmortem.replay.roll.rounding import Rounding
    from postmortem.replay.step.result import StepResult

ANOTHER_BATCH = "another batch: the order of the data, or a batch that the training had drawn ahead of its step"
NO_SAVED_RANDOMNESS = "dropout, noise or shuffling: the checkpoint holds no random state"
ANOTHER_SETUP = "another configuration, state or code than that of the run"
"""Reasons for a replay that does not follow the log."""
SAME_RUN = 1e-3
"""Relative error up to which other digits may be rounding, which is then measured (`rounding.py`). A larger one shows a
wrong batch, state or learning rate."""
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
            if not self.replaced(step, logged, got)
        ]

    def replaced(self, step: int, logged: float, replayed: float) -> bool:
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
        return {(names[0] if len(names) == 1 else None): candidates(_tagged(view, logged))}
    if logged:
        return {(name if name in names else None): candidates(_tagged(view, tag)) for name, tag in logged.items()}
    if single:
        series = view.of("loss") or [s for s in view.series if _last(s.tag) in ("loss", "nll", "objective")]
        return {"loss": candidates(series)}
    exact = {s.tag: [s] for s in view.series}
    by_name: dict[str | None, list[LoggedLoss]] = {
        n: candidates(exact.get(n) or [s for s in view.series if _is_name(s.tag, n)]) for n in names
    }
    if not any(by_name.values()):
        by_name = {None: candidates(view.of("loss"))}
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


def candidates(series: Sequence[Series]) -> list[LoggedLoss]:
    """What the values of each tag may stand for: of a step, of its last micro-batch, the mean of several steps."""
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

    exact, compared, finite: numbers of values. errors: the relative error of each finite value by step. mismatch: the
    first step that differs. later: whether an equal value precedes it.
    """

    exact: int
    compared: int
    errors: dict[int, float]
    mismatch: int | None
    later: bool
    nonfinite_differs: bool
    finite: int
    of: LoggedLoss

    @property
    def error(self) -> float:
        return max(self.errors.values(), default=0.0)

    def close(self, rounding: Rounding | None) -> bool:
        """True if rounding explains every error; without a measurement, if it may."""
        if self.nonfinite_differs or self.error > SAME_RUN or next(iter(self.errors.values()), 0.0) > SAME_STATE:
            return False
        return rounding is None or all(rounding.explains(step, error) for step, error in self.errors.items())


def _score(candidate: LoggedLoss, results: Sequence[StepResult], name: str | None) -> _Score:
    pairs = candidate.pairs(results, name)
    differing = [step for step, a, b in pairs if not candidate.same(a, b)]
    finite = [(step, a, b) for step, a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    errors = {s: 0.0 if candidate.same(a, b) else abs(a - b) / max(abs(a), abs(b), 1e-12) for s, a, b in finite}
    differs = any(math.isfinite(a) != math.isfinite(b) for _, a, b in pairs)
    return _Score(
        exact=len(pairs) - len(differing),
        compared=len(pairs),
        errors=errors,
        mismatch=min(differing, default=None),
        later=bool(differing and pairs[0][0] < min(differing)),
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
    rounding: Rounding | None = None,
    random_state: bool = True,
) -> Fidelity:
    """The fidelity of a roll. If several tags may hold a loss, the one that agrees best counts.

    rounding: how far rounding moves the losses; None where it was not measured. random_state: whether the checkpoint
    holds one. A value that differs does not count if it may be a mean over steps that were not all replayed.
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
    mismatch = min((s.mismatch for s in scores if s.mismatch is not None), default=None)
    ok = exact == compared or all(s.close(rounding) for s in scores)
    return Fidelity(
        ok=ok,
        checkpoint=checkpoint,
        first_step=first_step,
        compared=compared,
        exact=exact,
        max_rel_error=max(s.error for s in scores),
        first_mismatch=mismatch,
        note=_note(scores, mismatch, rounding, ok),
        reasons=() if ok else _reasons(all(s.later for s in scores if s.mismatch is not None), random_state),
    )


def _note(scores: Sequence[_Score], mismatch: int | None, rounding: Rounding | None, ok: bool) -> str:
    compared, exact = sum(s.compared for s in scores), sum(s.exact for s in scores)
    tags = ", ".join(s.of.tag + _kind(s.of) for s in scores)
    error = max(s.error for s in scores)
    reproduced = f"{exact} of {compared} logged values"
    moved = "" if rounding is None else f"; rounding, as measured by reruns, moves them by {rounding.largest:.1e}"
    accepted = "" if rounding is None else f", and up to {min(rounding.accepted, SAME_RUN):.1e} counts as rounding"
    if exact == compared and not any(s.finite for s in scores):
        little = "which says little about the state before"
        return f"only non-finite losses could be compared: {tags} is non-finite where the replay is, {little}"
    if exact == compared:
        return f"{compared} logged value{'s' if compared > 1 else ''} of {tags} reproduced to every logged digit"
    if ok:
        others = f"the others within a relative error of {error:.1e}{moved}{accepted}"
        return f"{reproduced} of {tags} reproduced to every logged digit, {others}"
    return (
        f"the replay does not follow the log: it differs from {tags} at step {mismatch} ({reproduced} reproduced, "
        f"relative error up to {error:.1e}{moved})"
    )


def _reasons(later: bool, random_state: bool) -> tuple[str, ...]:
    """What may make a replay differ from the log, the likeliest first. later: the first losses agree, so that weights
    and first batches are those of the run."""
    missing = () if random_state else (NO_SAVED_RANDOMNESS,)
    if later:
        return (*missing, "another learning rate, optimizer state or clipping: the first losses agree", ANOTHER_BATCH)
    return (*missing, ANOTHER_BATCH, ANOTHER_SETUP)


def _kind(loss: LoggedLoss) -> str:
    if loss.mean:
        return " (means over the steps since the previous log line)"
    return " (of the last micro-batch)" if loss.last else ""
