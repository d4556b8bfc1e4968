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
    rb"\b([A-Za-z_][\w/.@]*+[\"']?(?: ?[:=] ?| ))([-+]?\d++(?:\.\d++)?(?:[eE][-+]?\d++)?|nan|NaN|-?inf)(?=[\s,|;:%)\]}]|[a-zA-Z]{1,3}\b)"
    rb"|[\n\r\0]"
)
_NAME = re.compile(rb"[\w/.@]+")
_KNOWN = re.compile("loss|acc|lr|norm|ppl|err|reward|score|perplex|time|tok|mem|grad|scale|bleu|f1|iou|map|kl|mse|mae")

_NOTHING, _END = -1, -1000


def read_quickly(rows: Rows, which: NDArray[np.intp], track: Track, out: Ordered, dialect: int) -> int:
    """Reads rows by the pattern into `out` -> how many of them had a number with a name."""
    first, last = int(which[0]), int(which[-1])
    if last - first == len(which) - 1:
        data = rows.padded[int(rows.start[first]) : int(rows.start[last] + rows.length[last]) + 1]
    else:
        data = b"\n".join([rows.bytes(i) for i in which.tolist()]) + b"\n"
    pairs = _PAIR.findall(data)
    codes = _Codes(track)
    code = np.array([codes[name] for name, _ in pairs], np.int32)
    row = np.cumsum(code == _END)
    is_value = code >= 0
    counts = np.bincount(row[is_value], minlength=len(which))[: len(which)]
    steps, levels = np.full(len(which), NO_STEP), [0] * len(which)
    for i in np.flatnonzero((code < _NOTHING) & (code > _END)).tolist():
        digits, level, at = pairs[i][1], int(_NOTHING - code[i]), int(row[i])
        if level > levels[at] and digits.isdigit():
            steps[at], levels[at] = min(int(digits), 2**62), level
    told = np.flatnonzero((counts > 0) | (steps != NO_STEP))
    found = np.zeros(len(told), ROW)
    found["rank"], found["wall_time"] = -1, np.nan
    found["step"] = steps[told]
    found["total"] = found["epochs"] = found["base"] = -1
    found["epoch"], found["level"], found["dialect"], found["count"] = np.nan, 3, dialect, counts[told]
    values = [float(pairs[i][1]) for i in np.flatnonzero(is_value).tolist()]
    out.add_all(which[told], found, code[is_value], values)
    return int((counts > 0).sum())


class _Codes(dict[bytes, int]):
    """What a name with the sign behind it means: the code of a tag, `_NOTHING` less the level of the word of a step, `_NOTHING` or `_END`."""

    def __init__(self, track: Track) -> None:
        super().__init__({b"": _END})
        self._track = track

    def __missing__(self, raw: bytes) -> int:
        name = _NAME.match(raw)[0]  # type: ignore[index]  # the pattern of pairs starts with one
        code = self._code(name.decode("ascii", "replace"), raw[len(name) :].lstrip(b"\"'") == b" ")
        self[raw] = code
        return code

    def _code(self, name: str, bare: bool) -> int:
        low = name.lower()
        if low in POSITIONS or any(word in low for word in ("step", "iter", "epoch", "update")):
            where = position(name)
            if where is not None:
                return _NOTHING - where[1] if where[0] == "step" else _NOTHING
        if bare and _KNOWN.search(low) is None:
            return _NOTHING  # a word in front of a number is a name only if it is a known one
        return self._track.code(name)
