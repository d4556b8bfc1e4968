"""Finds the few lines that contain one of many plain texts, at hundreds of megabytes per second.

Each text is represented by its rarest four bytes. All windows of four bytes of the data are hashed at once, and where a
hash is known the whole text is compared. The cost is a few passes over the data, whatever the number of texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from postmortem.core.distinct import distinct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_BITS = 20
_PIECE = 1 << 16
"""Windows hashed at a time: their hashes stay in the cache."""
_SINGLE = 1 << 11
"""As few windows are looked at one by one: faster than numpy's calls."""
_MULTIPLIER = np.uint32(2654435761)
_COMMON = {letter: 26 - i for i, letter in enumerate(b" etaoinsrlhdcumpfgwybvkxjqz")} | dict.fromkeys(
    b"0123456789:,.=[]()'|/", 18
)
"""How common a byte is in logs; bytes that are not listed (capitals, punctuation) are rare."""
_COMMON_BYTES = np.array([_COMMON.get(byte, 0) for byte in range(256)])

_USUAL = (
    b"{'loss': 2.1347, 'grad_norm': 1.23, 'learning_rate': 4.9e-05, 'epoch': 0.02} eval_loss train_loss val_loss "
    b"total_loss: 0.5 lr: 1.000e-04 "
    b" iteration       10/     150 | consumed samples:         5120 | elapsed time per iteration (ms): 6931.2 | "
    b"throughput per GPU (TFLOP/s/GPU): "
    b"global batch size:   512 | lm loss: 8.820012E+00 | loss scale: 65536.0 | number of skipped iterations:   0 | "
    b"number of nan iterations:   0 |"
    b"Epoch 3:  42%|####      | 42/100 [00:12<00:17,  3.40it/s, loss=0.41, v_num=0] "
    b"2026-11-20 12:00:01,104 - INFO - root - step 12 step: 12 "
    b"acc accuracy memory: 3919 data_time: 0.008 time: 0.377 eta: 1:02:03 tokens/s samples/sec "
    b"validation train: val test global_step= images"
)
"""Windows that occur in every other line of a log make a poor choice."""


class Prefilter:
    """Looks for `anchors`, plain texts of at least four bytes; raises ValueError for a shorter one."""

    def __init__(self, anchors: Iterable[str]) -> None:
        self._by_gram: dict[int, list[tuple[bytes, int]]] = {}
        texts = [anchor.encode() for anchor in anchors]
        if short := [text for text in texts if len(text) < 4]:
            raise ValueError(f"{short[0].decode()!r} is too short to be looked for")
        for text, at in zip(texts, _rarest(texts), strict=True):
            self._by_gram.setdefault(int.from_bytes(text[at : at + 4], "little"), []).append((text, at))
        self._known = np.zeros(1 << _BITS, bool)
        self._known[_hash(np.array(list(self._by_gram), np.uint32))] = True

    def lines_with(self, lines: Sequence[str]) -> list[int]:
        """Ascending indices of the lines that contain an anchor. A ``\\n`` in an anchor matches the end of a line."""
        return self.lines_in("\n".join((*lines, "")).encode("utf-8", "replace"))

    def lines_in(self, data: bytes) -> list[int]:
        """Like `lines_with`, for lines in UTF-8 that each end with a line feed."""
        if len(data) < 4:
            return []
        raw = np.frombuffer(data, np.uint8)
        windows: NDArray[np.uint32] = np.ndarray(len(data) - 3, "<u4", data, strides=(1,))
        pieces = range(0, len(windows), _PIECE)
        hits = np.concatenate([np.flatnonzero(self._known[_hash(windows[a : a + _PIECE])]) + a for a in pieces])
        if len(hits) <= _SINGLE:
            found = [
                at - before
                for at, gram in zip(hits.tolist(), windows[hits].tolist(), strict=True)
                for text, before in self._by_gram.get(gram, ())
                if at >= before and data.startswith(text, at - before)
            ]
            return _lines_of(np.array(found, np.intp), raw)
        hits = hits[np.argsort(windows[hits], kind="stable")]
        borders = np.flatnonzero(windows[hits[1:]] != windows[hits[:-1]]) + 1
        matches = [np.empty(0, np.intp)]
        for same in np.split(hits, borders):
            anchors = self._by_gram.get(int(windows[same[0]]), ()) if len(same) else ()
            matches += [_matching(raw, text, same - at) for text, at in anchors]
        return _lines_of(np.concatenate(matches), raw)


def _lines_of(places: NDArray[np.intp], raw: NDArray[np.uint8]) -> list[int]:
    """The lines of places in the bytes `raw`, ascending and each once."""
    if not len(places):
        return []
    lines: list[int] = distinct(np.searchsorted(np.flatnonzero(raw == 10), places)).tolist()
    return lines


def _matching(raw: NDArray[np.uint8], text: bytes, start: NDArray[np.intp]) -> NDArray[np.intp]:
    """Those of the positions `start` in `raw` at which the text is found."""
    start = start[(start >= 0) & (start <= len(raw) - len(text))]
    for i, byte in enumerate(text):
        if not len(start):
            break
        start = start[raw[start + i] == byte]
    return start


def _rarest(texts: Sequence[bytes]) -> list[int]:
    """Where the rarest four bytes of each text begin."""
    if not texts:
        return []
    data = np.frombuffer(b"".join(texts), np.uint8)
    common = np.sum([_COMMON_BYTES[data[i : len(data) - 3 + i]] for i in range(4)], axis=0)
    windows = np.ndarray(len(data) - 3, "<u4", data, strides=(1,))
    usual = np.frombuffer(_USUAL, np.uint8)
    common += 1000 * np.isin(windows, np.ndarray(len(usual) - 3, "<u4", usual, strides=(1,)))
    found, start = [], 0
    for text in texts:
        found.append(int(common[start : start + len(text) - 3].argmin()))
        start += len(text)
    return found


def _hash(windows: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return (windows * _MULTIPLIER) >> np.uint32(32 - _BITS)
