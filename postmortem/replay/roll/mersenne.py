"""Steps backwards in the Mersenne Twister (mt19937) of torch's CPU generator, numpy and Python.

Its state is a block of 624 words and the position of the next one; the recurrence that makes a block from the one
before can be inverted. Source: M. Matsumoto, T. Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed
uniform pseudo-random number generator", ACM TOMACS 8 (1998); the layout of torch's state is that of
``aten/src/ATen/CPUGeneratorImpl.cpp`` (CPUGeneratorImplState).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from postmortem.replay.step.rng import Rng

_WORDS, _SHIFT, _MATRIX = 624, 397, 0x9908B0DF
_UPPER, _LOWER = 0x80000000, 0x7FFFFFFF
_FARTHEST = 2_000_000  # words to look for the distance of two states; a block takes about 0.5 ms backwards
_LEFT, _NEXT, _STATE = slice(8, 12), slice(16, 24), slice(24, 24 + 8 * _WORDS)  # bytes of torch's state
_NORMAL = slice(24 + 8 * _WORDS, None)  # normal numbers that torch has in store


@dataclass(frozen=True, slots=True)
class Twister:
    """A block of 624 words (uint32), and how many of them were used (1 to 624)."""

    key: NDArray[np.uint32]
    used: int

    def back(self, words: int) -> Twister:
        """The state `words` outputs earlier."""
        key, used = self.key, self.used - words
        while used < 1:
            key, used = _block_before(key), used + _WORDS
        return Twister(key, used)

    def words_to(self, later: Twister) -> int | None:
        """How many words lie between this state and a later one; None if more than 2 million, or none lead there."""
        generator, words = np.random.MT19937(), -self.used
        generator.state = {"bit_generator": "MT19937", "state": {"key": self.key, "pos": self.used}}
        while not np.array_equal(generator.state["state"]["key"], later.key):
            words += _WORDS
            if words > _FARTHEST:
                return None
            # a block is made when its first word is asked for
            generator.random_raw(_WORDS - generator.state["state"]["pos"] + 1, output=False)
        distance = words + later.used
        return distance if distance >= 0 else None


def _block_before(key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    words = [int(w) for w in key]

    def untwisted(i: int) -> int:
        """The upper bit of word i and the lower 31 of word i + 1 of the block before."""
        mixed = words[i] ^ words[(i + _SHIFT) % _WORDS]
        return (((mixed ^ _MATRIX) << 1) | 1) & 0xFFFFFFFF if mixed & _UPPER else mixed << 1

    for i in range(_WORDS - 1, -1, -1):  # words[i+1:] are those of the block before already
        upper = untwisted(i) & _UPPER
        words[i] = upper | (untwisted(i - 1 if i else _WORDS - 1) & _LOWER)
    return np.array(words, dtype=np.uint32)


def _of_torch(state: torch.Tensor) -> Twister:
    data = state.numpy().tobytes()
    used = int(np.frombuffer(data[_NEXT], dtype=np.uint64)[0])
    seeded = int(np.frombuffer(data[_LEFT], dtype=np.int32)[0]) == 1
    key = np.frombuffer(data[_STATE], dtype=np.uint64).astype(np.uint32)
    return Twister(key, _WORDS if seeded else used)


def _to_torch(twister: Twister, like: torch.Tensor) -> torch.Tensor:
    data = bytearray(like.numpy().tobytes())
    data[_LEFT] = np.int32(_WORDS + 1 - twister.used).tobytes()
    data[_NEXT] = np.uint64(twister.used).tobytes()
    data[_STATE] = twister.key.astype(np.uint64).tobytes()
    data[_NORMAL] = bytes(len(data[_NORMAL]))
    return torch.frombuffer(data, dtype=torch.uint8).clone()


@dataclass(frozen=True, slots=True)
class Distance:
    """How many words two captures are apart, in each of the global generators."""

    cpu: int
    numpy: int
    python: int

    def __bool__(self) -> bool:
        return bool(self.cpu or self.numpy or self.python)

    def times(self, factor: float) -> Distance:
        """The distance of `factor` such draws."""
        return Distance(*(round(factor * n) for n in (self.cpu, self.numpy, self.python)))


def distance(before: Rng, after: Rng) -> Distance | None:
    """The distance of two captures; None if one cannot be found."""
    found = [a.words_to(b) for a, b in zip(_twisters(before), _twisters(after), strict=True)]
    if any(n is None for n in found):
        return None
    return Distance(*(n or 0 for n in found))


def back(rng: Rng, by: Distance) -> Rng:
    """The states of the global generators of torch (CPU), numpy and Python that lie `by` words before `rng`."""
    cpu, numpy, python = (t.back(n) for t, n in zip(_twisters(rng), (by.cpu, by.numpy, by.python), strict=True))
    assert rng.cpu is not None
    return replace(
        rng,
        cpu=_to_torch(cpu, rng.cpu) if by.cpu else rng.cpu,
        numpy=("MT19937", numpy.key, numpy.used, 0, 0.0) if by.numpy else rng.numpy,
        python=(3, (*(int(w) for w in python.key), python.used), None) if by.python else rng.python,
    )


def _twisters(rng: Rng) -> tuple[Twister, Twister, Twister]:
    """Those of torch, numpy and Python in a full capture."""
    python: Any = rng.python[1]
    assert rng.cpu is not None
    return (
        _of_torch(rng.cpu),
        Twister(np.asarray(rng.numpy[1], dtype=np.uint32), int(rng.numpy[2])),
        Twister(np.array(python[:-1], dtype=np.uint32), int(python[-1])),
    )
