"""Which step a number belongs to: from positions as rows print them to one step axis for the file.

In order of trust: a step that the row names; a position within an epoch, made global with the length of an epoch; the
redrawn bar around the row; the last step named before; the epoch; the order of lines. All with numpy, over the whole
file at once, because one line cannot tell whether its counter starts again in every epoch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from postmortem.core.distinct import distinct
from postmortem.core.points import Points
from postmortem.core.roles import role_of
from postmortem.core.skipped import Skip, Skips
from postmortem.core.stats import median
from postmortem.readers.text.steps.ahead import is_at, printed_ahead, with_following
from postmortem.readers.text.steps.announced_length import planned
from postmortem.readers.text.steps.counters import (
    agreeing,
    counted_on,
    cycles,
    is_alone,
    is_finer,
    is_plausible,
    is_stuck,
    lacks_epochs,
    main_quantity,
    starts_again,
)
from postmortem.readers.text.steps.draft import Draft
from postmortem.readers.text.steps.epoch_values import placed_by_epoch
from postmortem.readers.text.steps.epochs import epoch_ends, from_bars, global_steps, only_bars_again
from postmortem.readers.text.steps.repeats import again
from postmortem.readers.text.steps.row_store import EVALUATION, NO_STEP
from postmortem.readers.text.steps.shared_names import set_shared_apart
from postmortem.readers.text.steps.summaries import SCORES, of_training, summaries, whole_epochs
from postmortem.readers.text.steps.taken import taken

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers.text.steps.announced_length import Announcements
    from postmortem.readers.text.steps.row_store import RowStore, StoredRows


@dataclass(slots=True)
class Resolved:
    """Points of the file, the step known at each row, and how steps were found."""

    points: Points
    line: NDArray[np.uint32]
    rank: NDArray[np.int16]
    step: NDArray[np.int64]
    """Last step known at this row; NO_STEP if there is none."""
    axis: str = "step"
    notes: list[str] = field(default_factory=list)
    skipped: Skips = field(default_factory=Skips)
    plan: dict[str, Any] = field(default_factory=dict)
    """How long the training was to be, and how far it came; see `announced_length.planned`."""
    ends: dict[int, int] = field(default_factory=dict)
    """The last step of each epoch that rows name beside their step."""


_THING = re.compile(r"(?i)(?:^|[\W_])(?:class|category|label|fold|layer|cluster)(?:[\W_]?(?:id|idx|index))?$")
"""What is numbered in a listing, not in the course of a training: ``class 12 iou: 0.5``."""


class Axis(NamedTuple):
    """What counts the steps: "step", "epoch" or "row".

    `step` is the step of each row for its values, `at_row` the last step known at each row. Values at the indices
    `epoch` stand at the epoch of their row instead, and their step only orders them. `before_row` is the last step that
    the log prints up to each row, for messages.
    """

    name: str
    step: NDArray[np.int64]
    at_row: NDArray[np.int64]
    before_row: NDArray[np.int64]
    epoch: NDArray[np.intp]


_PHASE = 5  # so many epochs before the first step are a phase of their own; fewer are evaluations
_NONE: NDArray[np.intp] = np.empty(0, np.intp)


def resolve(store: RowStore, announced: Announcements | None = None) -> Resolved:
    """Give every value its step; drop replaced states of bars and what was printed before the training began.

    Empties `store`. `announced` is what the text says about the length of the training.
    """
    draft = Draft.of(store)
    set_shared_apart(draft)
    rows = draft.rows
    if not len(rows):
        return Resolved(Points.empty(), rows["line"], rows["rank"], rows["step"], "row")
    axis = _axis(draft)
    rows = draft.rows
    _fill_absent(draft)
    if axis.name != "row":
        draft.keep &= ~again(draft, axis.step)
    counted = axis.at_row if axis.name == "step" else np.full(len(rows), NO_STEP)
    plan = planned(rows, counted, *of_training(draft), announced)
    line, rank, ends = rows["line"], rows["rank"], epoch_ends(draft.epoch, counted)
    del rows, counted
    notes, skipped = draft.notes, draft.skipped
    return Resolved(
        taken(draft, axis.step, axis.epoch), line, rank, axis.before_row, axis.name, notes, skipped, plan, ends
    )


def _axis(draft: Draft) -> Axis:
    """The best axis that the rows have. Values that have no place on it are dropped."""
    main = main_quantity(draft)
    if main is not None and lacks_epochs(draft.epoch, draft.rows, main):
        draft.forget_epochs()
    rows = draft.rows
    step, exact = global_steps(rows, draft.notes)
    step, exact = from_bars(rows, step, exact, draft.notes)
    placing = exact
    loop = None if main is None else starts_again(rows, step, exact, main)
    if loop is not None and loop.length is not None:
        step = counted_on(step, loop, draft.notes)
    if main is not None:
        exact, placing = agreeing(draft, step, exact, main)
    filled = rows["count"] > 0
    whole = whole_epochs(draft.epoch)
    has_epochs = bool((whole & filled).any() and not (~whole & ~np.isnan(draft.epoch)).any())
    if (exact & filled).any() or (exact.sum() > 1 and not (has_epochs and only_bars_again(rows, exact))):
        at_row = _carried(rows, step, exact, placing)
        finer = has_epochs and main is not None and is_finer(draft.epoch, at_row, exact, main)
        finer |= has_epochs and is_alone(draft.epoch, exact & filled)
        if main is not None and is_stuck(draft.epoch, at_row, exact, main):
            finer = has_epochs = True
        if loop is not None and loop.length is None:
            draft.notes.append(f"the step counter starts again {loop.passes - 1} times: it does not count the training")
        elif finer or (main is not None and not is_plausible(at_row, exact, main)):
            draft.notes.append("numbers that look like steps are not those of the training: they are not used")
        else:
            return _by_step(draft, at_row, exact)
    if has_epochs:
        return _by_epoch(draft, whole)
    counter = _counter(draft)
    return _by_order(draft) if counter is None else _by_counter(draft, counter)


def _by_step(draft: Draft, at_row: NDArray[np.int64], exact: NDArray[np.bool_]) -> Axis:
    """Steps that rows name; other rows have the last one named before."""
    step = at_row
    whole = whole_epochs(draft.epoch)
    early = np.flatnonzero((step == NO_STEP) & whole)
    if len(early):  # an evaluation before the first step
        early = early[_scored(draft)[early]]
        step = step.copy()
        step[early] = draft.epoch[early].astype(np.int64)
    step = _evaluated_first(draft, exact, step)
    ahead, following = printed_ahead(draft, exact)
    step = with_following(step, ahead, following)
    draft.drop(draft.cells.of(np.flatnonzero(step == NO_STEP)), Skip.BEFORE_FIRST_STEP)
    draft.drop(_implausible(draft, exact, step, whole | is_at(ahead, len(whole))), Skip.OUTSIDE_LOOP)
    draft.set_apart(summaries(draft, exact), "summary")
    evaluated = exact & (draft.rows["flags"] & EVALUATION > 0)  # at the end of their epoch, which is not printed
    before = _carried(draft.rows, at_row, exact & ~evaluated) if evaluated.any() else at_row
    if len(early) and len(distinct(step[early])) >= _PHASE:  # a phase that counted epochs, before one of other steps
        before = np.where(before == NO_STEP, step, before)
        before = _carried(draft.rows, before, before != NO_STEP)
    return Axis("step", step, at_row, before, placed_by_epoch(draft))


def _scored(draft: Draft) -> NDArray[np.bool_]:
    """Which rows print a loss or a score, or name their epoch themselves: a listing of settings does neither."""
    scores = np.array([role_of(tag) in (*SCORES, "val_accuracy") for tag in draft.tags], bool)
    printed = np.bincount(draft.cells.owner()[scores[draft.codes]], minlength=len(draft.rows)) > 0
    own: NDArray[np.bool_] = printed | ~np.isnan(draft.rows["epoch"])
    return own


def _evaluated_first(draft: Draft, exact: NDArray[np.bool_], step: NDArray[np.int64]) -> NDArray[np.int64]:
    """The steps, with an evaluation before the first step placed one interval before it, at 0 at the least.

    It is a row of scores only, which rows without a step print again later: no line of a configuration.
    """
    filled = draft.rows["count"] > 0
    early, named = np.flatnonzero((step == NO_STEP) & filled), step[exact & filled & (step != NO_STEP)]
    if not len(early) or not len(named):
        return step
    again = np.zeros(len(draft.tags), bool)
    again[draft.codes[draft.cells.of(np.flatnonzero(~exact & filled & (step != NO_STEP)))]] = True
    again &= np.array([role_of(tag) in (*SCORES, "val_accuracy") for tag in draft.tags], bool)
    count = draft.rows["count"][early].astype(np.intp)
    fine = np.logical_and.reduceat(again[draft.codes[draft.cells.of(early)]], np.cumsum(count) - count)
    if not fine.any():
        return step
    moves = np.diff(distinct(named))
    step = step.copy()
    step[early[fine]] = max(0, int(named[0]) - int(median(moves) if len(moves) else 1))
    return step


def _by_epoch(draft: Draft, whole: NDArray[np.bool_]) -> Axis:
    """No row names a step, but all epochs are whole: they are the steps, also of the rows that follow."""
    named = np.where(whole, np.where(whole, draft.epoch, 0).astype(np.int64), NO_STEP)
    step = _carried(draft.rows, named, whole)
    ahead, following = printed_ahead(draft, whole)
    step = with_following(step, ahead, following)
    earlier = (step == NO_STEP) & (draft.rows["step"] != NO_STEP) & _scored(draft)  # a phase that counts its own steps
    step = np.where(earlier, draft.rows["step"], step)
    draft.drop(draft.cells.of(np.flatnonzero(step == NO_STEP)), Skip.BEFORE_FIRST_STEP)
    draft.drop(_implausible(draft, whole, step, whole | earlier | is_at(ahead, len(whole))), Skip.OUTSIDE_LOOP)
    if earlier.any():
        draft.notes.append("steps are those printed before the first epoch, and epochs from there on")
    else:
        draft.notes.append("no step is printed: steps are epochs")
    return Axis("epoch", step, step, step, _NONE)


def _by_counter(draft: Draft, counter: NDArray[np.int64]) -> Axis:
    """An unknown number that rises from row to row is the step."""
    step = _carried(draft.rows, counter, counter != NO_STEP)
    draft.keep[draft.cells.of(np.flatnonzero(step == NO_STEP))] = False
    draft.notes.append("no step is named: steps are a number that increases from row to row")
    return Axis("step", step, step, step, _NONE)


def _by_order(draft: Draft) -> Axis:
    """Nothing counts: the order of lines is the step."""
    draft.keep &= _repeated(draft)
    step = cycles(draft)
    if draft.keep.any():
        draft.notes.append("no step is printed: rows are counted, in the order of lines, and a row number is no step")
    nothing = np.full(len(draft.rows), NO_STEP)
    return Axis("row", step, nothing, nothing, _NONE)


def _fill_absent(draft: Draft) -> None:
    """Keep the NaN of a tag that a row left out only after earlier rows printed the tag."""
    codes = draft.codes
    for code, name, real in draft.absent_tags():
        mine = codes == code
        if real is None:
            draft.keep &= ~mine
            continue
        first = int(np.flatnonzero(codes == real)[0])
        early = mine.copy()
        early[first:] = False
        draft.keep &= ~early
        if left := int((mine & draft.keep).sum()):
            draft.notes.append(
                f"{name} is missing from {left} lines of a kind that usually prints it: "
                "the logger omits NaN (and negative) means, so these points are NaN"
            )
        codes[mine] = real


def _carried(
    rows: StoredRows, step: NDArray[np.int64], exact: NDArray[np.bool_], placing: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """The step of each row. Rows without one get the last one of their rank, or of any rank if theirs is unknown.

    Of the rows that are `exact`, only those that are `placing` (default: all) give their step to others.
    """
    placing = exact if placing is None else placing
    silent = np.flatnonzero(~placing)
    if not len(silent):
        return step
    starts = np.concatenate(([True], silent[1:] != silent[:-1] + 1))  # of consecutive rows that place no others
    last = silent[np.maximum.accumulate(np.where(starts, np.arange(len(silent)), 0))] - 1
    asks = ~exact[silent]
    asking, last = silent[asks], last[asks]
    if not len(asking):
        return step
    step = step.copy()
    rank = rows["rank"][asking]
    for r in distinct(rank):
        mine = rank == r
        named = np.flatnonzero(placing & (rows["rank"] == r)) if r != -1 else asking[:0]
        if len(named):
            before = np.searchsorted(named, asking[mine])
            last[mine] = np.where(before > 0, named[np.maximum(before - 1, 0)], -1)
    step[asking] = np.where(last >= 0, step[last], NO_STEP)
    return step


def _implausible(
    draft: Draft, exact: NDArray[np.bool_], step: NDArray[np.int64], placed: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """Indices of values in rows without a step that are no metrics: their tag is neither a known quantity nor repeated.

    The configuration of a new attempt is printed between the last step of the previous one and its first: there only
    tags count that are also printed between steps elsewhere. `placed` are rows that an epoch places.
    """
    rows, codes, cells, tags = draft.rows, draft.codes, draft.cells, draft.tags
    filled = rows["count"] > 0
    loose_rows = np.flatnonzero(~exact & ~placed & filled)
    named = np.flatnonzero(exact & filled)
    if not len(loose_rows) or not len(named):
        return np.empty(0, np.intp)
    following = np.searchsorted(named, loose_rows, side="right")
    last = np.iinfo(np.int64).max
    ahead = np.where(following < len(named), step[named[np.minimum(following, len(named) - 1)]], last)
    gap = np.repeat(ahead < step[loose_rows], rows["count"][loose_rows])
    loose = cells.of(loose_rows)
    gap, loose = gap[draft.keep[loose]], loose[draft.keep[loose]]
    here = np.bincount(codes[loose[~gap]], minlength=len(tags))
    known = np.array([n > 0 and role_of(t) is not None for t, n in zip(tags, here.tolist(), strict=True)], bool)
    fine = (here >= 3) | known
    if ((here > 0) & ~fine).any():
        own = draft.keep.copy()
        own[loose] = False
        stepped = np.zeros(len(tags), bool)
        stepped[codes[own]] = True
        fine |= (here > 0) & stepped
    foreign: NDArray[np.intp] = loose[~fine[codes[loose]]]
    return foreign


def _varies(draft: Draft, code: int) -> bool:
    """Whether a tag has three values and more: a setting of two programs has two."""
    return len(distinct(draft.values[draft.keep & (draft.codes == code)])) > 2


def _repeated(draft: Draft) -> NDArray[np.bool_]:
    """Which values are metrics if there is no step: repeated tags, losses and scores. The rest is a listing."""
    count = np.bincount(draft.codes[draft.keep], minlength=len(draft.tags))
    roles = [role_of(t) for t in draft.tags]
    longest = max((int(c) for c, r in zip(count, roles, strict=True) if r in SCORES), default=0)
    alone = {*SCORES, "val_accuracy", "grad_norm"}
    fine = (count >= 3) | np.array([r in alone for r in roles], bool) | ((count == longest) & (longest > 0))
    if longest == 0:  # of nothing but numbers without a meaning, those that hardly change measure nothing
        fine &= np.array([count[i] >= 3 and _varies(draft, i) for i in range(len(count))], bool)
    is_metric: NDArray[np.bool_] = fine[draft.codes]
    if n := int((draft.keep & ~is_metric).sum()):
        draft.skipped[Skip.LISTING] += n
    return is_metric


def _counter(draft: Draft) -> NDArray[np.int64] | None:
    """The step of each row by an unknown whole number at its start that rises; None if there is none."""
    codes, keep, owner = draft.codes, draft.keep, draft.cells.owner()
    if not keep.any():
        return None
    count = np.bincount(codes[keep], minlength=len(draft.tags))
    first = np.ones(len(codes), bool)
    first[1:] = owner[1:] != owner[:-1]  # first in its row
    leads = np.bincount(codes[keep & first], minlength=len(draft.tags)) > 0
    for code in np.flatnonzero(leads & (count >= max(4, 0.9 * count.max()))).tolist():
        mine = np.flatnonzero(keep & (codes == code))
        v = draft.values[mine]
        if (
            role_of(tag := draft.tags[code]) is not None
            or _THING.search(tag)
            or not np.isfinite(v).all()
            or (v != np.floor(v)).any()
        ):
            continue
        if (np.abs(v) < 2**53).all() and _counts(draft, mine):
            step = np.full(len(draft.rows), NO_STEP)
            step[owner[mine]] = v.astype(np.int64)
            return step
    return None


def _counts(draft: Draft, mine: NDArray[np.intp]) -> bool:
    """Whether the numbers at `mine` rise from row to row, but for a few restarts.

    A number may stand still where the rows with it print different tags: those of the training and of its evaluation.
    """
    moves = np.diff(draft.values[mine])
    moved = moves[moves != 0]
    if len(moved) < max(3, 0.5 * len(moves)) or (moved > 0).mean() <= 0.9:
        return False
    if len(moved) == len(moves):
        return True
    owner = draft.cells.owner()
    at = np.full(len(draft.rows), -1)
    at[owner[mine]] = np.concatenate(([0], np.cumsum(moves != 0)))
    others = np.flatnonzero(draft.keep & (at[owner] >= 0) & (draft.codes != draft.codes[mine[0]]))
    pairs = at[owner[others]] * len(draft.tags) + draft.codes[others]
    return len(distinct(pairs)) == len(pairs)
