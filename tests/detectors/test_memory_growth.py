"""Memory that grows to the end."""

from __future__ import annotations

import numpy as np

from postmortem.core.printable import number
from postmortem.detectors.memory_growth import MemoryGrowth
from tests.detectors.cases import N, fires, quiet, spoiled


@fires(MemoryGrowth)
def growth_from_step_150(base):
    return spoiled(base, "gpu_mem_gb", lambda x: x.__iadd__(np.maximum(0, np.arange(N) - 150) / 25))


@quiet(MemoryGrowth)
def a_buffer_that_fills_and_is_full(base):
    return spoiled(base, "gpu_mem_gb", lambda x: x.__iadd__(np.minimum(np.arange(N), 150) / 25))


def test_memory_that_grows_from_the_first_row_on(view_of):
    """The values named are those of the log, at the steps named: no means, and no later onset."""
    memory = 12 + 0.15 * np.arange(70) + 0.01 * np.random.default_rng(0).standard_normal(70)
    (found,) = MemoryGrowth().detect(view_of({"gpu_mem_gb": (np.arange(70) * 10, memory)}))
    assert found.step == 0
    assert f"from {number(memory[0])} at step 0 to {number(memory[-1])} at step 690" in found.message
    memory[:35] = 12.0 + 0.01 * np.random.default_rng(1).standard_normal(35)
    memory[35:] = 12.0 + 0.3 * np.arange(35)
    (found,) = MemoryGrowth().detect(view_of({"gpu_mem_gb": (np.arange(70) * 10, memory)}))
    assert found.step >= 300
    for logged in ("before", "end"):
        assert np.abs(memory / found.evidence[logged] - 1).min() < 1e-5
