"""Which ranks waited for a collective until its timeout, and which did not join it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postmortem.core.model import Event
    from postmortem.core.view import View

TIMEOUTS = ("nccl-timeout", "gloo-timeout")
"""Signatures of a collective that timed out."""


def printed_by(event: Event) -> list[int]:
    """The ranks that printed a message."""
    return event.fields.get("ranks") or ([] if event.rank is None else [event.rank])


def waiting(view: View) -> tuple[set[int], set[int]]:
    """(the ranks that waited until a timeout, those that likely did not join them); empty where the log shows neither.

    Those that waited print the timeout. Missing are the ranks that a barrier lists, or else those that printed nothing
    about it, if they are not more than those that waited: the log of a single rank proves nothing.
    """
    timeouts = [e for e in view.events if e.kind in TIMEOUTS]  # several where each rank has a log of its own
    waited = {rank for e in timeouts for rank in printed_by(e)}
    missing = {rank for e in timeouts for rank in e.fields.get("missing_ranks") or ()}
    if missing:
        return waited, missing
    suspects = (e.fields.get("suspects") or () for e in timeouts)
    silent = {s.rank for s in view.series if s.rank >= 0}.union(*suspects) - waited
    return waited, silent if len(silent) <= len(waited) else set()
