"""A simple pattern for logs in which no two lines have the same words: names and numbers, and the step.

Such a log would cost a full parse per line. What is read here is what a search for ``name=1``, ``name: 1`` and ``name 1``
finds; the reader says so, and how many lines it concerns.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from postmortem.readers._miner import POSITIONS, position
from postmortem.readers._track import NO_STEP, ROW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.readers._rows import Ordered, Rows
    from postmortem.readers._track import Track

_PAIR = re.compile(
    rb"\b([A-Za-z_][\w/.@]*+)[\"']?( ?[:=] ?| )([-+]?\d++(?:\.\d++)?(?:[eE][-+]?\d++)?|nan|NaN|-?inf)(?=[\s,|;:%)\]}]|[a-zA-Z]{1,3}\b)"
    rb"|([\n\r\0])"
)
_KNOWN = re.compile("loss|acc|lr|norm|ppl|err|reward|score|perplex|time|tok|mem|grad|scale|bleu|f1|iou|map|kl|mse|mae")


def read_quickly(rows: Rows, which: NDArray[np.intp], track: Track, out: Ordered, dialect: int) -> int:
    """Reads rows by the pattern into `out` -> how many of them had a number with a name."""
    first, last = int(which[0]), int(which[-1])
    if last - first == len(which) - 1:
        data = rows.padded[int(rows.start[first]) : int(rows.start[last] + rows.length[last]) + 1]
    else:
        data = b"\n".join([rows.bytes(i) for i in which.tolist()]) + b"\n"
    known: dict[bytes, int] = {}
    steps, counts, codes, values = [], [], [], []
    step, level, count = NO_STEP, 0, 0
    for name, sign, value, end in _PAIR.findall(data):
        if end:
            steps.append(step)
            counts.append(count)
            step, level, count = NO_STEP, 0, 0
            continue
        code = known.get(name)
        if code is None:
            code = known[name] = _code(name.decode("ascii", "replace"), track)
        if code >= 0:
            if sign == b" " and code & 1:
                continue  # a word in front of a number is a name only if it is a known one
            codes.append(code >> 1)
            values.append(float(value))
            count += 1
        elif -code - 1 > level and value.isdigit():
            step, level = min(int(value), 2**62), -code - 1
    counts_ = np.array(counts[: len(which)])
    told = np.flatnonzero((counts_ > 0) | (np.array(steps[: len(which)]) != NO_STEP))
    found = np.zeros(len(told), ROW)
    found["line"], found["rank"], found["wall_time"] = rows.line[which[told]], -1, np.nan
    found["step"] = np.array(steps)[told]
    found["total"] = found["epochs"] = found["base"] = -1
    found["epoch"], found["level"], found["dialect"], found["count"] = np.nan, 3, dialect, counts_[told]
    out.add_all(which[told], found, codes, values)
    return int((counts_ > 0).sum())


def _code(name: str, track: Track) -> int:
    """Twice the code of a tag, odd where no role is known; -1 - level for the word of a step; -1 for what is neither."""
    low = name.lower()
    if low in POSITIONS or any(word in low for word in ("step", "iter", "epoch", "update")):
        where = position(name)
        if where is not None:
            return -1 - where[1] if where[0] == "step" else -1
    return 2 * track.code(name) + (_KNOWN.search(low) is None)
