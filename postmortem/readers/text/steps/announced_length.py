"""The planned length of a training and its logged progress: distinguishes a silent death from a regular end.

The plan is a counter with its total (``iteration 10/150``, ``Epoch 3/20``, a bar), or a line near the beginning that
announces it. A counter that starts again in every epoch shows how much of an epoch is done; the counter of an
evaluation shows nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.distinct import occurrences
from postmortem.core.stats import median
from postmortem.readers.text.steps.row_store import BAR, EVALUATION, FRACTIONAL, NO_STEP, SAMPLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from postmortem.readers.text.steps.row_store import StoredRows

_TAIL = 50_000
"""Rows at the end of a log that are searched."""
_LATELY = 100
"""The training's own counter must be among this many last rows with values."""
_SOON = 3_000
"""Lines at the beginning that are searched for a plan."""
ANNOUNCED = ("workflow: [", "optimization steps", "Num Epochs", "Num epochs")
"""Texts that announce a plan anywhere in a log."""
_WORDS = ("epochs", "steps", "iters", "iterations", "updates", "max: ")
"""A plan contains one of them."""
_STEPS = re.compile(
    r"(?i:(?<![\w.])(?:total (?:optimization|training|train) steps|total[ _]steps"
    r"|(?:max|num|total)_?train(?:ing)?_?(?:steps|iters|iterations)"
    r"|train_iters|--max[_-]steps)['\"]?\s{0,3}[:= ]\s{0,3}|\bmax: )(?P<n>\d[\d,]{0,14})(?!\w|\.\d)(?P<unit> iters)?"
)
_SENTENCE = re.compile(
    r"(?i:\b(?:plan(?:ned)?:?|(?:to|will) train for|training for)\s{1,3}(?P<n>\d[\d,]{0,14})"
    r" (?:(?:optimi[sz]er|training|gradient) )?(?:updates|steps|iterations|iters)(?=[\s,;.)]|$))"
)
_EPOCHS = re.compile(
    r"(?i:(?<![\w.])(?:num(?:ber)?[ _](?:of[ _])?(?:train[ _]|training[ _])?epochs|max[_ ]epochs?|total[ _]epochs"
    r"|n_epochs|epochs|--epochs)"
    r"['\"]?\s{0,3}[:= ]\s{0,3}"
    r"|\bmax: )(?P<n>\d{1,6})(?:\.0)?(?!\w|\.\d)(?P<unit> epochs)?"
)


@dataclass(slots=True)
class Announcements:
    """The plan as lines announce it; None if none was announced."""

    steps: int | None = None
    epochs: int | None = None

    def watch(self, lines: Sequence[tuple[int, str]], anchored: Sequence[int]) -> None:
        """Look for a plan in lines, in order. Those with an anchor of the prefilter, `ANNOUNCED` among them, are
        `anchored`, by their indices; others count near the beginning only."""
        for i in range(len(lines)) if lines[0][0] <= _SOON else anchored:
            number, text = lines[i]
            if number <= _SOON or any(words in text for words in ANNOUNCED):
                self._look(text[:20_000])

    def _look(self, text: str) -> None:
        low = text.lower()
        if not any(word in low for word in _WORDS):
            return
        found = _STEPS.search(text)
        if found is None or ("max: " in found[0].lower() and not found["unit"]):
            found = _SENTENCE.search(text)
        if found is not None:
            self.steps = int(found["n"].replace(",", "")) or None
        if (found := _EPOCHS.search(text)) and ("max: " not in found[0].lower() or found["unit"]):
            self.epochs = int(found["n"]) or None


def planned(
    rows: StoredRows,
    step: NDArray[np.int64],
    epoch: NDArray[np.float64],
    keep: NDArray[np.bool_],
    announced: Announcements | None,
) -> dict[str, Any]:
    """What was planned and done, by the last rows: "unit" (step or epoch), "planned", "done"; empty if unknown.

    `step` is the global step of each row, `epoch` its epoch; `keep` is False for states of a bar that were replaced.
    """
    tail = slice(-_TAIL, None)
    rows, step, epoch, keep = rows[tail], step[tail], epoch[tail], keep[tail]
    announced = announced or Announcements()
    training = ((rows["flags"] & EVALUATION) == 0) & keep
    known = np.flatnonzero(training & (step != NO_STEP))
    found = _by_rows(rows, step, epoch, training, announced)
    if not found and announced.steps and len(known) and not (rows["flags"][known[-1]] & SAMPLES):
        done = int(step[known[-1]])
        found = {"unit": "step", "planned": announced.steps, "done": done} if done <= announced.steps else {}
    return found


