"""What the causes share: what was good before the fault, and the command that goes on from there."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.model import Diagnosis
from postmortem.core.stats import SIGMA, trailing_median

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postmortem.core.model import Checkpoint, Finding
    from postmortem.core.view import Series, View


def named(findings: Iterable[Finding], *names: str) -> list[Finding]:
    """Findings of these names above info, earliest step first."""
    chosen = [f for f in findings if f.name in names and f.severity != "info"]
    return sorted(chosen, key=lambda f: (f.step is None, f.step or 0, names.index(f.name)))


def role(view: View, finding: Finding) -> str | None:
    return view.run.roles.get(finding.tag) if finding.tag is not None else None


def value_at(series: Series | None, step: int | None) -> float | None:
    """The last finite value at or before `step`."""
    if series is None or step is None:
        return None
    rows = np.flatnonzero((series.step <= step) & np.isfinite(series.value))
    return float(series.value[rows[-1]]) if len(rows) else None


def last_good_step(view: View, onset: int | None) -> int | None:
    """The last logged step before `onset` at which loss and gradient norm are finite and calm.

    Calm: within five robust deviations above the median of the 25 points before, or less than twice that median.
    Where neither is logged, any series with a role counts; None where there is no such step.
    """
    watched = [s for s in (view.main("loss"), view.main("grad_norm")) if s is not None and np.isfinite(s.value).any()]
    if not watched:
        watched = [s for s in view.series if s.role in ("val_loss", "perplexity")] or [s for s in view.series if s.role not in (None, "epoch")][:1]
    if not watched:
        return None
    bad: set[int] = set()
    for series in watched:
        bad.update(series.step[~_calm(series)].tolist())
    steps = np.unique(np.concatenate([s.step for s in watched if s.role == watched[0].role]))
    if onset is not None:
        steps = steps[steps < onset]
    for step in steps[::-1]:
        if int(step) not in bad:
            return int(step)
    return None


def _calm(series: Series) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    finite = np.isfinite(series.value)
    rows = np.flatnonzero(finite)
    x = series.value[rows]
    with np.errstate(over="ignore", invalid="ignore"):
        base = trailing_median(x)
        off = x - base
        scale = SIGMA * trailing_median(np.abs(off))
        ok = (off <= 5 * scale) | (off <= np.abs(base))
    calm = np.zeros(len(finite), bool)
    calm[rows[ok]] = True
    return calm


def last_good_checkpoint(view: View, good: int | None) -> Checkpoint | None:
    """The newest checkpoint at or before `good` that is not known to hold non-finite values."""
    if good is None:
        return None
    fit = [c for c in view.run.checkpoints if c.step is not None and c.step <= good and c.finite is not False]
    return max(fit, key=lambda c: (c.step or 0, c.path), default=None)


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
) -> Diagnosis:
    """A story with its last good step and checkpoint; `replay` puts the command in front of the advice."""
    good = last_good_step(view, root.step)
    checkpoint = last_good_checkpoint(view, good)
    steps = list(advice)
    if replay and root.step is not None:
        command = replay_command(view, root.step, checkpoint)
        steps.insert(0, command if checkpoint is not None else f"{command}  (needs weights from step {good} or before; none were found)")
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


def later(findings: Iterable[Finding], root: Finding, *names: str) -> list[Finding]:
    """Findings of these names (all names where none are given) at or after the root's step, by step."""
    after = [f for f in findings if f is not root and (not names or f.name in names) and (root.step is None or f.step is None or f.step >= root.step)]
    return sorted(after, key=lambda f: (f.step is None, f.step or 0))
