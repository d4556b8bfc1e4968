"""The base class of silent faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postmortem.core.blame import Blame
from postmortem.silent.facts import Stepped
from postmortem.silent.faults._words import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.silent.facts import Place, Stack
    from postmortem.silent.look import Look
    from postmortem.silent.trials import Trial


class NotChecked(Exception):
    """Raised by a fault that cannot judge this look; the message says why ("no validation was seen")."""


class NoneSeen(NotChecked):
    """The same, where the program has nothing that this fault could be in."""


class BaseFault:
    """Judges a look. A blame is made only of what was measured; the source of the program may say where."""

    code: str
    """TRN001…: stable, never used again."""
    name: str
    family: str
    checks: str
    """What the checklist says of it where nothing is wrong: a few words that are true then."""
    because_of: tuple[str, ...] = ()
    """Faults that explain this one: where one of them is blamed, this one is not."""

    trial: Trial | None = None
    """A change that would cure it, where torch can be made to make it and the program stays as it is."""

    def blames(self, look: Look) -> Iterator[Blame]:
        """What is at fault in one process. Raises NotChecked if the look lacks what is needed."""
        raise NotImplementedError

    def seen(self, look: Look) -> str:
        """What a line that is ok is based on, in numbers: by default the steps of optimizers that were looked at.
        Raises NoneSeen where the program has nothing that this fault could be in."""
        return count(len(look.of(Stepped)), "optimizer step")

    def of_plateau(self, look: Look) -> Iterator[Blame]:
        """What explains that a loss does not fall, where that is known: not enough to blame a training that may learn.
        Nothing, by default."""
        return iter(())

    def across(self, looks: Sequence[Look]) -> Iterator[Blame]:
        """What is at fault in a program, from the looks at all of its processes that train. By default each for
        itself; NotChecked only where no process could be judged."""
        why: list[NotChecked] = []
        for look in looks:
            try:
                yield from self.blames(look)
            except NotChecked as error:
                why.append(error)
        if why and len(why) == len(looks):
            raise why[0]

    def blame(self, at: Place | Stack | None, evidence: str, *, confirm: str, **measured: Any) -> Blame:
        """A blame with the names of this fault. at: the line, or a stack whose innermost frame it is."""
        place = at[0] if at and isinstance(at[0], tuple) else at
        file, line = (place[0], place[1]) if place else (None, None)
        return Blame(self.name, self.family, file, line, evidence, measured, confirm)  # type: ignore[arg-type]
