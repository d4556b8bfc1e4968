"""What the causes share: faults in order, what was good before them, the learning rate then, and the command that goes on."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.model import Diagnosis
from postmortem.core.stats import SIGMA, trailing_median
from postmortem.readers._checkpoints import step_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from postmortem.core.model import Checkpoint, Finding
    from postmortem.core.view import Series, View

NONFINITE = ("nan-onset", "inf-onset", "nonfinite-gradient", "masked-nonfinite")
_SEEN_NONFINITE = ("nan-onset", "inf-onset", "nonfinite-gradient")
BLOW_UP = ("divergence", "gradient-explosion", "loss-spike")
_FOLLOWS = (
    *NONFINITE,
    *BLOW_UP,
    "gradient-spike",
    "gradient-vanishing",
    "loss-plateau",
    "constant-metric",
    "chance-level-loss",
    "loss-scale-collapse",
)
ABOUT_NUMBERS = re.compile(r"\bnan\b|\binf(inite|inity)?\b|non-?finite|overflow|cholesky|singular|svd|probability tensor|device-side assert", re.I)


def named(findings: Iterable[Finding], *names: str) -> list[Finding]:
    """Findings of these names above info, earliest step first, ties in the order of the names."""
    chosen = [f for f in findings if f.name in names and f.severity != "info"]
    return sorted(chosen, key=lambda f: (f.step is None, f.step or 0, names.index(f.name)))


def faults(view: View, findings: Iterable[Finding]) -> list[Finding]:
    """What went wrong with the numbers, at severity error, earliest first: the head is the root of the trouble.

    At the same step a loss that is not finite explains its gradient; a gradient alone stands for itself. An evaluation
    between two rows of the training loss, the one finite and the other not, only met what had happened.
    """
    order = ("loss-scale-collapse", "nonfinite-gradient", "masked-nonfinite", "nan-onset", "inf-onset", "gradient-explosion", *BLOW_UP)
    grave = [f for f in named(findings, *order) if f.severity == "error"]
    training = [f for f in grave if f.name in NONFINITE and role(view, f) == "loss"]

    def when(f: Finding) -> tuple[bool, int, bool]:
        met = [t.step or 0 for t in training if f.name in NONFINITE and (role(view, f) or "").startswith("val_") and _met(f, t)]
        return f.step is None, max(met, default=f.step or 0), f.name in ("nan-onset", "inf-onset") and role(view, f) != "loss"

    return sorted(grave, key=when)


def _met(f: Finding, root: Finding) -> bool:
    """Whether the quantity of `f`, which is logged more rarely, saw the fault of `root` first: between its last finite row and its onset."""
    known, own = root.evidence.get("last_finite_step"), f.evidence.get("last_finite_step", -1)
    if known is None or f.step is None or root.step is None:
        return False
    return bool(own < known < f.step <= root.step and root.step - known <= f.step - own)


def consequences(findings: Iterable[Finding], root: Finding) -> list[Finding]:
    """What a fault in the numbers leads to: other faults at or after its step, and crashes that speak of such numbers."""
    found = []
    for f in findings:
        if f is root:
            continue
        after = root.step is None or f.step is None or f.step >= root.step or (f.name in NONFINITE and _met(f, root))
        about = f.name == "crash" and bool(ABOUT_NUMBERS.search(f.message))
        if after and (f.name in _FOLLOWS or about):
            found.append(f)
    return sorted(found, key=lambda f: (f.step is None, f.step or 0))


def role(view: View, finding: Finding) -> str | None:
    return view.run.roles.get(finding.tag) if finding.tag is not None else None


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(f.severity == "error" for f in findings)


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def number(value: float) -> str:
    return f"{value:.3g}"


def value_at(series: Series | None, step: int | None) -> float | None:
    """The last finite value at or before `step`."""
    if series is None or step is None:
        return None
    rows = np.flatnonzero((series.step <= step) & np.isfinite(series.value))
    return float(series.value[rows[-1]]) if len(rows) else None


@dataclass(frozen=True, slots=True)
class Rate:
    """The learning rate around a step: there, a tenth of the run before it, the largest so far, and when it calmed down."""

    tag: str
    at: float
    before: float
    peak: float
    jump: float
    """The largest ratio of neighbouring rows in the tenth of the run before the step."""

    @property
    def rising(self) -> bool:
        return self.at > 1.05 * self.before  # a linear warm-up from zero gains 11 % in the last tenth of its way


def rate_at(view: View, step: int | None) -> Rate | None:
    """The learning rate at `step`; None where none is logged before it."""
    raw = view.main("lr")
    if raw is None or step is None:
        return None
    series = raw.finite
    until = int(np.searchsorted(series.step, step, side="right"))
    if until < 2:
        return None
    x = series.value[:until]
    since = max(0, min(until - 2, int(np.searchsorted(series.step, step - max(1, (step - int(series.step[0])) // 10)))))
    recent = x[since:]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = recent[1:] / recent[:-1]
    jump = float(np.nanmax(ratio, initial=0.0, where=np.isfinite(ratio)))
    return Rate(series.tag, float(recent.max()), float(recent[0]), float(x.max()), jump)


def calm(series: Series) -> NDArray[np.bool_]:
    """True where a point is finite and calm: less than five deviations above the median of the 25 points before, or
    less than twice that median."""
    rows = np.flatnonzero(np.isfinite(series.value))
    x = series.value[rows]
    with np.errstate(over="ignore", invalid="ignore"):
        base = trailing_median(x)
        off = x - base
        scale = SIGMA * trailing_median(np.abs(off))
        quiet = (off <= 5 * scale) | (off <= np.abs(base))
    found = np.zeros(len(series), bool)
    found[rows[quiet]] = True
    return found


def watched(view: View) -> list[Series]:
    """The loss and the gradient norm; where neither is logged, what else tells of the training."""
    main = [s for s in (view.main("loss"), view.main("grad_norm")) if s is not None and np.isfinite(s.value).any()]
    return main or [s for s in view.series if s.role in ("val_loss", "perplexity")] or [s for s in view.series if s.role not in (None, "epoch")][:1]


def last_good_step(view: View, onset: int | None) -> int | None:
    """The last logged step before `onset` at which loss and gradient norm are finite and calm; None where there is none."""
    series = watched(view)
    if not series:
        return None
    bad = np.unique(np.concatenate([s.step[~calm(s)] for s in series]))
    steps = np.setdiff1d(series[0].step, bad)
    if onset is not None:
        steps = steps[steps < onset]
    return int(steps[-1]) if len(steps) else None


def calm_before(view: View, step: int | None, points: int = 10) -> bool:
    """Whether loss and gradient norm were finite and calm in the last `points` rows before `step`, and did not climb."""
    if step is None:
        return False
    for series in watched(view):
        until = int(np.searchsorted(series.step, step))
        recent = series.value[max(0, until - points) : until]
        if len(recent) < 3 or not calm(series)[max(0, until - points) : until].all():
            return False
        half = len(recent) // 2
        first, last = float(np.median(recent[:half])), float(np.median(recent[half:]))
        if last > 1.5 * abs(first) + 1e-12:
            return False
    return bool(watched(view))


def last_good_checkpoint(view: View, good: int | None, onset: int | None = None) -> Checkpoint | None:
    """The newest checkpoint at or before `good` that is not known to hold non-finite values.

    With `onset`, also one from between the two that was looked into and is finite: a log with every tenth step only does not say
    when in between a value turned non-finite, the weights do. One that says the very step at which the log went on after a restart
    is from before that step.
    """
    if good is None:
        return None
    until = good if onset is None else onset - 1
    steps = {c.step for c in view.run.checkpoints}
    went_on = {r.after for r in view.restarts if r.after - 1 not in steps}
    spoiled = {(os.path.dirname(c.path), c.step) for c in view.run.checkpoints if c.finite is False}  # one part of several files
    known = [
        (c.step - (c.step in went_on), c)
        for c in view.run.checkpoints
        if c.step is not None and c.problem is None and (os.path.dirname(c.path), c.step) not in spoiled
    ]
    fit = [c for step, c in known if (step <= good and c.finite is not False) or (step <= until and c.finite)]
    return max(fit, key=lambda c: (c.step or 0, step_of(Path(c.path)) is not None, c.path), default=None)  # latest.pt may be written again


def _logged_between(view: View, good: int | None, onset: int) -> bool:
    """Whether the log has steps between the last good one and the onset: then the run was on its way down before it."""
    return good is not None and any(bool(((s.step > good) & (s.step < onset)).any()) for s in watched(view))


def replay_command(view: View, step: int | None, checkpoint: Checkpoint | None) -> str:
    """The exact command that reruns `step`; names the checkpoint where weights are at hand."""
    command = f"postmortem replay {shlex.quote(str(view.run.path))}"
    if step is not None:
        command += f" --step {step}"
    if checkpoint is not None:
        command += f" --checkpoint {shlex.quote(checkpoint.path)}"
    return command


def tell(
    view: View,
    name: str,
    root: Finding,
    others: Iterable[Finding] = (),
    *,
    summary: str,
    evidence_for: Iterable[str] = (),
    against: Iterable[str] = (),
    disprove: Iterable[str] = (),
    advice: Iterable[str] = (),
    replay: bool = True,
    good_before: int | None = None,
    good: int | None = None,
    unlogged: bool = False,
    rerun: int | None = None,
) -> Diagnosis:
    """A story with its last good step and checkpoint, from before `good_before` (default: the root's step) unless `good`
    says it.

    `replay` puts the command that reruns the root's step (or the step `rerun`) in front of the advice. `unlogged`: the fault came after the
    last row of the log, so that every finite checkpoint is from before it and the replay has to find the step.
    """
    if good is None:
        good = last_good_step(view, None if unlogged else root.step if good_before is None else good_before)
        if not watched(view):  # what went wrong is all that tells of the training
            good = root.evidence.get("last_finite_step")
    sudden = root.name in _SEEN_NONFINITE and root.step is not None and good_before is None and not _logged_between(view, good, root.step)
    checkpoint = last_good_checkpoint(view, good, sys.maxsize if unlogged else root.step if sudden else None)
    steps = list(advice)
    if replay and root.step is not None:
        step = None if unlogged else root.step if rerun is None else rerun
        if checkpoint is not None or any(c.step is None and c.finite is None for c in view.run.checkpoints):
            steps.insert(0, replay_command(view, step, checkpoint))  # it asks those that were not looked into for their steps
        else:
            where = f"from step {good} or before" if good is not None else "from before it"
            steps.append(f"save checkpoints: with weights {where}, `{replay_command(view, step, None)}` names the operation and the samples")
    elif checkpoint is not None:
        steps.append(f"resume from {checkpoint.path} (step {checkpoint.step}, the newest before the fault)")
    return Diagnosis(
        name=name,
        summary=summary,
        findings=tuple(dict.fromkeys([root.id, *(f.id for f in others)])),
        evidence_for=tuple(evidence_for),
        evidence_against=tuple(against),
        disprove=tuple(disprove),
        next=tuple(steps),
        last_good_step=good,
        last_good_checkpoint=checkpoint.path if checkpoint is not None else None,
    )


def lower_rate(view: View, rate: Rate | None) -> str:
    """The change of the learning rate to try, with the values seen; general words where it is not logged."""
    known = next(view.settings("lr", "learning_rate", "max_lr", "peak_lr", "base_lr"), None)
    if rate is None and known is None:
        return "lower the learning rate to a third and log it"
    name, high = (rate.tag, rate.at) if rate is not None else known or ("lr", 0.0)
    if known is not None:
        name = known[0]
    low = high / 3 if rate is None or not rate.rising else min(high / 3, rate.before)
    why = f"calm at {number(rate.before)}, broken at {number(rate.at)}" if rate is not None and rate.rising else "a third of what it was at the onset"
    return f"{name}: {number(high)} → {number(float(f'{low:.0e}'))} ({why})"


def clip(view: View, step: int | None) -> str | None:
    """A limit for the gradient norm, from its level before `step`; None where no gradient norm is logged."""
    grad = view.main("grad_norm")
    if grad is None or step is None:
        return None
    before = grad.value[(grad.step < step) & calm(grad)]
    if len(before) < 5:
        return None
    level = float(f"{np.quantile(before[-200:], 0.9):.1g}")
    return f"clip the gradient norm at {number(level)} (its level before the onset; torch.nn.utils.clip_grad_norm_)" if level > 0 else None
