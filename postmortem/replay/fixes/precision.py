"""Compute the whole step in another precision."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.replay.fixes import Advice, BaseFix, Case, Scope, fix
from postmortem.replay.rerun.session import WITHOUT_CASTS
from postmortem.replay.step.overrides import Overrides

if TYPE_CHECKING:
    from postmortem.core.culprit import Culprit, Fix
    from postmortem.core.view import View

_HALF = {"float16", "bfloat16"}


class _Precision(BaseFix):
    """A fix that computes the whole step in one precision. `advised`: its name in the advice."""

    advised: str

    def advice(self, culprit: Culprit, cure: Fix, view: View | None) -> Advice | None:
        """The precisions that are enough for an overflow, at most two, in one sentence: that of the first of them."""
        cures = [kind for kind in (SinglePrecision, BFloat16, DoublePrecision) if kind().cure(culprit)]
        if culprit.cause != "dtype-overflow" or not isinstance(self, cures[0]):
            return None
        where = f"{culprit.file}:{culprit.line}" if culprit.file else "the step"
        shown = " or ".join(kind.advised for kind in cures[:2] if kind is not DoublePrecision or kind is cures[0])
        return Advice(Scope.PRECISION, f"compute {where} in {shown} (tried on the whole step: cures it)")


@fix
class SinglePrecision(_Precision):
    """Computes the whole step in single precision.

    What it changes: parameters, buffers, optimizer state and batch are cast to float32; autocast is off.

    When it is tried: on steps that fail under autocast, with parameters in half precision, or where the code itself
    casts to half precision; these casts are then left out.

    What a cure means: half precision is the cause. The culprit's operator overflows in it, or loses digits it needs.
    """

    name = "fp32"
    order = 30
    what = "the whole step in single precision (fp32)"
    overrides = Overrides(dtype="fp32")
    advised = "fp32"

    def applies(self, case: Case) -> bool:
        """Where the step computes in half precision, or the culprit does."""
        seen = (t.get("dtype") for t in (*case.found.tensor.get("inputs", ()), case.found.tensor.get("output", {})))
        return not self._casts(case) or not _HALF.isdisjoint(seen)

    def change(self, case: Case) -> Overrides:
        """Without the casts, where nothing else makes it half precision."""
        return replace(self.overrides, casts_follow=self._casts(case))

    def describe(self, case: Case) -> str:
        """Says whether casts are left out."""
        return self.what + (WITHOUT_CASTS if self._casts(case) else "")

    def _casts(self, case: Case) -> bool:
        """Whether only the code itself can have cast to half precision."""
        return case.reruns.autocast is None and not case.reruns.half()


@fix
class BFloat16(_Precision):
    """Computes the step in bfloat16 instead of float16.

    What it changes: autocast casts to bfloat16.

    When it is tried: on steps that fail under autocast to float16.

    What a cure means: a value exceeds the range of float16, which ends at 65504; bfloat16 has the range of float32.
    """

    name = "bf16"
    order = 40
    what = "bf16 instead of fp16"
    overrides = Overrides(dtype="bf16")
    advised = "bf16 instead of fp16"

    def applies(self, case: Case) -> bool:
        """Where autocast casts to float16."""
        return case.reruns.autocast == "fp16"


@fix
class DoublePrecision(_Precision):
    """Computes the whole step in double precision.

    What it changes: parameters, buffers, optimizer state and batch are cast to float64; autocast is off.

    When it is tried: on every step that fails, and on all steps of a run that diverged.

    What a cure means: rounding or overflow is the cause. A singularity, such as the logarithm of zero, fails in every
    precision.
    """

    name = "fp64"
    order = 50
    what = "the whole step in double precision (fp64)"
    overrides = Overrides(dtype="fp64")
    advised = "fp64"


def measure_precision(case: Case) -> None:
    """Sets `precision_only` of the culprit: whether the step does not fail in double precision."""
    fails, _ = case.in_precision("fp64")
    case.found = replace(case.found, precision_only=None if fails is None else not fails)
    if fails is None:
        case.how.append(f"could not be run in double precision (fp64): {case.reruns.failure}")
    uncast = Overrides(dtype="fp64", casts_follow=True)
    if fails and case.found.cause == "dtype-overflow" and case.reruns.fails(uncast) is False:
        note = "also fails in double precision (fp64), because the code casts to half precision"
        case.how.append(f"{note}; without these casts it does not fail")
