"""Builds the `ReplayResult` from what the processes reported: the same object as of a replay with a recipe."""

from __future__ import annotations

import math
import os
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from postmortem.attach.answers import NO_OPTIMIZER, exit_words
from postmortem.attach.growth.before_fault import advised, growth_before, told
from postmortem.attach.own_logs import log_of
from postmortem.attach.shadow import fidelity as by_own_log
from postmortem.attach.shadow import followed
from postmortem.attach.steps import by_rank, matched
from postmortem.core.culprit import Culprit, Fidelity, Raised, ReplayResult
from postmortem.core.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from postmortem.attach.answers import Answers, Process
    from postmortem.attach.steps import Mapping
    from postmortem.core.view import View
    from postmortem.replay.roll.aim import Aim

_WATCHED = "`postmortem run -- COMMAND` watches a training from its start, without a resume"
_GLOO = (
    "the program talks by NCCL, which needs GPUs: let it use gloo and the CPU here, or write a recipe with ranks=N, "
    "which postmortem runs on gloo"
)
_WHERE = {
    "loss": "the loss of backward pass {index} of optimizer step {tick} is non-finite",
    "skipped-loss": "the program read a non-finite loss in optimizer step {tick}, and did not use it",
    "gradient": "gradients of optimizer step {tick} are non-finite, and the program did not use them",
    "raised": "the program raised in optimizer step {tick}",
    "jump": "the loss of backward pass {index} of optimizer step {tick} is finite and far above those before it",
    "buffer": "buffers of the model are non-finite after optimizer step {tick}, and were finite before it",
    "gradient-jump": "the gradient norm of optimizer step {tick} is finite and far above those before",
    "parameter": "parameters are non-finite after optimizer step {tick}",
}


class NothingSeen(ReplayError):
    """No step of a training was seen; `result` says so as an answer without a culprit."""

    def __init__(self, why: str, result: ReplayResult) -> None:
        super().__init__(why)
        self.result = result


