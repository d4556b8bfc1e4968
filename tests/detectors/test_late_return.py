"""A loss that comes back long after a spike."""

from __future__ import annotations

import numpy as np

import postmortem


def test_a_loss_that_is_back_late_is_not_said_to_stay_up(tmp_path):
    """It decays for a third of the run and ends below its level before: the step at which it is back is told."""
    rng = np.random.default_rng(0)
    loss = 6 + rng.normal(0, 0.2, 400)
    loss[200:] += 300 * np.exp(-np.arange(200) / 25)
    loss[360:] -= 0.8
    (tmp_path / "log.csv").write_text("step,loss\n" + "".join(f"{i},{v:.4f}\n" for i, v in enumerate(loss)))
    [spike] = [f for f in postmortem.scan(tmp_path)[0].findings if f.name == "loss-spike"]
    assert "and is back at its level only at step 3" in spike.message
    assert "does not recover" not in spike.message
