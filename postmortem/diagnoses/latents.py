from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import NONFINITE, Story, consequences, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View

_OF = "latent/"
_LARGE = ("metric-explosion",)


@diagnosis
class Latents:
    """The latents of a diffusion pipeline become non-finite, or grow, at a denoising step.

    The statistics that `watcher.latents(t, x)` records show the step and the timestep, not the operation: the model,
    its condition, the guidance, the scheduler, or a type whose range is too small may be the reason. Nothing is
    trained, so there is neither a batch nor a checkpoint to look at.
    """

    name = "latents"
    priority = 54  # before the causes of a training with the same finding

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = [f for f in named(findings, *NONFINITE, *_LARGE) if (f.tag or "").startswith(_OF)]
        if not found or view.main("loss") is not None:
            return None
        root = min(found, key=lambda f: (f.name in _LARGE, f.step is None, f.step or 0))
        at = _timestep(view, root.step)
        where = f"denoising step {root.step}" + (f" (timestep {number(at)})" if at is not None else "")
        what = "grow beyond their usual level" if root.name in _LARGE else "become non-finite"
        return (
            Story(view, root, consequences(findings, root))
            .because(*[f.message for f in found if f is not root][:3])
            .disproved_by("the same prompt, seed and scheduler in float32 have calm latents up to the last step")
            .advise(
                f"compare what the model returns at {where} with the step before: mean, largest value, NaN; if that is "
                "calm, the scheduler makes them, else the model or what it is given (embeddings, guidance)",
                "run the pipeline in float32, or in bfloat16 instead of float16, whose range ends at 65504",
                "lower the guidance scale, and check that timesteps and noise levels are those that the model was "
                "trained with",
            )
            .diagnosis("latents", f"The latents {what} at {where}: {root.message.rstrip('.')}.", "possible")
        )


def _timestep(view: View, step: int | None) -> float | None:
    """The timestep of a denoising step, which is recorded beside the statistics."""
    for series in view.series:
        if series.tag == f"{_OF}t":
            return next((float(v) for s, v in zip(series.step, series.value, strict=True) if s == step), None)
    return None