@dataclass
class Outcome:
    """What came of a command. view: the log of the run that it is compared with. protection: how the user's files were
    protected. mapping: of the ticks of a watched program to the steps of the log that it wrote, once it has ended; log:
    where that lies. code: the exit code of a watched program that has ended. logs: where a rerun has logged to. ranks:
    how closely each rank that has a log of its own follows that."""

    target: str
    command: tuple[str, ...]
    answers: Answers
    view: View | None
    protection: str
    mapping: Mapping | None = None
    log: Path | None = None
    code: int | None = None
    logs: Sequence[Path] = ()
    ranks: dict[int, Fidelity] = field(default_factory=dict)

    @property
    def process(self) -> Process | None:
        """The process that answers: the one at fault, else that with the most steps."""
        failed = self.answers.at_fault()
        return failed or max(self.answers.trainers, key=lambda p: p.ticks, default=None)

    def unseen(self, why: str) -> NothingSeen:
        """The error that says so, with the answer."""
        fidelity = Fidelity(ok=False, note="no step of a training was seen: there is nothing to compare with the log")
        culprit = Culprit(cause="none", phase="none", fidelity=fidelity, how=(why,))
        return NothingSeen(why, self._result(None, None, fidelity, culprit, judged=False))

    def failed_early(self, process: Process) -> NothingSeen:
        """The error of a command that raised before its first step, with the answer."""
        what = raised(process)
        place = f" ({os.path.relpath(what.file)}:{what.line})" if what.file else ""
        message = f": {what.message[:300]}" if what.message else ""
        error = self.unseen(f"the command failed before its first training step: {what.type}{message}{place}")
        error.result = replace(error.result, raised=what)
        return error

    def of_rerun(self, aim: Aim, *, stopped: bool) -> ReplayResult:
        """The answer of a rerun. stopped: it was ended by us, as nothing more was to be expected of it."""
        process = self.process
        if process is None:
            raise ReplayError("the command was stopped before it stepped an optimizer")
        others = self.answers.other_ranks(process)
        mapping, fidelity = matched(self.view, process.passes, process.rank, others, masked=aim.masked)
        if not fidelity.ok and process.fault is not None and process.fault["what"] == "skipped-loss":
            mapping, fidelity = self._without_the_skipped(process, aim) or (mapping, fidelity)
        if mapping is None:
            own = followed(self.view, self.logs, process.rank)
            fidelity = by_own_log(own) if own is not None and own.same else fidelity
        trail = [_counted(process, mapping)]
        if fidelity.note:
            trail.append(fidelity.note)
        self.ranks = by_rank(self.view, self.answers.of_ranks(), masked=aim.masked)
        trail += [f"rank {rank}, its own log: {of.note}" for rank, of in self.ranks.items() if rank != process.rank]
        if mapping is not None and aim.asked is not None and mapping.first > aim.asked and process.fault is None:
            first = f"the first step of the command is step {mapping.first} of the log"
            raise ReplayError(f"{first}, after step {aim.asked}: name an earlier checkpoint in the command")
        distrust = not fidelity.ok and bool(fidelity.reasons)
        if process.fault is None:
            return self._without_fault(process, mapping, fidelity, aim, trail, stopped=stopped)
        if distrust:
            trail.append(f"the rerun fails ({_fault(process)}), but not as the run did: no culprit is named")
            culprit = Culprit(cause="none", phase="none", fidelity=fidelity, how=tuple(trail))
            result = self._result(process, mapping, fidelity, culprit, judged=False)
            return replace(result, next=(_WATCHED,))
        return self._named(process, mapping, fidelity, trail, aim)

    def _without_the_skipped(self, process: Process, aim: Aim) -> tuple[Mapping, Fidelity] | None:
        """The comparison where the program logs nothing of a step that it leaves out, and does not count it either."""
        used = process.passes[:-1]
        mapping, fidelity = matched(self.view, used, process.rank, masked=aim.masked)
        return (replace(mapping, passes=tuple(process.passes)), fidelity) if mapping and fidelity.ok else None

    def of_watch(self, since: float | None) -> ReplayResult:
        """The answer of a watched program. since: when it was started, to find the logs that it wrote; None while it
        runs."""
        process = self.process
        repeated = process is not None and process.culprit is not None and process.culprit.get("repeated")
        compared = "and its step was repeated bit for bit" if repeated else "not a rerun: there is nothing to compare"
        none = Fidelity(ok=True, note=f"the program itself was watched, {compared}")
        if process is None:
            culprit = Culprit(cause="none", phase="none", how=(self.answers.unseen(self.code),))
            return self._result(None, None, none, culprit, judged=False)
        if since is not None:
            self.mapping, self.log = self._own_log(process, since)
        log = os.path.relpath(self.log) if self.log is not None else "RUN"
        watched = self._watched(process, self.mapping, none, log)
        return replace(watched, captures=self._captures(self.mapping))

    def _captures(self, mapping: Mapping | None) -> tuple[dict[str, Any], ...]:
        told = [c for p in self.answers.processes.values() for c in p.captures]
        return tuple({**c, "step": mapping.step_of(c["tick"]) if mapping and "tick" in c else None} for c in told)

    def _watched(self, process: Process, mapping: Mapping | None, none: Fidelity, log: str) -> ReplayResult:
        trail = [_counted(process, mapping)]
        if process.fault is not None:
            result = self._named(process, mapping, none, trail, None, log)
            again = result.culprit.cause == "none" and process.unexamined != NO_OPTIMIZER
            return replace(result, next=self._by_hand(log)) if again else result
        if process.raised is not None:
            culprit = Culprit(cause="none", phase="none", how=(*trail, "no non-finite value was seen"))
            return replace(self._result(process, mapping, none, culprit), raised=raised(process))
        trail.append("every loss and parameter was finite")
        culprit = Culprit(cause="none", phase="none", how=tuple(trail), established="observed")
        return self._result(process, mapping, none, culprit)

    def _own_log(self, process: Process, since: float) -> tuple[Mapping | None, Path | None]:
        """The log that the program wrote: the mapping to its steps, and its folder."""
        others = self.answers.other_ranks(process)
        for view in log_of(since):
            mapping, _ = matched(view, process.passes, process.rank, others)
            if mapping is not None:
                return mapping, view.run.path
        return None, None

    def _again(self, log: str) -> str:
        return f"postmortem replay {shlex.quote(log)} -- {shlex.join(self.command)}"

    def _by_hand(self, log: str) -> tuple[str, ...]:
        """What names a culprit that the program could not be asked for: the line to type."""
        line = self._again(log)
        resumed = "told to resume from a checkpoint before the step, if there is one"
        which = "; RUN is the folder of its log" if log == "RUN" else ""
        return (f"`{line}` runs the command again and traces the step; let it be {resumed}{which}",)

    def of_capture(self, fidelity: Fidelity, trail: list[str]) -> ReplayResult:
        """The answer of a program that went on from a capture."""
        process = self.process
        if process is None:
            raise ReplayError("the command was stopped before it stepped an optimizer")
        trail = [*trail, fidelity.note]
        if process.fault is not None and fidelity.ok:
            return self._named(process, None, fidelity, trail, None)
        none: dict[str, Any] = {"cause": "none", "phase": "none", "fidelity": fidelity}
        if process.fault is not None:
            trail.append(f"it fails ({_fault(process)}), but not as the captured step did: no culprit is named")
            return self._result(process, None, fidelity, Culprit(how=tuple(trail), **none), judged=False)
        if process.raised is not None:
            trail.append("no non-finite value was seen before the exception")
            return replace(
                self._result(process, None, fidelity, Culprit(how=tuple(trail), **none)), raised=raised(process)
            )
        trail.append("every loss and parameter of the step is finite")
        culprit = Culprit(how=tuple(trail), established="observed", **none)
        return self._result(process, None, fidelity, culprit, judged=fidelity.ok)

    def _without_fault(
        self,
        process: Process,
        mapping: Mapping | None,
        fidelity: Fidelity,
        aim: Aim,
        trail: list[str],
        *,
        stopped: bool,
    ) -> ReplayResult:
        done = mapping.last_whole(process.ticks) if mapping is not None else None
        how = {"cause": "none", "phase": "none", "fidelity": fidelity}
        if process.raised is not None:
            trail.append("no non-finite value was seen before the exception")
            trail += self._dead()
            culprit = Culprit(how=tuple(trail), step=None, **how)  # type: ignore[arg-type]
            result = replace(self._result(process, mapping, fidelity, culprit), raised=raised(process))
            return replace(result, next=(_GLOO,)) if "NCCL" in process.raised["message"] else result
        if not fidelity.ok:
            trail.append("no step of the rerun failed, but nothing follows for the run")
            culprit = Culprit(how=tuple(trail), **how)  # type: ignore[arg-type]
            return self._result(process, mapping, fidelity, culprit, judged=False)
        upto = f"up to step {done}" if done is not None else f"in all {process.ticks} optimizer steps"
        trail.append(f"every loss and parameter is finite {upto}")
        asked = aim.asked is not None and done is not None and done >= aim.asked
        wanted = aim.asked if asked else aim.step
        failed = aim.nonfinite and wanted == aim.step  # the log is non-finite at `aim.step`
        short = wanted is not None and done is not None and done < wanted and not stopped
        if short:
            trail += [f"the command ended there, before step {wanted}", *self._dead()]
        elif failed:
            trail.append("the log is non-finite there and the rerun is finite: the failure did not recur")
        culprit = Culprit(how=tuple(trail), step=done, established="observed", **how)  # type: ignore[arg-type]
        return self._result(process, mapping, fidelity, culprit, judged=not short and not failed)

    def _dead(self) -> list[str]:
        """That a rank ended without an exception, of which the others die."""
        first = self.answers.first_ended()
        if first is None or any(p.rank == first[0] and p.raised for p in self.answers.processes.values()):
            return []
        return [f"rank {first[0]} ended first, by {exit_words(first[1])}: the other ranks ended because of that"]

    def _named(
        self,
        process: Process,
        mapping: Mapping | None,
        fidelity: Fidelity,
        trail: list[str],
        aim: Aim | None,
        log: str = "RUN",
    ) -> ReplayResult:
        assert process.fault is not None
        tick = int(process.fault["tick"])
        step = mapping.step_of(tick) if mapping is not None else None
        if aim is not None and aim.asked is not None and step is not None and step != aim.asked:
            which = "before it, is the first that fails" if step < aim.asked else "after it, is the first that fails"
            trail.append(f"step {aim.asked} was requested; step {step}, {which}")
        trail.append(_fault(process))
        found = process.culprit
        if found is None:
            if aim is None and (loss := [p.loss for p in process.passes if p.tick == tick][-1:]):
                trail.append(f"the loss of that backward pass was {loss[0]:g}")
            trail.append(f"not examined: {process.unexamined or 'the process ended before'}")
            culprit = Culprit(cause="none", phase="none", step=step, fidelity=fidelity, how=tuple(trail))
            return self._result(process, mapping, fidelity, culprit, judged=False)
        culprit = Culprit.from_json(found["culprit"])
        culprit = replace(culprit, step=step, fidelity=fidelity, how=(*trail, *culprit.how))
        growth = growth_before(process, mapping, self.view) if culprit.phase != "none" else None
        culprit = told(culprit, growth) if growth is not None else culprit
        if culprit.phase != "none" and not fidelity.ok and not fidelity.compared:
            culprit = replace(culprit, established="observed")
        judged = culprit.phase != "none" or culprit.cause == "transient"
        following = tuple(found.get("next", ()))
        if growth is not None:
            following = (advised(growth, None if aim is not None else self._again(log)),)
        elif following:
            following += (f"then start the training again, by this command: `{shlex.join(self.command)}`",)
        return replace(
            self._result(process, mapping, fidelity, culprit, judged=judged),
            next=following,
            micro_batch=found.get("micro_batch"),
        )

    def _result(
        self,
        process: Process | None,
        mapping: Mapping | None,
        fidelity: Fidelity,
        culprit: Culprit,
        *,
        judged: bool = True,
    ) -> ReplayResult:
        fault = process.fault if process is not None else None
        return ReplayResult(
            target=self.target,
            recipe="",
            checkpoint="",
            step=culprit.step,
            fidelity=fidelity,
            culprit=culprit,
            notes=tuple(self.answers.notes()),
            judged=judged,
            command=self.command,
            tick=int(fault["tick"]) if fault is not None else None,
            rank=process.rank if process is not None else None,
            ranks=tuple(
                {"rank": rank, "ok": of.ok, "compared": of.compared, "exact": of.exact}
                for rank, of in self.ranks.items()
            ),
            protection=self.protection,
        )


