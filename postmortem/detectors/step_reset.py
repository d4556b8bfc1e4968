from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct, occurrences
from postmortem.core.model import Finding
from postmortem.core.stats import median, sigma
from postmortem.detectors import detector
from postmortem.detectors.base import BaseDetector
from postmortem.detectors.shared.nonfinite import overwritten_onset
from postmortem.detectors.shared.regimes import announced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from postmortem.core.run import Restart, Stream
    from postmortem.core.view import View

_FEW = 6
"""Points of an attempt from which its length and its loss can be judged."""

_AGAIN = 3
"""Different values that have to come again before a repeated part counts as the same: fewer may be a coincidence."""

_USUAL = 0.6
"""The share of the gaps between the rows of an attempt that are its interval; the last row may lie anywhere."""

_SUMMARISED = re.compile(r"(?:^|/)train_(?:runtime|steps_per_second|samples_per_second)$")
_SUMMARY = 8
"""Values before a restart among which those of a summary are."""
_AT_ITS_LEVEL = 0.15
"""The share of what a loss had fallen by which it may lie higher and still go on where it was."""
_OTHER = 3.0
"""The ratio to its last values from which on a loss that is lower is another one, and does not go on."""
_NEAR_THE_START = 0.01
"""The share of the steps before a restart below which no checkpoint is that a program resumes from."""
_APPENDED = ("text", "csv", "json", "jsonl")
"""Sources that programs append to: each start of a program adds to the file of the one before."""
_MOST = 3
"""Restarts told one by one; more are one finding."""
_PHASES = ("new-phase", "setup-change")
"""Announcements after which a counter may start over."""
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


def _preempted(view: View, restart: Restart) -> bool:
    """Whether the scheduler took the job away at the last step before a restart, and the run came farther after it."""
    farther = view.run.ended == "completed" or (view.last_step or 0) > restart.before
    reasons = (str(e.fields.get("reason", "")) for e in view.events if e.step == restart.before)
    return farther and any("PREEMPT" in reason or "REQUEUE" in reason for reason in reasons)


def _starts_again(view: View) -> str | None:
    """How to explain steps that go back to their beginning several times, which no accident does; else None.

    Nothing is explained where an attempt failed or became non-finite: then it was restarted because of that.
    """
    restarts, first = view.restarts, view.first_step or 0
    start = first + 10
    if len({r.after for r in restarts}) > 1 and all(r.after <= start and r.before > 2 * start for r in restarts):
        return "like a counter that restarts in each epoch"
    begin = [first < r.before and r.after <= start for r in restarts]
    planned = len(restarts) > 1 and all(begin) and sum(r.after <= first for r in restarts) > 0.9 * len(restarts)
    if planned and not any(_failed_before(view, r.before) or overwritten_onset(view, r) for r in restarts):
        return "the counter starts over several times, as for parts of one training: folds, trials or phases"
    return None


def _announcement(view: View, restart: Restart) -> str | None:
    """The new phase that the log announces after the last step before the counter starts over; None if it does not.

    What an earlier start printed as well is no new phase.
    """
    starts_over = restart.after <= (view.first_step or 0)
    found = (c for c in announced(view) if c.tag in _PHASES and c.first == restart.before)
    return next((str(change) for change in found), None) if starts_over else None


