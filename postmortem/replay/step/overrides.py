"""What can be changed in a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.replay.step.precision import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What to change in a step, to see whether that cures it. The default changes nothing.

    clip: max_norm in place of the step's own. lr: factor on every learning rate. dtype: precision of the whole step
    (autocast off; with autocast, bf16 means autocast to bf16). casts_follow: explicit casts in the code to a narrower
    type use `dtype` too. loss_scale: scale of the scaler. eps: minimum eps of the optimizers. batch: applied to the
    batch (under accumulation, to the list of micro-batches). fresh_optimizer: clear the optimizers' state.
    """

    clip: float | None = None
    lr: float = 1.0
    dtype: Precision | None = None
    casts_follow: bool = False
    loss_scale: float | None = None
    eps: float | None = None
    batch: Callable[[Any], Any] | None = None
    fresh_optimizer: bool = False


NOTHING = Overrides()
