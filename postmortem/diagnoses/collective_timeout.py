from __future__ import annotations

from typing import TYPE_CHECKING

from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.crash import Reason, because, crash_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from postmortem.core.model import Diagnosis, Event, Finding
    from postmortem.core.view import View


@diagnosis
class CollectiveTimeout:
    """Ranks waited for another one until the timeout; who did not come is named.

    The ranks that print the timeout are those that waited. Suspects are the others, as long as they are no more than
    those that waited (of a log of one rank alone nothing follows), the rank that had queued the fewest collectives,
    and the one whose last printed step is behind.
    """

    name = "collective-timeout"
    priority = 63

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        found = crash_of(view, findings, "nccl-timeout", "gloo-timeout")
        return because(*found, list(_reasons(view, found[1]))) if found is not None else None


def _reasons(view: View, event: Event) -> Iterator[Reason]:
    fields = event.fields
    waited = set(fields.get("ranks") or ([] if event.rank is None else [event.rank]))
    suspects = set(fields.get("missing_ranks") or fields.get("suspects") or ())
    what = f" {fields['op']} number {fields['seq']}" if "op" in fields and "seq" in fields else ""
    if 0 < len(suspects) <= max(len(waited), 1):
        yield Reason(f"{_ranks(suspects)} did not come to the collective{what} for which {_ranks(waited)} waited", _look_at(suspects))
    if "laggard" in fields:
        queued, last = fields["enqueued_by_rank"], fields["laggard"]
        most = max(queued.values())
        yield Reason(f"rank {last} had queued {queued[str(last)]} collectives, others {most}: it is behind", _look_at([last]))
    steps: dict[int, int] = {}
    for series in view.series:
        if series.rank >= 0 and len(series):
            steps[series.rank] = max(steps.get(series.rank, int(series.step[-1])), int(series.step[-1]))
    behind = [rank for rank, step in steps.items() if step < max(steps.values())]
    if behind and len(behind) <= len(steps) // 2:
        last = min(behind, key=steps.__getitem__)
        yield Reason(f"the last row of {_ranks(behind)} is of step {steps[last]}, of the others of step {max(steps.values())}", _look_at(behind))


def _ranks(ranks: Iterable[int]) -> str:
    listed = [str(rank) for rank in sorted(ranks)]
    if len(listed) == 1:
        return f"rank {listed[0]}"
    return f"ranks {', '.join(listed[:8])} and {len(listed) - 8} more" if len(listed) > 8 else f"ranks {', '.join(listed[:-1])} and {listed[-1]}"


def _look_at(ranks: Iterable[int]) -> str:
    return f"look at {_ranks(ranks)}: the end of the log, dmesg on the node, `py-spy dump --pid PID` while it hangs"
