"""Without a fork: the program is run again, traced in the tick that is known to fail, and names the culprit itself.

For processes that cannot be forked, as those that use a GPU. The step is then repeated in the process, see `repeats`.
Where that is not possible, and for one rank of several, nothing is confirmed: the step is seen once. In a group, ranks
that only receive the non-finite values of another one have no candidate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postmortem.attach.standby.alone import among_others
from postmortem.attach.standby.attempt import Attempt
from postmortem.attach.standby.jump import JUMPS
from postmortem.attach.standby.plan import Plan
from postmortem.attach.standby.repeats import Repeats
from postmortem.attach.standby.scene import Scene
from postmortem.core.culprit import Culprit
from postmortem.core.errors import PostmortemError
from postmortem.replay.culprit.investigation import Investigation
from postmortem.replay.culprit.stages import diagnose
from postmortem.replay.model import TrainStep
from postmortem.replay.rerun.candidates import candidates
from postmortem.replay.rerun.samples import Samples
from postmortem.replay.rerun.session import Failure, Luck, Rolled, Stage, Traced
from postmortem.replay.trace.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postmortem.attach.standby.course import Course
    from postmortem.attach.standby.loaders import Record
    from postmortem.attach.standby.plan import Reply
    from postmortem.replay.rerun.session import Outside
    from postmortem.replay.step.errors import Site
    from postmortem.replay.step.overrides import Overrides
    from postmortem.replay.step.precision import Precision

_WHY = "the process cannot be forked"


def arm(record: Record, course: Course, order: Mapping[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    """Traces the tick of `order`, which begins now. `tell` is called with the answer, as of `Standby.investigate`, and
    the process ends. The events go to the attempt from here on."""
    if not among_others():
        Repeats(record, course, order, tell, answer).begin()
        return
    scene = Scene(record, order["tick"], order["kind"], {})
    plan = Plan(tracer=Tracer(), survey=True, once=True)
    Attempt(scene, plan, lambda reply: tell(answer(scene, reply))).begin(forked=False)


def answer(scene: Scene, reply: Reply) -> dict[str, Any]:
    """What the traced tick shows."""
    if scene.kind in JUMPS:
        found = Culprit(cause="none", phase="none", how=("its samples are known only where it can be repeated",))
        return {"repeated": False, "tick": scene.tick, "culprit": found.as_json()}
    if reply.failed or reply.traced is None or reply.traced.stage is None:
        why = reply.failed or "every loss, gradient and parameter is finite"
        found = Culprit(cause="none", phase="none", how=(f"run again and traced, the step did not fail: {why}",))
        return {"repeated": False, "tick": scene.tick, "culprit": found.as_json()}
    if not candidates(reply.traced):
        found = Culprit(cause="none", phase="none", how=("no operator of this process made the non-finite values",))
        return {"repeated": True, "tick": scene.tick, "culprit": found.as_json()}
    failure = Failure(step=scene.tick, last=scene.tick, first=scene.tick, raised=reply.raised)
    case = Investigation(SeenOnce(scene, reply), failure, fixes=False)
    try:
        found = diagnose(case)
    except PostmortemError as error:  # it raised, and no repair can show that a non-finite value was the reason
        found = Culprit(cause="none", phase="none", how=(*case.trail, str(error)))
    told = {"repeated": True, "tick": scene.tick, "culprit": found.as_json()}
    return told | ({"micro_batch": reply.passes - 1} if scene.micro_batches > 1 else {})


class SeenOnce:
    """The session of a step that was traced when it failed."""

    def __init__(self, scene: Scene, reply: Reply) -> None:
        assert reply.traced is not None
        self._traced = reply.traced
        self.step, self.batch, self.device = scene.tick, scene.batch, "cpu"
        self.samples = Samples(TrainStep(None, None, None, accumulate=scene.micro_batches), scene.batch)
        self.lead: Sequence[int] = ()
        self.luck = Luck()
        self.whole, self.unfused, self.once = True, False, True
        self.autocast = reply.autocast
        self.scaled = bool(scene.program.scalers)
        self.failure = _WHY
        self.loss: float | None = None
        self.raised: Site | None = None
        self.rolled: Rolled | None = None
        self._half = scene.program.half()
        self._bad = {("batch", ""), *scene.program.bad()}

    def fails(self, overrides: Overrides | None = None, **options: Any) -> bool | None:
        """It cannot be run."""
        return None

    def trace(self, tracer: Tracer, **options: Any) -> Traced:
        """What was traced."""
        return self._traced

    def in_precision(self, dtype: Precision) -> tuple[bool | None, str]:
        """It cannot be run."""
        return None, f"; could not be run: {_WHY}"

    def finite_again(self) -> bool:
        """It failed when it was run."""
        return False

    def half(self) -> bool:
        """See `Session`."""
        return self._half

    def has_state(self) -> bool:
        """Unknown."""
        return False

    def draws_nothing(self, *, at: Stage) -> bool:
        """Unknown."""
        return False

    def bad_before(self) -> set[Outside]:
        """What is non-finite at the end of the step."""
        return self._bad
