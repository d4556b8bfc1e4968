from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import Story, has_errors, named

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View


@diagnosis
class PosteriorCollapse:
    """The encoder of a variational autoencoder gives the prior for every input, so the latent code carries nothing.

    The log shows the divergence, not the code: whether the decoder ignores it is seen in its outputs.
    """

    name = "posterior-collapse"
    priority = 71  # a plateau of the loss follows from it

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = named(findings, "posterior-collapse")
        if not found or has_errors(findings):
            return None
        root = found[0]
        return (
            Story(view, root, [])
            .never_good()
            .disproved_by("reconstructions of two different inputs are clearly different")
            .advise(
                "compare the reconstructions of two different inputs: if they are the same, the code is not used",
                "raise the weight of the divergence from 0 over the first part of the training, or lower it",
                "check that divergence and reconstruction loss are summed over the same elements: a sum beside a mean "
                "outweighs it",
                "leave a minimum to each dimension (free bits), and log the divergence by dimension",
            )
            .diagnosis("posterior-collapse", f"{root.message}.", "likely")
        )
