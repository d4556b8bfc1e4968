"""An attempt: the program goes on in a forked child, from the fork to the end of the tick at fault.

The child is an observer of the program. It ends by `os._exit` with its reply, so that nothing of the program's own
(`finally`, `atexit`) runs after that. `repeats` has another kind of attempt, after which the process goes on.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections import Counter
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from postmortem.attach import boundaries
from postmortem.attach.boundaries.current import before_scaling, listener
from postmortem.attach.capture.state import randomness, settings
from postmortem.attach.flags import gradient_norm
from postmortem.attach.observer import Observer
from postmortem.attach.standby import databases, files, loaders, others
from postmortem.attach.standby.changes import HALF, Changes, notice_autocast, operator_by_operator
from postmortem.attach.standby.entries import Substitutes, Survey
from postmortem.attach.standby.plan import Plan, Reply, bits, total
from postmortem.attach.standby.program import Program
from postmortem.replay.recipe.user_errors import describe
from postmortem.replay.rerun.session import Stage, Traced
from postmortem.replay.step.batches import tensor_map, tensors_in
from postmortem.replay.step.errors import Raised, error_site
from postmortem.replay.step.rng import Rng
from postmortem.replay.trace.places import caller
from postmortem.replay.trace.tensors import exact_bits, nonfinite_names, storage_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from postmortem.attach.standby.plan import Entry, Key
    from postmortem.attach.standby.scene import Scene
    from postmortem.replay.trace.places import Where


class Attempt(Observer):
    """One attempt at `plan`; `answer` is called with the reply at its end, and the process ends then."""

    def __init__(self, scene: Scene, plan: Plan, answer: Callable[[Reply], None]) -> None:
        self.scene, self.plan, self.answer = scene, plan, answer
        self.reply = Reply()
        self.armed = self.over = False
        self.reached: Stage = "loss"
        self.given: Any = None
        """The batch of the tick as the program sees it."""
        self._new: dict[Any, Any] = {}
        """Batch's key -> the batch that takes its place."""
        self._changes = Changes(plan.overrides, scene.program)
        self._survey: Survey | None = None
        self._substitutes: Substitutes | None = None
        self._types: list[torch.dtype] = []
        self._before: Rng | None = None
        self._contexts: list[Any] = []
        self._fed = False  # other threads and processes are not there: what they gave is known
        self._came: Counter[int] = Counter()
        self._thread = threading.get_ident()
        self._update: tuple[torch.optim.Optimizer, Where] | None = None
        self._bad: dict[str, tuple[torch.Tensor, int]] = {}
        """Non-finite gradients of the tick: name -> (parameter, source)."""

    # ---- the program goes on

    def begin(self, *, forked: bool = True) -> None:
        """From here on the program runs in this child; called at the end of a tick.

        forked: the process has a parent, which goes on with its files and its workers.
        """
        boundaries.exchange(self)
        self._fed = forked
        self.plan.first = self.plan.first and not self.scene.program.broken()
        if forked:
            loaders.feed(self.scene.since)
            others.fall_silent()
            others.close_network(self.scene.since)
            files.keep_in_memory(self.scene.on_disk)
            databases.keep_in_memory()
            if "torch._dynamo" in sys.modules:
                torch.compiler.set_stance("eager_on_recompile")  # a compiler needs files and processes
        try:
            if listener.ticks == self.scene.tick:
                self._arm()
        except Exception as error:  # noqa: BLE001 - it must not be raised in the middle of the user's program
            self._fail(f"{type(error).__name__}: {error}")

    def batch(self, loader: Any, index: int, batch: Any) -> Any:
        """Gives the batch, or the one in its place."""
        key = self.scene.record.took(loader, index, batch)
        given = self._new.get(key, batch)
        if self.armed:
            with _disable_current_modes():
                if self._survey is not None:
                    self._survey.add(key, given)
                if self.plan.tracer is not None:
                    self.plan.tracer.disown(tensors_in(given))
                if self.plan.begin is not None:
                    self.reply.drawn.append((key, randomness()))
        return given

    def no_batch(self, loader: Any, index: int, error: Exception) -> None:
        """The attempt cannot go on, also where the program would catch that."""
        if isinstance(error, loaders.MissingBatch):
            with _disable_current_modes():
                self._fail(str(error))

    def receive(self, way: int, source: Any, ask: Callable[[], Any]) -> Any:
        """Gives what the program was given then. A future that this process has settled itself gives its own, and a
        thread that has been started since the copy is there, and is asked for."""
        if not self._fed or threading.get_ident() != self._thread:
            return ask()
        key = way, self._came[way]
        self._came[way] += 1
        if isinstance(source, Future) and source.done():
            return ask()
        with _disable_current_modes():
            value = self._new[key] if key in self._new else self.scene.since.get(key, loaders.NoBatch(None))
            if isinstance(value, loaders.NoBatch):
                if value.error is None:
                    self._fail("what another thread or process gave is not known, or cannot be handed to a copy")
                    return None
                raise value.error
            if self.armed and self._survey is not None:
                self._survey.add(key, value)
            if self.armed and self.plan.tracer is not None:
                self.plan.tracer.disown(tensors_in(value))
        return value

    def tick(self, number: int) -> None:
        """The tick before the one at fault, or this one, has ended."""
        if not self.armed:
            if self.plan.first and (what := self.scene.program.broken()):
                self.reply.earlier = number, what
                self._done("param")
            if listener.ticks == self.scene.tick:
                self._arm()
            return
        with _disable_current_modes():
            tensors = self.scene.program.changed()
            bad = nonfinite_names({n: t.detach() for n, t in tensors.items()})
            self._stop("param", {n: self._source(tensors[n]) for n in bad}) if bad else self._done(None)

    def _arm(self) -> None:
        """The tick at fault begins: changes it, and enters the contexts in which it is run."""
        plan, program = self.plan, self.scene.program
        if not plan.plain and "torch._dynamo" in sys.modules:
            torch.compiler.set_stance("force_eager")
        if plan.begin is not None:
            # the copy may be older than the scaler, or than a model
            program = self.scene.program = Program.found(listener.optimizers | listener.stepped, sys._getframe(1))
            self.reply.held = [key for key, _ in self.scene.record.recent]
            if why := plan.begin(program):
                self._fail(why)
                return
        program.name_losses(sys._getframe(1))
        self._before = Rng.capture()
        if plan.unfused and (plan.modes or plan.tracer is not None):
            operator_by_operator(program)
        program.mask(plan.mask)
        contexts = [*self._changes.begin(), *plan.modes]
        if plan.tracer is not None:
            notice_autocast(self._types)
            contexts.append(plan.tracer)
        contexts += self._replace()
        if plan.survey:
            self._survey = Survey()
            for key, batch in self._held():
                self._survey.add(key, batch)
            contexts.append(self._survey)
        self.armed = True
        for context in contexts:
            context.__enter__()
            self._contexts.append(context)

    def _held(self) -> Iterable[tuple[Key, Any]]:
        """The batches that the program may have drawn ahead."""
        return self.scene.record.recent

    def leave(self) -> None:
        """Leaves the contexts of the tick, and takes back what was changed for it; a forked child ends in them."""
        while self._contexts:
            self._contexts.pop().__exit__(None, None, None)
        self._changes.undo()
        if "torch._dynamo" in sys.modules:
            torch.compiler.set_stance("default")

    def _replace(self) -> list[Any]:
        """Puts the changed batch in the place of the one that the program had."""
        entered, o = self.scene.entered, self.plan.overrides
        if (
            entered is None
            or not (entered.batches or entered.entries)
            or (o == Plan().overrides and self.plan.change is None and self.plan.tracer is None)
        ):
            return []
        self.given = self.scene.batch
        for change in (o.batch, self.plan.change):
            self.given = change(self.given) if change is not None else self.given
        if o.dtype not in (None, "bf16"):
            self.given = tensor_map(self._changes.cast, self.given)
        if entered.entries:
            return self._substituted(entered.entries)
        for key, new in self.scene.by_key(self.given).items():
            self._new[key] = new
        for key, held in self.scene.record.recent:  # drawn ahead: the program holds it already
            if key in self._new:
                self._new[key] = self._overwritten(held, self._new[key])
        self.given = self.scene.structured({**self.scene.batches, **self._new})
        return []

    def _substituted(self, entries: list[Entry]) -> list[Any]:
        values = tensors_in(self.given)
        if len(values) != len(entries):
            self._fail("the data of the step cannot be replaced")
            return []
        self._substitutes = Substitutes(entries, values)
        return [self._substitutes]

    def _overwritten(self, held: Any, new: Any) -> Any:
        """`held` itself, with the values of `new`."""
        old, values = tensors_in(held), tensors_in(new)
        if len(old) != len(values):
            self._fail("a batch that was drawn ahead cannot be replaced")
            return held
        for t, value in zip(old, values, strict=True):
            if t is not value:
                t.data = value.data
                t.requires_grad_(t.requires_grad or value.requires_grad)
        return held

    # ---- the tick at fault

    def loss(self, loss: torch.Tensor) -> None:
        """Ends the attempt at a non-finite loss."""
        with _disable_current_modes(), torch.no_grad():
            original = before_scaling(loss)
            value = total(original)
            self.reply.losses.append((listener.ticks, bits(value)))
            if not self.armed:
                return
            self._passed(value)
            self.reached = "grad"
            if not math.isfinite(value):
                self._stop("loss", {"loss": self._source(original)})
            if self.plan.until == "loss" and self.reply.passes == self.scene.failing_pass:
                self._done(None)

    def read(self, loss: torch.Tensor) -> None:
        """The program sees for itself that its loss is non-finite, and leaves the step out."""
        if self.armed and self.scene.kind == "skipped-loss":
            self.abandoned(loss)

    def abandoned(self, loss: torch.Tensor) -> None:
        """See `read`."""
        with _disable_current_modes():
            self.reply.losses.append((listener.ticks, bits(float(loss.detach().sum()))))
            if self.armed:
                self._passed(math.nan)
                self._stop("loss", {"loss": self._source(loss)})

    def _passed(self, value: float) -> None:
        self.reply.passes += 1
        if self._survey is not None:
            self._survey.passes += 1
        if self.plan.tracer is not None:
            self.plan.tracer.passes += 1

    def backward_done(self) -> None:
        """Notes non-finite gradients before the program clips them; those of a scaled loss may be."""
        if self.armed and self.scene.kind == "gradient-jump":
            with _disable_current_modes():
                self.reply.norm = max(gradient_norm(), self.reply.norm)  # NaN, the first, is not larger
        if not self.armed or listener.unscaled:
            return
        with _disable_current_modes():
            grads = {n: p for n, p in self.scene.program.parameters.items() if p.grad is not None}
            for name in nonfinite_names({n: p.grad.detach() for n, p in grads.items() if p.grad is not None}):
                self._bad.setdefault(name, (grads[name], self._source(grads[name].grad)))

    def dropping(self, optimizer: torch.optim.Optimizer) -> None:
        """The program leaves out an update because of its gradients."""
        if self.armed and self._bad and self.scene.kind == "gradient":
            with _disable_current_modes():
                self._stop("grad", {n: source for n, (_, source) in self._bad.items()})

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Ends the attempt at a non-finite gradient that is about to be used."""
        if not self.armed:
            return
        self._update = optimizer, caller(sys._getframe(1))
        with _disable_current_modes():
            ours = {n: p for n, p in self.scene.program.parameters_of(optimizer).items() if p.grad is not None}
            bad = {n: source for n, (_, source) in self._bad.items() if n in ours}
            if not bad:
                late = nonfinite_names({n: p.grad.detach() for n, p in ours.items() if p.grad is not None})
                bad = {n: self._source(ours[n].grad) for n in late}
            self.reached = "param"
            if self.plan.begin is not None:
                self.reply.settings.append((list(self.scene.program.parameters_of(optimizer)), settings(optimizer)))
            if bad:
                self._stop("grad", bad)
            if self.plan.until == "grad":
                self._done(None)
            self._changes.before_update(optimizer)
            if self._survey is not None:
                self._survey.updating = True

    def after_update(self, optimizer: torch.optim.Optimizer, skipped: bool) -> None:
        """Puts the settings of the optimizer back."""
        if self.armed:
            self._changes.after_update()
            if self._survey is not None:
                self._survey.updating = False

    # ---- its end

    def raised(self, error: BaseException) -> None:
        """The program ends with an exception."""
        with _disable_current_modes():
            self.reply.raised = Raised(describe("", error), error_site(error))
            if not self.armed:
                self._fail(f"the program{self.reply.raised.said}, before the step at fault")
            if self._bad and self.scene.kind == "gradient":
                self._stop("grad", {n: source for n, (_, source) in self._bad.items()})
            self._stop(self.reached, {})

    def end(self) -> None:
        """The program ends by itself."""
        with _disable_current_modes():
            if self._bad and self.scene.kind == "gradient":
                self._stop("grad", {n: source for n, (_, source) in self._bad.items()})
            self._fail("the program ended before the end of the step")

    def _source(self, t: Any) -> int:
        tracer = self.plan.tracer
        return 0 if tracer is None or t is None else tracer.source(t)

    def _stop(self, stage: Stage, sources: dict[str, int]) -> None:
        if self.plan.tracer is not None:
            traced = self.reply.traced = Traced(stage=stage, names=list(sources), sources=list(sources.values()))
            if self.reply.raised is not None and not sources:
                self._everything(traced)
        self._done(stage)

    def _everything(self, traced: Traced) -> None:
        """The step raised: anything that is non-finite may be the reason."""
        program, tracer = self.scene.program, self.plan.tracer
        assert tracer is not None
        outside = [*tensors_in(self.given), *program.parameters.values(), *program.buffers.values()]
        traced.raised = self.reply.raised
        traced.sources = [*tracer.log.hits, *(-storage_key(t) for t in outside if exact_bits(t))]

    def _done(self, stage: Stage | None) -> None:
        plan, reply, program = self.plan, self.reply, self.scene.program
        if self.over:
            return
        reply.stage = stage
        if self._substitutes is not None and self._substitutes.missed:
            self._fail(self._substitutes.missed)
            return
        if self._survey is not None:
            reply.entered = self._survey.found()
            if self.scene.entered is None and plan.once:
                self.scene.enters(reply.entered)
                self.given = self.scene.batch
        if plan.tracer is not None:
            traced = reply.traced = reply.traced or Traced()
            traced.known = program.known(self.given)
            traced.buffers = set(program.buffers) - set(program.parameters)
            traced.backward_ended, traced.starts = plan.tracer.count, [(self.scene.tick, 0)]
            traced.seen = None if plan.after is None else plan.after(self.given)
            traced.close(plan.tracer, program.module_names())
            traced.update = program.update(*self._update, traced.names) if self._update and stage == "param" else None
            reply.autocast = next((HALF[t] for t in self._types if t in HALF), None)
        reply.met = [getattr(mode, "met", None) for mode in plan.modes]
        reply.drew = self._before is None or not Rng.capture().same(self._before)
        self._exit()

    def _fail(self, why: str) -> None:
        if self.over:
            return
        self.reply.failed = why
        self.reply.traced = None
        self._exit()

    def _exit(self) -> None:
        self.over = True
        try:
            self.answer(self.reply)
        finally:
            os._exit(0)
