"""The last good checkpoint: one rule for scan, replay and ``postmortem checkpoints``. Needs no torch."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from postmortem.checkpoints.find import step_of
from postmortem.core.model import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from postmortem.checkpoints.health import Health


class Looked(NamedTuple):
    """What opening a checkpoint showed, without its tensors; the fields are those of `Health` and `Checkpoint`."""

    step: int | None
    finite: bool | None
    nonfinite: tuple[str, ...] = ()
    problem: str | None = None
    unverified: int = 0

    @classmethod
    def of(cls, health: Health) -> Looked:
        """The same of a checkpoint whose tensors were read."""
        problem = next((p.what for p in health.problems), None) if health.finite is None else None
        return cls(health.step, health.finite, tuple(t.name for t in health.bad), problem, health.unverified)


def anything(checkpoint: Checkpoint) -> bool:
    """Every checkpoint may be chosen."""
    return True


def last_good(
    checkpoints: Sequence[Checkpoint], may_be: Callable[[Checkpoint], bool] = anything, *, whole: bool = False
) -> Checkpoint | None:
    """The newest checkpoint that `may_be` chosen and that is finite or was not inspected; None if there is none.

    A step saved in several files of one folder (``G_60.pth``, ``D_60.pth``) is good only if none of them is
    non-finite. If one of them cannot be read, the step is chosen only if no other is good, and with `whole` never.
    Of two files of one step, the one with the step in its name is chosen: ``latest.pt`` may be overwritten.
    """
    not_good = [c for c in checkpoints if not _may_be_good(c)]
    found = _newest_apart_from(not_good, checkpoints, may_be)
    if found is not None or whole:
        return found
    return _newest_apart_from([c for c in not_good if c.finite is False], checkpoints, may_be)


def _newest_apart_from(
    bad: Sequence[Checkpoint], checkpoints: Sequence[Checkpoint], may_be: Callable[[Checkpoint], bool]
) -> Checkpoint | None:
    """The newest good checkpoint of a step that has no part in `bad`."""
    bad = [c for c in bad if c.step is not None]
    spoiled = {_part_of(c) for c in bad}
    spoiled_by_name = {_part_of(c) for c in bad if _names_its_step(c)}
    good = [
        c
        for c in checkpoints
        if _may_be_good(c) and _part_of(c) not in (spoiled_by_name if _names_its_step(c) else spoiled) and may_be(c)
    ]
    return max(good, key=_age, default=None)


def look_for_last_good(
    checkpoints: Sequence[Checkpoint],
    look: Callable[[Checkpoint], Checkpoint],
    may_be: Callable[[Checkpoint], bool] = anything,
    *,
    whole: bool = False,
) -> Checkpoint | None:
    """As `last_good`, but each candidate is inspected with `look` before it is chosen, newest first."""
    known = list(checkpoints)
    while (found := last_good(known, may_be, whole=whole)) is not None:
        unseen = not_looked_into(found, known)
        if not unseen:
            return found
        known = [look(c) if c in unseen else c for c in known]
    return None


def last_good_of(found: Iterable[Health]) -> Health | None:
    """The newest finite checkpoint among those whose tensors were read, by the same rule; None if there is none."""
    by_path = {h.path: h for h in found}
    good = last_good([looked_at(Checkpoint(path=h.path, step=None), Looked.of(h)) for h in by_path.values()])
    return by_path[good.path] if good is not None else None


def not_looked_into(checkpoint: Checkpoint, checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Those of `checkpoint` and the other parts of its step that were not opened yet."""
    alike = [
        c
        for c in checkpoints
        if c.path == checkpoint.path or (c.step is not None and _part_of(c) == _part_of(checkpoint))
    ]
    return [c for c in alike if not c.looked_into]


def looked_at(checkpoint: Checkpoint, seen: Looked) -> Checkpoint:
    """The checkpoint with what opening it showed, and with the step in it if the name has none."""
    return replace(
        checkpoint,
        step=checkpoint.step if checkpoint.step is not None else seen.step,
        finite=seen.finite,
        nonfinite=seen.nonfinite,
        problem=seen.problem,
        looked_into=True,
    )


def _may_be_good(c: Checkpoint) -> bool:
    return c.finite is True or (c.finite is None and c.problem is None and not c.looked_into)


def _part_of(c: Checkpoint) -> tuple[str, int | None]:
    return os.path.dirname(c.path), c.step


def _age(c: Checkpoint) -> tuple[bool, int, bool, str]:
    return c.step is not None, c.step or 0, _names_its_step(c), c.path


def _names_its_step(c: Checkpoint) -> bool:
    return step_of(Path(c.path)) is not None
