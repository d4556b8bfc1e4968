from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.core.printable import number
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import Story, faults, named
from postmortem.diagnoses.shared.waves import wave

if TYPE_CHECKING:
    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.view import View

_SEVERAL = 2


@diagnosis
class DataOrder:
    """The batches may come in the same order in every epoch, with samples beside one another that are alike, as data
    sorted by label.

    Reported if the training loss jumps several times and, apart from that, repeats one pattern again and again: the
    batch at each place of an epoch is then the same one in every epoch. While the samples of one kind follow one
    another, the model forgets the others, and the loss jumps where the kind changes. Not reported if the learning rate
    goes up and down as well, nor for a sawtooth with one rise, which a printed mean makes that starts again in every
    epoch.

    It is a possible cause: the log shows that the order is fixed, but not whether it is sorted.
    """

    name = "data-order"
    priority = 38  # before "bad-batch"

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        loss = view.main("loss")
        jumps = [f for f in named(findings, "loss-spike") if loss is not None and f.tag == loss.tag]
        if loss is None or len(jumps) < _SEVERAL or any(f.name != "loss-spike" for f in faults(view, findings)):
            return None
        found, rate = wave(loss, rises=2), view.main("lr")
        if found is None or (rate is not None and wave(rate, rises=1) is not None):
            return None
        steps = f"{found.steps} steps"
        return (
            Story(view, jumps[0], jumps[1:])
            .because(
                f"{loss.tag} repeats one pattern every {steps} (correlation with itself {steps} later: "
                f"{number(found.alike, 3)})"
            )
            .against("a fixed order is no fault if the samples were mixed once: the log does not show how they lie")
            .disproved_by(f"{loss.tag} jumps as before with the samples in a new random order in every epoch")
            .advise(
                "shuffle the training data in every epoch: DataLoader(…, shuffle=True), with a DistributedSampler also "
                "set_epoch(epoch)",
                "look whether the data are sorted, such as by label: `postmortem check -- python train.py …`",
            )
            .never_good()
            .diagnosis(
                "data-order",
                f"{loss.tag} jumps {len(jumps)} times, first at step {jumps[0].step}, and repeats one pattern every "
                f"{steps}. The batches likely come in the same order in every epoch; if the data are sorted, such as "
                "by label, the loss jumps where the kind of the samples changes.",
            )
        )
