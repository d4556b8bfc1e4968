"""The stages of the diagnosis, cheapest first: one function each, one file per stage.

A stage is asked with all that is known of the step. It returns the culprit if it can name it. Otherwise it returns
None, perhaps after adding what it found to the `Investigation`, and the next stage is asked. A file in this package
with a function that `stage` decorates is all that a new stage needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from postmortem.core.errors import PostmortemError
from postmortem.core.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from postmortem.core.culprit import Culprit
    from postmortem.replay.culprit.investigation import Investigation


class DiagnosisStage(Protocol):
    """A registered stage."""

    __name__: str
    order: int
    """Stages are asked in this order."""
    of_finding: bool
    """It explains a finding of finite values, and is asked instead of the others where one is looked for."""

    def __call__(self, case: Investigation, /) -> Culprit | None:
        """The culprit, or None."""
        ...


F = TypeVar("F", bound="Callable[[Investigation], Culprit | None]")
STAGES: Registry[DiagnosisStage] = Registry(__name__, key=lambda s: s.__name__, order=lambda s: s.order, noun="stage")


def stage(*, order: int, of_finding: bool = False) -> Callable[[F], F]:
    """Registers a stage; stages with a lower `order` are asked before it. of_finding: it explains finite values."""

    def register(function: F) -> F:
        function.order, function.of_finding = order, of_finding  # type: ignore[attr-defined]
        return STAGES.register(function)

    return register


def diagnose(case: Investigation) -> Culprit:
    """The culprit that the first stage names.

    A stage that raises is noted in the trail and the next one is asked. If none of them names a culprit, the exception
    is raised: the stage that failed might have named one.
    """
    failed: Exception | None = None
    for ask in [s for s in STAGES if s.of_finding == (case.sought is not None)]:
        try:
            found = ask(case)
        except PostmortemError:
            raise
        except Exception as error:  # noqa: BLE001 - a fault of one stage costs its answer, not the replay
            case.trail.append(f"{STAGES.fault(ask, 'its diagnosis', error)}; later stages were asked")
            failed = failed or error
            continue
        if found is not None:
            break
    else:
        found = case.culprit(cause="none", phase="none", established="inferred")
    if failed is not None and found.cause == "none":
        raise failed
    return found
