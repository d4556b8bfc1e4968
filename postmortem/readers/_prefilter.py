"""Finds the few lines that hold one of many plain texts, at hundreds of megabytes per second.

Of every text the four bytes that look rarest stand for it. All windows of four bytes of the data are hashed at once;
where the hash is known the text itself is compared. So the cost is a few passes over the data however many texts
are looked for, and no pattern can make it slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_BITS = 20
_MULTIPLIER = np.uint32(2654435761)
_COMMON = {letter: 26 - i for i, letter in enumerate(b" etaoinsrlhdcumpfgwybvkxjqz")} | dict.fromkeys(b"0123456789:,.=[]()'|/", 18)
"""How common a byte is in logs; what is not listed (capitals, punctuation) is rare."""


_USUAL = (
    "{'loss': 2.1347, 'grad_norm': 1.23, 'learning_rate': 4.9e-05, 'epoch': 0.02} eval_loss train_loss val_loss total_loss: 0.5 lr: 1.000e-04 "
    " iteration       10/     150 | consumed samples:         5120 | elapsed time per iteration (ms): 6931.2 | throughput per GPU (TFLOP/s/GPU): "
    "global batch size:   512 | lm loss: 8.820012E+00 | loss scale: 65536.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    "Epoch 3:  42%|####      | 42/100 [00:12<00:17,  3.40it/s, loss=0.41, v_num=0] 2026-11-20 12:00:01,104 - INFO - root - step 12 step: 12 "
    "acc accuracy memory: 3919 data_time: 0.008 time: 0.377 eta: 1:02:03 tokens/s samples/sec validation train: val test global_step= images"
)
"""Windows that stand in every other line of a log are a poor sign of anything."""


class Prefilter:
    """Looks for `anchors`, plain texts of at least four bytes; shorter ones must be looked for otherwise (ValueError)."""

    def __init__(self, anchors: Iterable[str]) -> None:
        self._by_gram: dict[bytes, list[tuple[bytes, int]]] = {}
        for anchor in anchors:
            text = anchor.encode()
            if len(text) < 4:
                raise ValueError(f"{anchor!r} is too short to be looked for")
            at = min(range(len(text) - 3), key=lambda i: _commonness(text[i : i + 4]))
            self._by_gram.setdefault(text[at : at + 4], []).append((text, at))
        self._known = np.zeros(1 << _BITS, bool)
        for gram in self._by_gram:
            self._known[_hash(np.frombuffer(gram, "<u4"))] = True

    def lines_with(self, lines: Sequence[str]) -> list[int]:
        """Indices of the lines that hold one of the anchors, ascending. A line end counts as ``\\n`` in an anchor."""
        return self.lines_in("\n".join((*lines, "")).encode("utf-8", "replace"))

    def lines_in(self, data: bytes) -> list[int]:
        """The same for lines that stand behind one another in UTF-8, each ended by ``\n``."""
        if len(data) < 4:
            return []
        windows: np.ndarray[tuple[int], np.dtype[np.uint32]] = np.ndarray(len(data) - 3, "<u4", data, strides=(1,))
        hits = np.flatnonzero(self._known[_hash(windows)])
        if not len(hits):
            return []
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
        found: list[int] = []
        for line, place in zip(np.searchsorted(ends, hits).tolist(), hits.tolist(), strict=True):
            if (not found or found[-1] != line) and self._stands_at(data, place):
                found.append(line)
        return found

    def _stands_at(self, data: bytes, place: int) -> bool:
        for text, at in self._by_gram.get(data[place : place + 4], ()):  # noqa: SIM110  (a generator costs twice as much)
            if place >= at and data.startswith(text, place - at):
                return True
        return False


def _commonness(gram: bytes) -> int:
    return sum(_COMMON.get(byte, 0) for byte in gram) + 1000 * (gram.decode(errors="replace") in _USUAL)


def _hash(windows: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return (windows * _MULTIPLIER) >> np.uint32(32 - _BITS)
