from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import Story, has_errors, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class GeneratorCollapse:
    """The discriminator of a GAN won permanently, so the generator gets no useful gradient.

    A generator loss that rises in this part of the log is a consequence of it, not of the learning rate or a batch.
    """

    name = "generator-collapse"
    priority = 48

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = named(findings, "generator-collapse")
        if not found:
            return None
        root = found[0]
        rises = [f for f in named(findings, "loss-spike", "divergence") if f.tag == root.evidence["generator"]]
        if has_errors(tuple(f for f in findings if f not in rises)):
            return None
        return (
            Story(view, root, rises)
            .because(*(f.message for f in rises[:2]))
            .disproved_by("images made after this step are better than those before it")
            .advise(
                "compare images from before and after the step; if they no longer change, "
                "go back to a checkpoint before it",
                "lower the discriminator's learning rate, or update it less often than the generator",
                "add a gradient penalty or spectral normalization to the discriminator, or smooth its labels",
                "check that real and generated images are scaled alike: a difference is enough to distinguish them",
            )
            .diagnosis("generator-collapse", f"{root.message[0].upper()}{root.message[1:]}.", "likely")
        )