def _dated(view: View, restart: Restart) -> str | None:
    """The line that a script or program prints at its start, between the steps of a restart from the first.

    Dates that come more often than attempts begin and end are printed in the course of one. Where more commands were
    typed at a shell prompt than restarts are seen, each restart is such a command. A line that announces a training
    ("Start training from ...") counts like a date, however many starts logged nothing.
    """
    lines = [e for e in view.events if e.kind == "attempt-dated"]
    typed = [e for e in lines if "prompt" in e.fields]
    if len(typed) > len(view.restarts):
        return str(next((e for e in typed if (e.step or 0) >= restart.before), typed[-1]).fields["said"])
    starts = [e for e in view.events if e.kind == "attempt-started" and e.step is not None]
    dates = [e for e in lines if e.step is not None and "prompt" not in e.fields]
    late = restart.before + max(10, restart.before // 20)  # the date is placed by the densest counter of the log
    found = next((str(e.fields["said"]) for e in dates if restart.before <= (e.step or 0) <= late), None)
    first = view.first_step or 0
    if restart.after <= first and found is not None and len(dates) <= 2 * len(view.restarts) + 2:
        return found
    if restart.after > first + 1:  # one program of the log may count from 0, another from 1
        return None
    return next((str(e.fields["said"]) for e in starts if restart.before <= (e.step or 0) <= late), None)


def _from_the_start(view: View, restart: Restart) -> bool:
    """Whether the steps go back to the first one: of the log, or of an attempt that logs every so many of its steps."""
    stream = next((s for s in view.run.streams if restart in s.restarts), None)
    if stream is None or restart.after <= max(view.first_step or 0, _NEAR_THE_START * restart.before):
        return stream is not None
    points, attempt = stream.points, int(stream.segment[restart.row])
    code = int(points.code[restart.row])
    rows = np.flatnonzero((points.code == code) & (stream.segment == attempt))
    gaps = np.diff(points.take("step", rows))
    interval = restart.after + int((view.first_step or 0) == 0 or restart.after % 10 == 9)  # 19, 39, 59 counts from 0
    return len(gaps) > 0 and bool(np.isin(gaps, (restart.after, interval)).mean() >= _USUAL)


def _losses(view: View, restart: Restart) -> tuple[NDArray[np.float64], NDArray[np.float64], list[NDArray[np.int64]]]:
    """The losses of the attempts before and after a restart, and the steps of each that has some."""
    loss = view.main("loss") or view.main("val_loss")
    stream = next((s for s in view.run.streams if restart in s.restarts), None)
    if loss is None or stream is None or loss.tag not in stream.points.tags:
        return np.empty(0), np.empty(0), []
    points, attempt = stream.points, int(stream.segment[restart.row])
    rows = np.flatnonzero(points.code == points.tags.index(loss.tag))
    old, new = (rows[stream.segment[rows] == a] for a in (attempt - 1, attempt))
    return points.value[old], points.value[new], [points.take("step", part) for part in (old, new) if len(part)]


def _goes_on(old: NDArray[np.float64], new: NDArray[np.float64]) -> bool:
    """Whether a loss that had fallen goes on where it was, as after a checkpoint was loaded without its step."""
    if min(len(old), len(new)) < _FEW:
        return False
    first, last, after = (median(part) for part in (old[:3], old[-3:], new[:3]))
    other = 0 < _OTHER * after < last
    return first - last > sigma(np.diff(old[-20:])) and after < last + _AT_ITS_LEVEL * (first - last) and not other


def _begins_anew(view: View, restart: Restart) -> bool:
    """Whether a complete training ended where the steps go back to the first one, and the loss does not go on."""
    if not _from_the_start(view, restart):
        return False
    old, new, steps = _losses(view, restart)
    if min(len(old), len(new)) < _FEW:
        return False
    ends = [int(part[-1]) for part in steps]
    complete = ends[0] == ends[1] or (_is_round(len(old)) and (_is_round(ends[0]) or _is_round(ends[0] + 1)))
    first, last, after = (median(part) for part in (old[:3], old[-3:], new[:3]))
    unrest = sigma(np.diff(old[-20:]))
    apart = abs(after - last) > max(0.5 * abs(first - last), 5 * unrest)
    if not apart and min(first, last, after) > 0:  # another loss, of another size
        apart = abs(np.log(after / last)) > max(np.log(3), abs(np.log(first / last)))
    return complete and apart


def _was_summed_up(view: View, restart: Restart) -> bool:
    """Whether the last rows before a restart are the summary that transformers' Trainer prints of a whole training."""
    stream = next((s for s in view.run.streams if restart in s.restarts), None)
    if stream is None:
        return False
    points = stream.points
    last = {points.tags[code] for code in points.code[max(0, restart.row - _SUMMARY) : restart.row].tolist()}
    return any(_SUMMARISED.search(tag) for tag in last)


def _repeats(view: View, restart: Restart) -> bool:
    """Whether the steps that were logged again gave the values of the first time: a resume that restored everything.

    Compared are the losses and gradient norms at all steps that both attempts logged, up to a hundredth of the noise
    between two steps: kernels that are not deterministic differ in the last digits.
    """
    stream = next((s for s in view.run.streams if restart in s.restarts), None)
    if stream is None or _from_the_start(view, restart):
        return False
    points, attempt = stream.points, int(stream.segment[restart.row])
    compared = same = 0
    for code, tag in enumerate(points.tags):
        if view.run.roles[tag] not in ("loss", "val_loss", "grad_norm"):
            continue
        rows = np.flatnonzero((points.code == code) & (points.take("rank", slice(None)) == restart.rank))
        old, new = (rows[stream.segment[rows] == a] for a in (attempt - 1, attempt))
        steps = (points.take("step", old), points.take("step", new))
        _, before, after = np.intersect1d(*steps, return_indices=True)
        a, b = points.value[old[before]], points.value[new[after]]
        if len(distinct(a)) >= _AGAIN and np.isfinite(a).all():
            compared += len(a)
            same += int((np.abs(a - b) <= 0.01 * sigma(np.diff(points.value[old]))).sum())
    return compared > 0 and same >= 0.95 * compared


def _written_twice(view: View, restart: Restart) -> bool:
    """Whether the steps go back by a row or two in a log whose rows are written twice, with the same losses.

    Two processes of one training that both write it, one a little later, look like that.
    """
    loss = view.main("loss")
    stream = next((s for s in view.run.streams if restart in s.restarts), None)
    if loss is None or stream is None or loss.tag not in stream.points.tags:
        return False
    points = stream.points
    rows = np.flatnonzero(points.code == points.tags.index(loss.tag))
    steps, _, count = occurrences(points.take("step", rows))
    if len(steps) < _FEW or restart.before - restart.after > 3 * median(np.diff(steps)):
        return False
    order = np.argsort(points.take("step", rows), kind="stable")
    value, twice = points.value[rows][order], np.flatnonzero(count > 1)
    starts = np.cumsum(count) - count
    same = np.abs(value[starts[twice] + 1] - value[starts[twice]]) <= 0.02 * np.abs(value[starts[twice]])
    return len(twice) >= 0.5 * len(steps) and bool(same.mean() > 0.9)


def _alternate(view: View) -> bool:
    """Whether most restarts go back to where the rows of a lower count ended, which both counts go on from.

    A job that is restarted from its checkpoints goes back to steps near those that it had reached, not to an older
    place each time, and its steps make no leap ahead between two restarts.
    """
    return any(_of_two_counts(stream) for stream in view.run.streams if len(stream.restarts) > _MOST)


def _of_two_counts(stream: Stream) -> bool:
    pairs = list(itertools.pairwise(stream.restarts))
    alternating = 0
    for one, other in pairs:
        steps = stream.points.take("step", slice(one.row, other.row))
        leap = int(np.argmax(np.diff(steps))) if len(steps) > 1 else -1
        if leap < 0 or one.rank != other.rank:
            continue
        low, high = int(steps[leap]), int(steps[leap + 1])  # where the lower count ended, and the upper one goes on
        alternating += low <= other.after < high and high >= one.before
    return len(pairs) > 0 and alternating >= _USUAL * len(pairs)


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
    length, or that of the next one), and whose loss does not go on from there, and for one that the log announces where
    the counter starts over ("Phase 2: fine-tuning", a date line of the job script, a title with a date); if nothing of
    a training (loss, learning rate, gradient norm) is logged after it, which is an evaluation of saved checkpoints; and
    if the counter of a text log or a table starts over with a loss that does not go on from where it was: a training
    that was started anew, with its output appended to the same log; and if the counter starts over after an exception
    and the run completed or came farther than before; and if the
    scheduler preempted the job and it resumed; and if the steps that were logged again gave the same losses and
    gradient norms as the first time; and if they go back by a row or two in a log of which most rows were written
    twice, with the same loss; and if nothing is logged by which a training is known.

    Known false positives: two phases or folds in one log that nothing announces and whose losses go on from one to the
    next.
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
        every = list(self._restarts(view)) if view.restarts else []
        warned = [f for f in every if f.severity != "info"]
        if len(warned) <= _MOST:
            yield from every
            return
        steps = ", ".join(f"from {f.evidence['before']} to {f.evidence['after']}" for f in warned[1:_MOST])
        message = f"{warned[0].message}; {len(warned) - 1} more times, {steps} and so on"
        if _alternate(view):
            message += ": the steps alternate between two counts that both go on, as if two processes write to one log"
        yield replace(warned[0], message=message, evidence={**warned[0].evidence, "restarts": len(warned)})
        yield from (f for f in every if f.severity == "info")

    def _restarts(self, view: View) -> Iterator[Finding]:
        again, evaluations = _starts_again(view), _evaluations(view)
        first = {(r.before, r.after): r for r in reversed(view.restarts)}
        for restart in sorted(first.values(), key=view.restarts.index):
            how, explained = _how(view, restart, again, evaluations)
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