def _by_rows(
    rows: StoredRows,
    step: NDArray[np.int64],
    epochs_at: NDArray[np.float64],
    training: NDArray[np.bool_],
    announced: Announcements,
) -> dict[str, Any]:
    epoch, base = _epochs_done(rows, epochs_at)
    epochs = _last(rows["epochs"], rows["epochs"] > 0) or announced.epochs
    counted = _training_counter(rows, training)
    if counted is None:
        if epoch is None or not epochs:
            return {}
        whole = not (rows["flags"][training] & FRACTIONAL).any()
        done = epoch - base + _share_of_last(rows, epochs_at) if whole else epoch
        return {"unit": "epoch", "planned": int(epochs), "done": done}
    n, total = _position(rows, counted)
    starts_again = _starts_again(rows, step, counted)
    if epochs and epoch is not None and starts_again:
        return {"unit": "epoch", "planned": int(epochs), "done": epoch - base + n / total}
    if starts_again or (epoch is not None and n >= total):
        return {}  # a position in one epoch, of an unknown number
    return {"unit": "step", "planned": total, "done": n}


def _training_counter(rows: StoredRows, training: NDArray[np.bool_]) -> NDArray[np.intp] | None:
    """Rows that count training steps up to a known total: rows with values, else a bar beside such rows."""
    counted = training & (rows["total"] > 1) & (rows["step"] != NO_STEP)
    filled = np.flatnonzero(rows["count"] > 0)
    with_values = filled[counted[filled]]
    if len(with_values) and with_values[-1] < filled[max(-_LATELY, -len(filled))]:
        return None  # it counted something else, before the training
    if len(with_values):
        kind = rows["dialect"][with_values]
        return np.asarray(with_values[kind == kind[-1]])
    bars = np.flatnonzero(counted & ((rows["flags"] & BAR) > 0))
    if not len(bars) or not (rows["flags"] & FRACTIONAL).any():
        return None
    totals, _, votes = occurrences(rows["total"][bars])
    most = totals[np.lexsort((totals, votes))[-1]]
    return np.flatnonzero(counted & ((rows["flags"] & BAR) > 0) & (rows["total"] == most))


def _position(rows: StoredRows, counted: NDArray[np.intp]) -> tuple[int, int]:
    """The last position of a counter and its total.

    A counter that is not printed in every step is at its end if less than one of its intervals is left.
    """
    n, total = rows["step"][counted].astype(np.int64), int(rows["total"][counted[-1]])
    gaps = np.diff(n)
    gaps = gaps[gaps > 0]
    left = total - int(n[-1])
    return (total if len(gaps) and left <= 1.5 * median(gaps) else int(n[-1])), total


def _starts_again(rows: StoredRows, step: NDArray[np.int64], counted: NDArray[np.intp]) -> bool:
    """Whether the counter counts within an epoch: it was made global, falls, or its dialect knows the first epoch."""
    n = rows["step"][counted]
    return bool((step[counted] != n).any() or (np.diff(n) < 0).any() or (rows["base"][counted] >= 0).any())


def _epochs_done(rows: StoredRows, epoch: NDArray[np.float64]) -> tuple[float | None, float]:
    """The last epoch that was printed, and the number of the first."""
    epoch = epoch[~np.isnan(epoch)]
    if not len(epoch):
        return None, 0.0
    known = rows["base"][rows["base"] >= 0]
    first = min(float(np.floor(epoch.min())), float(known[0]) if len(known) else 1.0)
    return float(epoch[-1]), first


def _share_of_last(rows: StoredRows, epoch: NDArray[np.float64]) -> float:
    """How much of the last epoch was logged, by its values: an epoch that has only begun is not done.

    1 where an epoch has as many values as those before, or where too few show how many it should have.
    """
    known = np.flatnonzero(~np.isnan(epoch))
    begins = known[np.concatenate(([0], np.flatnonzero(np.diff(epoch[known])) + 1))]
    logged = np.add.reduceat(rows["count"].astype(np.int64), begins)
    if len(logged) < 3:
        return 1.0
    usual = median(logged[:-1])
    return 1.0 if logged[-1] >= 0.6 * usual else float(logged[-1]) / usual


def _last(column: NDArray[Any], where: NDArray[np.bool_]) -> int | None:
    index = np.flatnonzero(where)
    return int(column[index[-1]]) if len(index) else None
