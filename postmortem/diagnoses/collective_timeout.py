from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from postmortem.core.collectives import TIMEOUTS, printed_by, waiting
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.crash import Reason, crash_of, with_reasons
from postmortem.signatures import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from postmortem.core.model import Diagnosis, Event, Finding
    from postmortem.core.view import View


@diagnosis
class CollectiveTimeout:
    """Ranks waited for another rank until the timeout; the missing rank is named.

    The ranks that print the timeout are those that waited. The suspects are the ranks that a barrier lists as missing,
    or else the ranks that printed nothing, if there are no more of them than ranks that waited (the log of a single
    rank proves nothing); the rank that had queued the fewest collectives; and the rank whose last printed step is lower
    than that of the others.

    If a single rank is missing, the finding that it hung is the root cause, and the timeouts of the others are its
    consequences.

    Known false positive: with several process groups, ranks of another group print nothing either.
    """

    name = "collective-timeout"
    priority = 63

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = crash_of(view, findings, *TIMEOUTS)
        if found is None:
            return None
        missing = waiting(view)[1]
        of_missing = () if missing else CATALOGUE[found[1].kind].fixes[:1]  # "check the ranks that are missing"
        story = with_reasons(*found, list(_reasons(view)), instead_of=of_missing)
        hung = [f.id for f in findings if f.name == "hang" and f.rank is not None and f.rank in missing]
        return replace(story, findings=tuple(dict.fromkeys((*hung, *story.findings))))


def _reasons(view: View) -> Iterator[Reason]:
    timeouts = [e for e in view.events if e.kind in TIMEOUTS]
    waited, missing = waiting(view)
    if any(e.fields.get("missing_ranks") for e in timeouts):
        yield Reason(f"{_ranks(missing)} did not reach the barrier", _look_at(missing))
    elif missing:
        collectives = {(e.fields.get("op"), e.fields.get("seq")) for e in timeouts}
        op, number = collectives.pop() if len(collectives) == 1 else (None, None)
        which = f"collective {op} number {number}" if op is not None and number is not None else "collective"
        yield Reason(
            f"{_ranks(waited)} waited for the {which}; {_ranks(missing)} reported no timeout "
            "and likely did not join it",
            _look_at(missing),
        )
    yield from _out_of_step(timeouts)
    queued = _queued(timeouts)
    if last := _least(queued):
        yield Reason(
            f"{_ranks(last)} had queued {queued[last[0]]} collectives, the others up to {max(queued.values())}",
            _look_at(last),
        )
    steps = _last_steps(view)
    if last := _least(steps):
        furthest = max(steps.values())
        evidence = f"{_ranks(last)} logged up to step {steps[last[0]]}, the others up to step {furthest}"
        yield Reason(evidence, _look_at(last))


def _out_of_step(timeouts: list[Event]) -> Iterator[Reason]:
    """The few ranks that timed out in another collective than the others: before or after it, or of another size."""
    at: dict[tuple[int, str, int | None], set[int]] = defaultdict(set)
    for event in timeouts:
        if "seq" not in event.fields or "op" not in event.fields or not printed_by(event):
            return
        at[event.fields["seq"], event.fields["op"], event.fields.get("numel_in")].update(printed_by(event))
    most = max(at, key=lambda key: len(at[key]), default=None)
    if most is None or sum(map(len, at.values())) >= 2 * len(at[most]):
        return
    for key, ranks in sorted(at.items()):
        if key == most:
            continue
        behind = most[0] - key[0]
        how = f"{abs(behind)} {'behind' if behind > 0 else 'ahead'}" if behind else "in another call"
        yield Reason(
            f"{_ranks(ranks)} timed out in {_collective(*key)}, {_ranks(at[most])} in {_collective(*most)}: "
            f"{_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} {how}, if both are of one process group",
            (
                f"look for a collective that {_ranks(ranks)} calls and the others do not, or that it skips: a branch "
                "on the rank or on its data, another number of batches, an evaluation or a log line of its own",
                *_look_at(ranks),
            ),
        )


def _collective(seq: int, op: str, numel: int | None) -> str:
    size = "" if numel is None else " of 1 element" if numel == 1 else f" of {numel} elements"
    return f"{op} number {seq}{size}"


def _queued(timeouts: list[Event]) -> dict[int, int]:
    """The number of collectives that each rank had queued, where its message holds it."""
    found: dict[int, int] = {}
    for event in timeouts:
        found |= {int(rank): n for rank, n in event.fields.get("enqueued_by_rank", {}).items()}
        if len(ranks := printed_by(event)) == 1 and "last_enqueued" in event.fields:
            found[ranks[0]] = event.fields["last_enqueued"]
    return found


def _last_steps(view: View) -> dict[int, int]:
    """The last step of each rank, in the tag that most ranks log."""
    by_tag: dict[str, dict[int, int]] = defaultdict(dict)
    for series in view.series:
        if series.rank >= 0 and len(series):
            last = by_tag[series.tag]
            last[series.rank] = max(last.get(series.rank, 0), int(series.step[-1]))
    return max(by_tag.values(), key=len, default={})


def _least(progress: dict[int, int]) -> list[int]:
    """The ranks with the least progress; none if they are more than half."""
    least = min(progress.values(), default=0)
    slowest = [rank for rank, count in progress.items() if count == least]
    return slowest if len(slowest) <= len(progress) // 2 else []


def _ranks(ranks: Collection[int]) -> str:
    """In words: rank 3; ranks 1, 2 and 5; at most eight of them."""
    if len(ranks) == 1:
        return f"rank {next(iter(ranks))}"
    listed = [str(rank) for rank in sorted(ranks)]
    shown, last = (listed[:8], f"{len(listed) - 8} more") if len(listed) > 8 else (listed[:-1], listed[-1])
    return f"ranks {', '.join(shown)} and {last}"


def _look_at(ranks: Collection[int]) -> tuple[str]:
    return (f"check {_ranks(ranks)}: the end of the log, dmesg on the node, `py-spy dump --pid PID` while it hangs",)
