"""`with postmortem.watch(): …`: a training under watch in its own process, without a launcher."""

from __future__ import annotations

import gc
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch

from postmortem.attach import boundaries
from postmortem.attach.agent import Agent
from postmortem.attach.answers import Answers
from postmortem.attach.boundaries.current import listener
from postmortem.attach.boundaries.readings import last_chance
from postmortem.attach.observer import Observer
from postmortem.attach.outcome import Outcome
from postmortem.core.errors import UsageError
from postmortem.reporters.replay_text import capture_lines, replay_lines

if TYPE_CHECKING:
    from types import TracebackType

    from postmortem.attach.flags import Fault, Tick
    from postmortem.core.culprit import ReplayResult


class Watch:
    """What `watch` returns: a context. result: what was found, None while nothing is."""

    def __init__(
        self,
        model: torch.nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        plan: dict[str, Any],
    ) -> None:
        self.result: ReplayResult | None = None
        self._model, self._optimizer, self._plan = model, optimizer, plan
        self._session: Path | None = None

    @property
    def captures(self) -> tuple[Path, ...]:
        """The captures that were written."""
        told = self.result.captures if self.result is not None else ()
        return tuple(Path(c["path"]) for c in told if "path" in c)

    def __enter__(self) -> Self:
        if type(boundaries.current()) is not Observer:
            return self  # `postmortem run` or another `watch` does it already
        self._session = Path(tempfile.mkdtemp(prefix="postmortem-"))
        listener.ticks = listener.backwards = 0
        agent = _Agent(self._session, self._plan, self)
        boundaries.install(agent)
        for optimizer in self._optimizers():
            listener.optimizers.add(optimizer)
        if listener.optimizers:
            agent.begin()
        return self

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that were made before."""
        if self._optimizer is not None:
            return [self._optimizer]
        known = [o for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer)]
        if self._model is None:
            return known
        ours = {id(p) for p in self._model.parameters()}
        return [o for o in known if any(id(p) in ours for g in o.param_groups for p in g["params"])]

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._session is None:
            return
        last_chance()
        # of a forked copy of the process this is another observer, which ends it here
        if isinstance(error, Exception):
            boundaries.current().raised(error)
        boundaries.current().end()
        boundaries.exchange(Observer())
        self.tell()
        shutil.rmtree(self._session, ignore_errors=True)
        self._session = None

    def leave(self) -> None:
        """In a process that the program forked: nothing is told or removed at the end of the block."""
        self._session = None

    def tell(self) -> None:
        """Prints what was found, once."""
        if self._session is None or self.result is not None:
            return
        answers = Answers(self._session)
        answers.poll()
        if answers.at_fault() is None and not any(p.captures for p in answers.processes.values()):
            return
        command = tuple(sys.orig_argv) or (sys.executable,)
        result = Outcome(str(Path.cwd()), command, answers, None, "").of_watch(None)
        if answers.at_fault() is not None:
            self.result = result
            print("\n".join(["", *replay_lines(result), ""]), file=sys.stderr)
        for line in capture_lines(result):
            print(f"postmortem: {line}", file=sys.stderr)


class _Agent(Agent):
    """The agent, which tells at once."""

    def __init__(self, session: Path, plan: dict[str, Any], watch: Watch) -> None:
        super().__init__(session, plan)
        self._watch = watch

    def begin(self) -> None:
        """The first step begins."""
        self._sleep(-1)

    def in_fork(self) -> Observer:
        """Nobody: the block is the business of the process before."""
        self.leave()
        return Observer()

    def leave(self) -> None:
        """The folder is that of the process before as well."""
        super().leave()
        self._watch.leave()

    def failed(self, fault: Fault, tick: Tick) -> None:
        """Told before the program goes on, or is stopped."""
        going_on = self.plan["on_fault"] != "stop"
        self.plan["on_fault"] = self.plan["on_fault"] if going_on else "continue"
        super().failed(fault, tick)
        self._watch.tell()
        if not going_on:
            raise SystemExit(1)


def watch(
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    on_fault: Literal["continue", "skip", "stop"] = "continue",
    fix: bool = True,
    captures: int = 3,
    folder: str | Path = "postmortem-report",
) -> Watch:
    """Watches the trainings in a `with` block; at the first non-finite value it prints the culprit to stderr.

        with postmortem.watch():
            train()

    model, optimizer: only these; None: all of the process. on_fault: after a fault the program goes on, skips updates
    with non-finite gradients, or ends with exit code 1 ("continue", "skip", "stop"). fix: try fixes. captures: how many
    captures are kept in `folder`/captures; 0: none is written. Within `postmortem run` it does nothing more. The
    result is in `Watch.result`, the paths of the captures in `Watch.captures`.
    """
    if on_fault not in ("continue", "skip", "stop"):
        raise UsageError(f"on_fault is {on_fault!r}: it is 'continue', 'skip' or 'stop'")
    plan: dict[str, Any] = {"mode": "run", "fix": fix, "on_fault": on_fault}
    if captures:
        plan["capture"] = {"folder": str(Path(folder, "captures").absolute()), "keep": captures, "most": 32 << 30}
    return Watch(model, optimizer, plan)
