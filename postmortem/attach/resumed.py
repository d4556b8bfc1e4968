"""A command that goes on from a checkpoint which already holds non-finite values: what it does cannot be judged."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from postmortem.checkpoints.find import find_checkpoints, is_checkpoint, step_of
from postmortem.checkpoints.kept import looked
from postmortem.checkpoints.last_good import look_for_last_good, looked_at
from postmortem.core.culprit import Culprit, Fidelity
from postmortem.core.printable import listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.attach.answers import Process
    from postmortem.core.culprit import ReplayResult
    from postmortem.core.model import Checkpoint
    from postmortem.core.report import RunReport


class Named(NamedTuple):
    """A checkpoint that a command names. at: which of its words; said: the path in that word, as typed."""

    at: int
    said: str


def from_non_finite(
    result: ReplayResult, process: Process, command: Sequence[str], report: RunReport | None
) -> ReplayResult:
    """The result where the first step of the command fails because its checkpoint holds non-finite values; else
    `result` as it is. The step of the log is then not known: a NaN is like every other."""
    c = result.culprit
    begins = process.fault is not None and process.fault["tick"] == 0
    if not begins or c.tensor.get("inputs"):  # an operator whose inputs are finite: the values arise in the step
        return result
    for named in _named(command):
        seen = looked(Path(named.said))
        if seen.finite is not False:
            continue
        held = f"{named.said} already holds non-finite values in {listed(seen.nonfinite)}"
        note = "the state is non-finite before the first step: no loss can be compared with the log"
        fidelity = Fidelity(ok=False, checkpoint=named.said, note=note)
        culprit = Culprit(
            cause="bad-parameter",
            phase="parameters",
            module=c.module,
            param=c.param,
            tensor={"checkpoint": named.said, "non_finite": list(seen.nonfinite)},
            fidelity=fidelity,
            how=(
                f"the command names {named.said}, and its first step fails",
                f"{held}: the failure is older than this checkpoint, nothing after it can be judged",
            ),
            established="observed",
        )
        again = _instead(result.target, command, named, report)
        return replace(result, step=None, fidelity=fidelity, culprit=culprit, judged=False, next=(again,))
    return result


def _named(command: Sequence[str]) -> Iterator[Named]:
    """The checkpoints among the words of a command, `--resume=ckpt.pt` as well."""
    for at, word in enumerate(command):
        for said in dict.fromkeys((word, word.partition("=")[2])):
            if said and is_checkpoint(Path(said)):
                yield Named(at, said)


def _instead(target: str, command: Sequence[str], named: Named, report: RunReport | None) -> str:
    """What to type instead: the same command, from the newest checkpoint before the failure that is whole."""
    good = _whole(Path(named.said), report)
    if good is None:
        return "no earlier checkpoint is known to be finite: let the command start from the beginning of the training"
    words = list(command)
    words[named.at] = words[named.at].replace(named.said, good)
    line = f"postmortem replay {shlex.quote(target)} -- {shlex.join(words)}"
    return f"start from {good}, the newest checkpoint before the failure, which is finite: `{line}`"


def _whole(bad: Path, report: RunReport | None) -> str | None:
    """The last good checkpoint of the run, as a scan names it; without one, the newest finite one before `bad`."""
    story = report.diagnosis if report is not None else None
    named = story.last_good_checkpoint if story is not None else None
    if named is not None and looked(Path(named)).finite:
        return named
    until = step_of(bad)

    def look(checkpoint: Checkpoint) -> Checkpoint:
        return looked_at(checkpoint, looked(Path(checkpoint.path)))

    def earlier(checkpoint: Checkpoint) -> bool:
        return until is not None and checkpoint.step is not None and checkpoint.step < until

    found = look_for_last_good(find_checkpoints(bad.parent), look, earlier, whole=True)
    return found.path if found is not None else None