def _how(view: View, restart: Restart, again: str | None, evaluations: set[int]) -> tuple[str, bool]:
    """How the steps went back, and whether that is explained."""
    onset, failed = overwritten_onset(view, restart), _failed_before(view, restart.before)
    starts_over = _from_the_start(view, restart)
    how = "the counter starts over" if starts_over else f"{_span(restart.after, restart.before)} logged twice"
    if onset:
        how += f"; before, {onset[0]} was non-finite (NaN or Inf) from step {onset[1]} on"
    if failed:
        how += f", after the program failed: {failed}"
    if again:
        return again, True
    if onset is None and not starts_over and _preempted(view, restart):
        return f"{how}, as the job was preempted and resumed", True
    if onset is None and _repeats(view, restart):
        return f"{how} with the same values: it resumed exactly from a saved state", True
    if onset is None and failed is None and (told := _planned(view, restart, starts_over)):
        return told, True
    if not view.of(*_OF_TRAINING):
        return f"{how}; nothing is logged by which a training is known, such as a loss or a learning rate", True
    if id(restart) in evaluations:
        return "no loss is logged from there on, so it is likely an evaluation of saved checkpoints", True
    farther = view.run.ended == "completed" or (view.last_step or 0) > restart.before
    return how, starts_over and failed is not None and onset is None and farther


def _planned(view: View, restart: Restart, starts_over: bool) -> str | None:
    """What explains a restart after which no failure and no non-finite value was logged; None for an accident."""
    if _written_twice(view, restart):
        return "the rows are written twice, likely by two processes of one training"
    if phase := _announcement(view, restart):
        return f"the counter starts over, as {phase}"
    if date := _dated(view, restart):
        return f"a new attempt was appended to the log: it begins after the line {date!r}"
    if _begins_anew(view, restart) or _was_summed_up(view, restart):
        return "the one before was complete: a new training or phase begins"
    stream = next((s for s in view.run.streams if restart in s.restarts), None)
    appended = stream is not None and stream.source in _APPENDED
    if starts_over and appended and view.of(*_OF_TRAINING) and id(restart) not in _evaluations(view):
        old, new, _ = _losses(view, restart)
        return None if _goes_on(old, new) else "the counter starts over: a new training in the same log"
    return None


def _span(first: int, last: int) -> str:
    return f"step {last} was" if first == last else f"steps {first} to {last} were"
