"""Clean the inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from postmortem.replay.fixes import Advice, BaseFix, Case, Scope, finite, fix
from postmortem.replay.step.batches import tensor_map, tensors_in
from postmortem.replay.step.overrides import Overrides

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit, Fix
    from postmortem.core.view import View

LARGEST_INPUT = 1e4


@fix
class SanitizeInput(BaseFix):
    """Sets non-finite inputs to 0 and clamps the rest.

    What it changes: in every floating-point tensor of the batch, NaN and the infinities become 0, and all values are
    clamped to ±1e4.

    When it is tried: on every step that fails, if the batch contains such values.

    What a cure means: the data are the cause. The batch contains non-finite values, or values of another scale than the
    rest.
    """

    name = "sanitize_input"
    order = 70
    what = "non-finite inputs set to 0, the rest clamped to ±1e4"

    def change(self, case: Case) -> Overrides | None:
        """The cleaned batch; None if it is already clean."""
        dirty = case.reruns.lead or any(map(_unclean, tensors_in(case.reruns.batch)))
        return Overrides(batch=sanitized) if dirty else None

    def advice(self, culprit: Culprit, cure: Fix, view: View | None) -> Advice | None:
        """Clean the inputs, if they were found to be the cause."""
        if culprit.phase != "data":
            return None
        return Advice(Scope.DATA, f"clean the inputs before the step: {cure.how} ({finite(cure)})")


def _unclean(t: torch.Tensor) -> bool:
    """Whether `sanitized` changes this tensor."""
    if not t.is_floating_point() or t.layout != torch.strided or not t.numel():
        return False
    return not bool(t.detach().float().abs().amax() <= LARGEST_INPUT)


def sanitized(batch: Any) -> Any:
    """The batch with non-finite values set to 0 and the rest clamped to ±LARGEST_INPUT."""

    def clean(t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point() or t.layout != torch.strided:
            return t
        finite = torch.nan_to_num(t.detach(), 0.0, 0.0, 0.0).clamp(-LARGEST_INPUT, LARGEST_INPUT)
        return finite.requires_grad_(t.requires_grad)

    return tensor_map(clean, batch)
