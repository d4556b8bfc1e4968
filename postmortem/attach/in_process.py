"""`with postmortem.watch(): …`: watches a training in its own process, without a launcher."""

from __future__ import annotations

import gc
import math
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch

from postmortem.attach import boundaries
from postmortem.attach.agent import Agent
from postmortem.attach.answers import Answers
from postmortem.attach.boundaries.current import listener
from postmortem.attach.boundaries.readings import last_chance
from postmortem.attach.driver import number_history
from postmortem.attach.flags import gradients
from postmortem.attach.levels.latents import Latents
from postmortem.attach.measure.reductions import all_finite
from postmortem.attach.noting import note_end, note_steps, save
from postmortem.attach.observer import Observer
from postmortem.attach.outcome import Outcome
from postmortem.attach.paced import Paced, scale
from postmortem.attach.report import rank
from postmortem.checkpoints.histories import HOME, LEVELS, Level
from postmortem.core.errors import PostmortemError, UsageError
from postmortem.core.own_output import beside_a_training
from postmortem.reporters.replay_text import capture_lines, replay_lines

if TYPE_CHECKING:
    from types import TracebackType

    from postmortem.attach.flags import Fault, Tick
    from postmortem.core.culprit import ReplayResult


class Watch:
    """The context manager that `watch` returns.

    result: what was found, None if nothing was. skipped: number of updates that `skip_bad` skipped. history: the folder
    of the history, created when its first rows are written; None if no history is kept.
    """

    def __init__(
        self,
        model: torch.nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        plan: dict[str, Any],
        folder: Path,
    ) -> None:
        self.result: ReplayResult | None = None
        self.skipped = 0
        self._model, self._optimizer, self._plan, self._folder = model, optimizer, plan, folder
        self.history: Path | None = None
        self._session: Path | None = None
        self._latents: Latents | None = None
        self._process = os.getpid()
        self._since = time.time()

    @property
    def captures(self) -> tuple[Path, ...]:
        """The paths of the captures that were written."""
        told = self.result.captures if self.result is not None else ()
        return tuple(Path(c["path"]) for c in told if "path" in c)

    def __enter__(self) -> Self:
        if type(boundaries.current()) is not Observer:
            return self  # `postmortem run` or another `watch` does it already
        self._session = Path(tempfile.mkdtemp(prefix="postmortem-"))
        self._process, self._since = os.getpid(), time.time()
        listener.ticks = listener.backwards = 0
        if "level" in self._plan:
            self.history = self._new_history()
            self._plan["history"] = str(self.history)
        kind = _Paced if "budget" in self._plan else _Agent
        agent = kind(self._session, self._plan, self)
        boundaries.install(agent)
        for optimizer in self._optimizers():
            listener.optimizers.add(optimizer)
        if listener.optimizers:
            agent.begin(self._model)
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
        self._keep_history(_code(error))
        shutil.rmtree(self._session, ignore_errors=True)
        self._session = None

    def _new_history(self) -> Path:
        return (self._folder / HOME.name / time.strftime("%Y%m%d-%H%M%S")).absolute()

    def _keep_history(self, code: int) -> None:
        """What waits is written, the rows get the steps of the log that the program wrote, and it is noted for a scan
        how the block was left, with `code`, and what was found."""
        try:
            if self._latents is not None:
                self._latents.close()
            if "history" in self._plan and self._session is not None and self.history is not None:
                answers = Answers(self._session)
                answers.poll()
                outcome = Outcome(str(Path.cwd()), _command(), answers, None, "")
                outcome.code = code
                result = outcome.of_watch(self._since)
                numbers = number_history(outcome, self.history)
                if self.history.is_dir():
                    note_steps(result, outcome.log, self.history, numbers)
                    note_end(outcome, self.history, numbers, stopped=self._plan["on_fault"] == "stop")
                    if self.result is not None:
                        save(result, self._folder.absolute(), self.history)
        except (OSError, PostmortemError) as error:
            print(f"postmortem: the history is not complete: {error}", file=sys.stderr)

    def skip_bad(self, loss: torch.Tensor | None = None) -> bool:
        """Call before `optimizer.step()`: if gradients or `loss` are non-finite, skips the update and returns True.

            loss.backward()
            watcher.skip_bad(loss)
            optimizer.step()

        The gradients of the watched optimizers are set to None, which makes every optimizer skip them, and `skipped` is
        incremented. The first such step is examined like any other fault. With several ranks, only the gradients
        decide, as they are the same on all ranks. With a GradScaler it returns False: `scaler.step` skips such steps
        itself. On a GPU it synchronises to read the gradients. It also works after the block.
        """
        if os.getpid() != self._process or listener.unscaled:
            return False  # in a copy of the process, the step is repeated as it was
        optimizers = [self._optimizer] if self._optimizer is not None else list(listener.optimizers)
        alone = rank() is None
        lost = loss is not None and alone and not all(map(math.isfinite, loss.detach().double().reshape(-1).tolist()))
        if not lost and all_finite(gradients(optimizers)):
            return False
        self.skipped += 1
        boundaries.current().skipped_by_the_program()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad = None
        return True

    def latents(self, t: float | torch.Tensor, x: torch.Tensor) -> None:
        """For diffusion pipelines, after a denoising step: records statistics of the latents `x` at timestep `t`.

            for t in scheduler.timesteps:
                x = scheduler.step(model(x, t), t, x).prev_sample
                watcher.latents(t, x)

        `x` may have any shape. A row has `latent/mean`, `latent/std`, `latent/absmax`, `latent/nonfinite` (number of
        values) and `latent/t`; `step` counts the calls from 0. The rows are written to history-latents.jsonl in the
        folder `history`, which a scan reads: non-finite values, and values of 1,000 times their usual level (see
        LOS008), are findings. Non-finite values are also reported on stderr, once.
        """
        if os.getpid() != self._process:
            return  # a copy of the process that repeats a step
        if self._latents is None:
            outer = boundaries.current()
            kept = outer.plan.get("history") if isinstance(outer, Agent) else None
            self.history = self.history or (Path(kept) if kept else self._new_history())
            self._latents = Latents(self.history, rank)
        self._latents.add(t, x)

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
        result = Outcome(str(Path.cwd()), _command(), answers, None, "").of_watch(None)
        if answers.at_fault() is not None:
            self.result = result
            print(beside_a_training("\n".join(["", *replay_lines(result), ""]), sys.stderr), file=sys.stderr)
        for line in capture_lines(result):
            print(f"postmortem: {line}", file=sys.stderr)