def never_began(process: Process, view: View | None) -> bool:
    """Whether the program raised while it prepared its training: a wrong path, an option, a file that is missing.

    Where the log has no step, or names the same class of exception, that is how the run itself ended.
    """
    told = process.raised
    if told is None or process.fault is not None or process.ticks or process.passes or told.get("in_step"):
        return False
    if view is None or view.last_step is None or "NCCL" in told["message"]:
        return False
    return not any(told["type"] in event.message for event in view.run.event_list if event.severity == "error")


def raised(process: Process) -> Raised:
    """The exception that ended a process."""
    assert process.raised is not None
    told = process.raised
    return Raised(type=told["type"], message=told["message"], file=told["file"], line=told["line"])


def _fault(process: Process) -> str:
    fault = process.fault
    assert fault is not None
    index = 1 + max(0, sum(p.tick == fault["tick"] for p in process.passes) - 1)
    where = "" if process.rank is None else f" (rank {process.rank})"
    seen = f", which was noticed in optimizer step {fault['seen']}" if "seen" in fault else ""
    return _WHERE[fault["what"]].format(index=index, tick=fault["tick"]) + where + seen


def sentence(process: Process) -> str:
    """What was seen of a fault that is being examined, in one sentence."""
    return f"{_fault(process)}; the step is examined, and the training waits for that"


def _counted(process: Process, mapping: Mapping | None) -> str:
    steps = f"{process.ticks} optimizer step{'s' if process.ticks != 1 else ''} of the command ended"
    if mapping is None or not process.passes:
        return steps
    finite = [p for p in process.passes if math.isfinite(p.loss)]
    if not finite:
        return f"{steps}; no loss that was seen is finite, so no value shows which steps of the log they are"
    last = mapping.step_of(finite[-1].tick)
    if last == mapping.first:
        return f"{steps}; by the loss the first is step {last} of the log"
    return f"{steps}; by their losses they are steps {mapping.first} to {last} of the log"
