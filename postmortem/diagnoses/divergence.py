from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.growth import growths
from postmortem.diagnoses.shared.schedule import clip, clip_anyway, known_rate, lower_rate, rate_at, warm_up
from postmortem.diagnoses.shared.story import BLOW_UP, NONFINITE, Story, consequences, faults, named, role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View
    from postmortem.diagnoses.shared.growth import LoggedGrowth

_STABLE_FOR = 50
"""Logged rows without a fault after which a constant learning rate is less likely to be too high."""

_STAYS = 5
"""Rows from a jump of the loss on in which the gradient norm is looked at."""


@diagnosis
class Divergence:
    """The loss rose (or jumped) and did not recover, and neither a change of the learning rate nor a resume explains
    it.

    Also reported for a non-finite value if the loss had grown to a hundred times its level (ten times, if it rose from
    row to row) in the rows before it, however many these are: the growth is the fault, the NaN or infinity its end. It
    is then likely, and possible if a single row stood above the level, as one batch may cause that. A learning rate
    that is too high is the most frequent reason of a divergence; a log does not prove it.
    """

    name = "diverged"
    priority = 50

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        root = next(iter(faults(view, findings)), None)
        if root is None or root.name not in (*BLOW_UP, *NONFINITE):
            return None
        end = _end(view, findings, root)
        grown = growths(view, end)
        loss = next((g for g in grown if g.series.role != "grad_norm"), None)
        if root.name in NONFINITE and loss is None:
            return None
        rate, others = rate_at(view, root.step), consequences(findings, root)
        onset = int(loss.series.step[1]) if loss is not None and root is end else root.step
        falls = root.name == "divergence" and float(root.evidence.get("end", 0.0)) < 0
        quiet = _without_its_gradient(view, root)
        story = (
            Story(view, root, others)
            .because(quiet, *_evidence(root, grown, others))
            .against(
                f"{rate.tag} was {number(rate.at, 3)} at the onset and had not risen before it"
                if rate is not None and not rate.rising and _rows_before(view, onset) >= _STABLE_FOR
                else None
            )
            .disproved_by(
                "with a third of the learning rate, the same steps from the last good checkpoint diverge as well "
                "(then check data and loss)"
            )
            .advise(
                "check whether the loss has a minimum at all: with a term of the wrong sign, or one that grows with "
                "the scale of the outputs, it has none, and no learning rate helps"
                if falls
                else None,
                f"check what changed right before step {root.step}: weights that were loaded, reset or pruned, units "
                "that died, another data set"
                if quiet
                else None,
                lower_rate(view, rate),
                None if quiet else clip(view, onset) or (clip_anyway(view) if loss is not None else None),
                warm_up(view, onset),
                "check what changed at the onset: data shard, loss weights, training phase"
                if _rows_before(view, onset) >= _STABLE_FOR and not quiet
                else None,
            )
            .replay()
        )
        if root is end and loss is not None:
            story.last_good(before=onset)
        sure = end is not None and loss is not None and not (loss.sudden and root is end)
        return story.diagnosis("diverged", _summary(view, root, end, loss), "likely" if sure else "possible")


def _without_its_gradient(view: View, root: Finding) -> str | None:
    """In words: a loss that jumps for good, at whose first step the gradient norm is as before; else None."""
    norm = view.main("grad_norm")
    if root.name != "loss-spike" or root.evidence.get("recovered") or norm is None or root.step is None:
        return None
    rows = np.flatnonzero(norm.step >= root.step)
    before = norm.value[norm.step < root.step][-10:]
    if not len(rows) or len(before) < 5 or not norm.value[rows[:_STAYS]].max() <= before.max():
        return None
    return (
        f"{norm.tag} does not rise with the loss, as a bad batch makes it do: {number(norm.value[rows[0]])} at step "
        f"{norm.step[rows[0]]}, at most {number(before.max())} in the {len(before)} rows before"
    )


def _end(view: View, findings: tuple[Finding, ...], root: Finding) -> Finding | None:
    """The first non-finite value, if the growth led to one: `root` itself or, of its consequences, that of a loss."""
    if root.name in NONFINITE:
        return root
    later = named(findings, "nan-onset", "inf-onset")
    return next((f for f in later if role(view, f) == "loss" and (f.step or 0) >= (root.step or 0)), None)


def _evidence(root: Finding, grown: list[LoggedGrowth], others: list[Finding]) -> Iterator[str]:
    if root.name in NONFINITE:
        yield from (g.values for g in grown if not g.sudden)
    else:
        yield from (f.message for f in others[:3])


def _summary(view: View, root: Finding, end: Finding | None, loss: LoggedGrowth | None) -> str:
    if loss is None or end is None:
        return f"The training diverged: {root.message}."
    kind = "infinite" if end.name == "inf-onset" else "NaN" if end.name == "nan-onset" else "no longer finite"
    what = "it" if end.tag in (None, loss.series.tag) else end.tag
    rate = known_rate(view, root.step)
    reason = f"The learning rate, {rate}, may be too high" if rate else "The learning rate, not logged, may be too high"
    grew = str(loss) if root is end else root.message
    return f"The training diverged: {grew}; {what} is {kind} at step {end.step}. {reason}."


def _rows_before(view: View, onset: int | None) -> int:
    """The rows of the loss before the onset."""
    loss = view.main("loss", "val_loss")
    return 0 if loss is None or onset is None else int((loss.step < onset).sum())
