"""Steps that wait for data."""

from __future__ import annotations

from postmortem.detectors.dataloader_stall import DataloaderStall
from tests.detectors.cases import fires, put, quiet, spoiled


@fires(DataloaderStall, step=200)
def three_long_waits(base):
    return spoiled(base, "data_time", put([200, 231, 290], 3.0))


@quiet(DataloaderStall)
def a_wait_at_the_start_of_each_epoch(base):
    """Waits at equal distances are epochs, evaluations or checkpoints."""
    return spoiled(base, "data_time", put(slice(50, None, 50), 3.0))
