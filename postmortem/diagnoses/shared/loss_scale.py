"""What the log shows of the loss in the step in which the loss scale first falls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.diagnoses.shared.growth import growths
from postmortem.diagnoses.shared.story import faults, named, role

if TYPE_CHECKING:
    from postmortem.core.model import Finding
    from postmortem.core.view import View


def broken_for_good(view: View, findings: tuple[Finding, ...], fall: Finding) -> list[Finding]:
    """Onsets of a loss, by the first step after the fall, that no finite value follows: weights or data are faulty."""
    return [f for f in _of_loss(view, findings) if (f.step or 0) <= (fall.step or 0) + 1 and _for_good(view, f)]


def forward_overflow(view: View, findings: tuple[Finding, ...]) -> Finding | None:
    """The onset of a loss in the very step in which the scale first falls; None if there is none.

    The forward pass overflows then, before any scale is applied. Some later batches pass, so the weights are finite; a
    loss that had grown by orders of magnitude would overflow in any precision.
    """
    first = next(iter(faults(view, findings)), None)
    falls = [f for f in named(findings, "loss-scale-collapse") if f.step is not None]
    if first is None or not falls or (first.step or 0) < (falls[0].step or 0):
        return None
    for onset in _of_loss(view, findings):
        grew = any(g.series.role != "grad_norm" and not g.sudden for g in growths(view, onset))
        if (
            onset.step == falls[0].step
            and not onset.evidence.get("between")
            and not grew
            and not _for_good(view, onset)
        ):
            return onset
    return None


def _of_loss(view: View, findings: tuple[Finding, ...]) -> list[Finding]:
    return [f for f in named(findings, "nan-onset", "inf-onset") if role(view, f) == "loss"]


def _for_good(view: View, onset: Finding) -> bool:
    """True if no point after the onset is finite. An overflow in one forward pass does not affect the next."""
    own = next((s for s in view.series if s.tag == onset.tag and onset.rank in (None, s.rank)), None)
    after = own.value[own.step > (onset.step or 0)] if own is not None else np.empty(0)
    return bool(len(after)) and not np.isfinite(after).any()