def _command() -> tuple[str, ...]:
    """Of this process."""
    return tuple(sys.orig_argv) or (sys.executable,)


def _code(error: BaseException | None) -> int:
    """The exit code that a program has which ends with this."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0 if error is None else 130 if isinstance(error, KeyboardInterrupt) else 1


class _Agent(Agent):
    """The agent, which tells at once."""

    def __init__(self, session: Path, plan: dict[str, Any], watch: Watch) -> None:
        super().__init__(session, plan)
        self._watch = watch

    def begin(self, model: torch.nn.Module | None) -> None:
        """The first step begins. model: the one that is trained, where that is known."""
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


class _Paced(Paced, _Agent):
    """The same, within a budget."""

    def begin(self, model: torch.nn.Module | None) -> None:
        """What would have to be searched for in a step is looked up before the first one."""
        self.statistics.find(model)
        if self._levels is not None:
            self._levels.prepare()
        super().begin(model)


def watch(
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    level: Level | None = None,
    budget: float | None = None,
    on_fault: Literal["continue", "skip", "stop"] = "continue",
    fix: bool = True,
    captures: int = 3,
    folder: str | Path = "postmortem-report",
) -> Watch:
    """Watches the trainings in a `with` block; at the first non-finite value it prints the culprit to stderr.

        with postmortem.watch():
            train()

    model, optimizer: watch only these; None: all in the process.
    level: what to measure in addition ("basic", "advanced", "extreme", as `postmortem run --level`); it is written to a
        history in `folder`/history, which a scan reads. None: no history is kept.
    budget: largest share of the CPU time of the steps that watching may use, such as 0.05. Nothing is measured or
        copied before its cost is earned; the cost is estimated from the sizes of the parameters, then measured. With
        0.01 and a copy of the process that costs 0.3 s, a fault in the first 60 s or more has no culprit: the report
        says so, and which budget would have paid the copy. Without a budget, the first step has one. If steps are
        so short that even reading their losses costs more, ranges of steps are not watched; a fault in such a range is
        reported later and without a culprit. What is set up when the block is entered is not counted.
    on_fault: after a fault "continue", "skip" updates with non-finite gradients, or "stop" with exit code 1.
    fix: whether fixes are tried. captures: how many captures are kept in `folder`/captures; 0: none is written.

    The result is in `Watch.result`, the paths of the captures in `Watch.captures`. Within `postmortem run` it has no
    further effect. Raises UsageError for an unknown level or on_fault, or an invalid budget.
    """
    if on_fault not in ("continue", "skip", "stop"):
        raise UsageError(f"on_fault is {on_fault!r}: it is 'continue', 'skip' or 'stop'")
    if level is not None and level not in LEVELS:
        raise UsageError(f"level is {level!r}: it is {', '.join(map(repr, LEVELS))}")
    if budget is not None and not 0 < budget < 1:
        raise UsageError(f"budget is {budget!r}: it is a share of the time of a step, such as 0.05")
    plan: dict[str, Any] = {"mode": "run", "fix": fix, "on_fault": on_fault}
    plan |= {"level": level} if level is not None else {}
    plan |= {"budget": budget, "scale": scale(budget, level)} if budget is not None else {}
    if captures:
        plan["capture"] = {"folder": str(Path(folder, "captures").absolute()), "keep": captures, "most": 32 << 30}
    return Watch(model, optimizer, plan, Path(folder))
