from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.model import Finding
from postmortem.core.stats import sigma
from postmortem.detectors import detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.nonfinite import overwritten_onset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.run import Restart
    from postmortem.core.view import View

_FEW = 6
"""Points of an attempt from which its length and its loss can be judged."""


_OF_TRAINING = ("loss", "lr", "grad_norm", "loss_scale", "reward")
"""Roles of what a training logs and an evaluation of its checkpoints does not."""


def _evaluations(view: View) -> set[int]:
    """The restarts (by `id`) after which nothing of a training is logged, in a stream where it was logged before."""
    found = set()
    for stream in view.run.streams:
        tags = [view.run.roles[tag] in _OF_TRAINING for tag in stream.points.tags]
        rows = np.flatnonzero(np.array(tags, bool)[stream.points.code]) if stream.restarts else np.empty(0, np.intp)
        found |= {id(r) for r in stream.restarts if len(rows) and rows[0] < r.row > rows[-1]}
    return found


def _failed_before(view: View, step: int) -> str | None:
    """The exception at the step before a restart, in its first words, if the log has one."""
    failed = (e for e in view.events if e.step == step and e.fields.get("exception"))
    return next((e.message.splitlines()[0][:200] for e in failed if e.message), None)


def _starts_again(view: View) -> str | None:
    """How to explain steps that go back to their beginning several times, which no accident does; else None.

    Nothing is explained where an attempt failed or became non-finite: then it was restarted because of that.
    """
    restarts, first = view.restarts, view.first_step or 0
    start = first + 10
    if len({r.after for r in restarts}) > 1 and all(r.after <= start and r.before > 2 * start for r in restarts):
        return "like a counter that restarts in each epoch"
    planned = len(restarts) > 1 and all(r.after <= first < r.before for r in restarts)
    if planned and not any(_failed_before(view, r.before) or overwritten_onset(view, r) for r in restarts):
        return "the counter starts over several times, as for parts of one training: folds, trials or phases"
    return None


def _begins_anew(view: View, restart: Restart) -> bool:
    """Whether a complete training ended where the steps go back to the first one, and the loss does not go on."""
    loss = view.main("loss")
    stream = next((s for s in view.run.streams if restart in s.restarts), None)
    if loss is None or stream is None or restart.after > (view.first_step or 0):
        return False
    points, attempt = stream.points, int(stream.segment[restart.row])
    rows = np.flatnonzero((points.code == points.tags.index(loss.tag)) if loss.tag in points.tags else [])
    old, new = (rows[stream.segment[rows] == a] for a in (attempt - 1, attempt))
    if min(len(old), len(new)) < _FEW:
        return False
    ends = [int(points.take("step", part)[-1]) for part in (old, new)]
    complete = ends[0] == ends[1] or (_is_round(len(old)) and (_is_round(ends[0]) or _is_round(ends[0] + 1)))
    first, last, after = (float(np.median(points.value[at])) for at in (old[:3], old[-3:], new[:3]))
    unrest = sigma(np.diff(points.value[old[-20:]]))
    return complete and abs(after - last) > max(0.5 * abs(first - last), 5 * unrest)


def _is_round(n: int) -> bool:
    """Whether a number has no more than two digits that are not zero, and is a multiple of ten."""
    return n > 0 and n % 10 ** max(1, len(str(n)) - 2) == 0


@detector
class StepReset(BaseDetector):
    """The step count went back: the run was restarted from an earlier step, or two runs write to one log.

    What it looks for: steps of one writer that go back and continue from there.

    Why it matters: the steps between the checkpoint and the restart were logged twice. Averages, best values and curves
    that mix both are wrong. Other detectors see only the points that the restart did not overwrite.

    How: exact comparison. A single row out of order is not a restart. The reported step is the first one after the
    restart. The message says if the points that were logged again had become non-finite, or if the program had failed.

    Typical causes: a requeued or resumed job, a counter that starts at zero after a checkpoint is loaded, two jobs with
    the same folder or run id.

    What to try: check that the step, optimizer and scheduler of the checkpoint were restored; use a separate folder for
    every attempt.

    Severity: info if the steps go back to their beginning several times and no attempt failed: the folds of a
    cross-validation, the trials of a search, the phases of a training, or a counter that starts again in each epoch.
    Info as well for a new training or phase, which begins at the first step after one that was complete (it had a round
    length, or that of the next one), and whose loss does not go on from there; if nothing of a training (loss, learning
    rate, gradient norm) is logged after it, which is an evaluation of saved checkpoints; and if the counter starts over
    after an exception and the run completed or came farther than before.

    Known false positives: two phases or folds in one log, each counted from zero.
    """

    code = "RUN001"
    name = "step-reset"
    severity = "warning"

    @staticmethod
    def _tag(view: View, tag: str) -> str:
        """The loss if one is logged: it is the most familiar tag, and all tags of a writer go back together."""
        loss = view.main("loss")
        return tag if loss is None else loss.tag

    def detect(self, view: View) -> Iterator[Finding]:
        seen: set[tuple[int, int]] = set()
        again = _starts_again(view)
        evaluations = _evaluations(view)
        for restart in view.restarts:
            if (restart.before, restart.after) in seen:
                continue
            seen.add((restart.before, restart.after))
            how = f"{restart.before - restart.after + 1} steps were logged twice"
            starts_over = restart.after <= (view.first_step or 0)
            if starts_over:
                how = "the counter starts over"
            if onset := overwritten_onset(view, restart):
                how += f"; before, {onset[0]} was non-finite (NaN or Inf) from step {onset[1]} on"
            failed = _failed_before(view, restart.before)
            if failed:
                how += f", after the program failed: {failed}"
            anew = onset is None and failed is None and _begins_anew(view, restart)
            if anew:
                how = "the one before was complete: a new training or phase begins"
            if again:
                how = again
            elif id(restart) in evaluations:
                how = "no loss is logged from there on, so it is likely an evaluation of saved checkpoints"
            farther = view.run.ended == "completed" or (view.last_step or 0) > restart.before
            overcome = starts_over and failed is not None and onset is None and farther
            explained = bool(again) or anew or overcome or id(restart) in evaluations
            yield Finding(
                code=self.code,
                name=self.name,
                severity="info" if explained else self.severity,
                message=f"the steps go back from {restart.before} to {restart.after} ({how})",
                tag=self._tag(view, restart.tag),
                rank=restart.rank if restart.rank >= 0 else None,
                step=restart.after,
                wall_time=restart.wall_time if restart.wall_time == restart.wall_time else None,
                evidence={"before": restart.before, "after": restart.after},
            )
