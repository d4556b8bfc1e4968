"""Steps backwards in the generators: what is drawn again from there is what was drawn."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from postmortem.replay.roll.mersenne import back, distance  # noqa: E402
from postmortem.replay.step.rng import Rng  # noqa: E402

counts = st.integers(0, 3000)


def drawn(n: tuple[int, int, int]) -> list[float]:
    return [*torch.randint(1000, (n[0],)).tolist(), *np.random.rand(n[1]), *(random.random() for _ in range(n[2]))]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), before=st.tuples(counts, counts, counts), n=st.tuples(counts, counts, counts))
def test_back_and_forth(seed: int, before: tuple[int, int, int], n: tuple[int, int, int]) -> None:
    """Wherever in a block: the distance is counted, and going back by it gives the same numbers and the same end."""
    present = Rng.capture()
    try:
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        drawn(before)
        start = Rng.capture()
        first = drawn(n)
        end = Rng.capture()
        apart = distance(start, end)
        assert apart is not None
        assert (apart.cpu, apart.numpy, apart.python) == (n[0], 2 * n[1], 2 * n[2])
        back(end, apart).restore()
        assert drawn(n) == first
        assert Rng.capture().same(end)
    finally:
        present.restore()


def test_states_that_do_not_follow() -> None:
    """From another seed no number of draws leads to a state."""
    present = Rng.capture()
    try:
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        one = Rng.capture()
        torch.manual_seed(2)
        assert distance(one, Rng.capture()) is None
    finally:
        present.restore()
