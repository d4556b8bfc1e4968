"""Memory that grows to the end."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.memory_growth import MemoryGrowth
from tests.detectors.cases import N, fires, quiet, spoiled


@fires(MemoryGrowth)
def growth_from_step_150(base):
    return spoiled(base, "gpu_mem_gb", lambda x: x.__iadd__(np.maximum(0, np.arange(N) - 150) / 25))


@quiet(MemoryGrowth)
def a_buffer_that_fills_and_is_full(base):
    return spoiled(base, "gpu_mem_gb", lambda x: x.__iadd__(np.minimum(np.arange(N), 150) / 25))
