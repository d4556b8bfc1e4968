"""What one step did."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

NonFinite = Literal["loss", "grad", "param"]
"""Where a step first has non-finite values, in the order of the step."""


@dataclass(slots=True, kw_only=True)
class StepResult:
    """The outcome of one step.

    `losses` by name ("loss" if the step returns a single one), as defined under accumulation; `loss` is their sum,
    `last` the losses of the last micro-batch alone. `first_nonfinite`: the first of loss, grad and param with
    non-finite values, None if all are finite. `bad_grads` (unscaled, not yet clipped) and `bad_params` (after the step)
    are names. `grad_norm`: total norm before clipping. `skipped`: the scaler skipped the optimizer step. `scale`: the
    loss scale used (1.0 without a scaler). `lr`: learning rate of the first parameter group.
    """

    step: int
    loss: float
    losses: dict[str, float]
    first_nonfinite: NonFinite | None = None
    bad_grads: list[str] = field(default_factory=list)
    bad_params: list[str] = field(default_factory=list)
    grad_norm: float = math.nan
    skipped: bool = False
    scale: float = 1.0
    lr: float = math.nan
    last: dict[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """True if anything is non-finite, except gradients that made the scaler skip the step."""
        return self.first_nonfinite is not None and not (self.first_nonfinite == "grad" and self.skipped)
