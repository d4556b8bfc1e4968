"""Steps that wait for data."""

from __future__ import annotations

import numpy as np

from postmortem.detectors.dataloader_stall import DataloaderStall
from tests.detectors.cases import fires, put, quiet, scale, spoiled


@fires(DataloaderStall, step=200)
def three_long_waits(base):
    return spoiled(base, "data_time", put([200, 231, 290], 3.0))


@quiet(DataloaderStall)
def a_wait_at_the_start_of_each_epoch(base):
    """Waits at equal distances are epochs, evaluations or checkpoints."""
    return spoiled(base, "data_time", put(slice(50, None, 50), 3.0))


@quiet(DataloaderStall)
def steps_in_which_an_evaluation_is_logged(base):
    """Evaluations at irregular steps that are part of the step time explain the slow ones."""
    at = np.array([60, 110, 190, 300, 333])
    spoilt = spoiled(base, "step_time", scale(at, 20.0))
    return {tag: v for tag, v in spoilt.items() if tag not in ("data_time", "val/loss", "val_loss")} | {
        "val_loss": (at, np.full(len(at), 0.5))
    }
