"""What is patched in torch and in the interpreter, once."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.optim import optimizer as optimizers

from postmortem.attach.boundaries.channels import patch_channels
from postmortem.attach.boundaries.current import listener
from postmortem.attach.boundaries.loaders import patch_loaders
from postmortem.attach.boundaries.network import patch_network
from postmortem.attach.boundaries.readings import forget_readings, last_chance, patch_readings, resume_readings, settle

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from postmortem.attach.observer import Observer

_installed = False
_ATTACH = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_WRAPPERS = tuple(os.path.join(_ATTACH, name) for name in (os.path.join("boundaries", ""), "standby/journal.py"))


def install(observer: Observer) -> None:
    """Lets `observer` be told of everything from now on. What is patched stays patched."""
    global _installed
    listener.observer = observer
    if _installed:
        resume_readings()
        return
    _installed = True
    _patch_optimizers()
    _patch_scaler()
    _patch_backward()
    patch_loaders()
    patch_channels()
    patch_network()
    _patch_endings()
    patch_readings()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_forked_process, after_in_parent=_process_started)


def _process_started() -> None:
    if not listener.copying():
        listener.processes += 1


def _in_forked_process() -> None:
    """A process that the program forks, as a worker of a DataLoader: what was seen so far is of another process."""
    if not listener.copying():
        forget_readings()
        listener.forked()


# ---- optimizers


def _patch_optimizers() -> None:
    optimizers.register_optimizer_step_pre_hook(_step_begins)
    own = optimizers.register_optimizer_step_post_hook(_step_ended).id
    optimizers.register_optimizer_step_pre_hook(functools.partial(_stay_last, own))
    base = torch.optim.Optimizer
    made, zeroed, loaded = base.__init__, base.zero_grad, base.load_state_dict

    @functools.wraps(made)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        made(self, *args, **kwargs)
        listener.optimizers.add(self)
        listener.observer.ready(self)

    @functools.wraps(loaded)
    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> None:
        loaded(self, *args, **kwargs)
        listener.observer.ready(self)

    @functools.wraps(zeroed)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        if listener.backwards and not listener.stepping:
            listener.observer.dropping(self)
        zeroed(self, *args, **kwargs)

    base.__init__, base.zero_grad, base.load_state_dict = __init__, zero_grad, load_state_dict  # type: ignore[method-assign]


def _stay_last(own: int, *_: Any) -> None:
    """What is armed or disarmed at the end of a step adds and removes hooks, while torch goes through them: only the
    last one may do that."""
    hooks: Any = optimizers._global_optimizer_post_hooks
    if next(reversed(hooks)) != own:
        hooks.move_to_end(own)


def _step_begins(optimizer: Any, args: Any, kwargs: Any) -> Any:
    listener.stepping += 1
    if listener.stepping > 1:  # an optimizer that steps another one
        return None
    if listener.scaling is not None:
        listener.scaling.stepped = True
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        listener.observer.before_update(optimizer)
        return None

    @functools.wraps(closure)
    def watched(*given: Any, **named: Any) -> Any:
        depth, listener.stepping = listener.stepping, 0
        try:
            return closure(*given, **named)
        finally:
            listener.stepping = depth
            if sys.exc_info()[0] is None:
                listener.observer.before_update(optimizer)

    if "closure" in kwargs:
        return args, {**kwargs, "closure": watched}
    return (args[0], watched, *args[2:]), kwargs


def _step_ended(optimizer: Any, args: Any, kwargs: Any) -> None:
    listener.stepping = max(0, listener.stepping - 1)
    if listener.stepping == 0 and listener.scaling is None and not _makes_state(sys._getframe(1)):
        listener.ended(optimizer, skipped=False)


def _makes_state(frame: FrameType | None) -> bool:
    """Whether the step is none of the training: torch steps an optimizer with gradients of zero and a learning rate of
    zero, so that it has a state into which a sharded checkpoint can be loaded."""
    if listener.ticks or "torch.distributed.checkpoint.state_dict" not in sys.modules:
        return False
    code = sys.modules["torch.distributed.checkpoint.state_dict"].__file__
    while frame is not None and frame.f_code.co_filename != code:
        frame = frame.f_back
    return frame is not None


class _Scaling:
    """One step of a GradScaler; `stepped` says whether it let the optimizer update."""

    stepped = False


def _patch_scaler() -> None:
    kind = torch.amp.GradScaler
    stepping, scaling = kind.step, kind.scale

    @functools.wraps(stepping)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.is_enabled() or listener.scaling is not None:
            return stepping(self, optimizer, *args, **kwargs)
        listener.scaling = now = _Scaling()
        try:
            value = stepping(self, optimizer, *args, **kwargs)
        finally:
            listener.scaling, listener.stepping = None, 0
        listener.ended(optimizer, skipped=not now.stepped)
        return value

    @functools.wraps(scaling)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = scaling(self, outputs)
        if isinstance(outputs, torch.Tensor) and scaled is not outputs:
            listener.unscaled[id(scaled)] = scaled, outputs
        return scaled

    kind.step, kind.scale = step, scale  # type: ignore[method-assign]


# ---- losses


def _patch_backward() -> None:
    engine = torch.autograd.backward

    @functools.wraps(engine)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        whole = listener.nested == 0
        listener.nested += 1
        try:
            if whole:
                settle(tensors)
                for loss in (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors):
                    if isinstance(loss, torch.Tensor):
                        listener.observer.loss(loss)
                listener.backwards += 1
            engine(tensors, *args, **kwargs)
            if whole:
                listener.observer.backward_done()
        finally:
            listener.nested -= 1

    torch.autograd.backward = backward
    _patch_grad()


def _patch_grad() -> None:
    """`torch.autograd.grad` in the place of a backward pass: of parameters, once."""
    engine = torch.autograd.grad

    @functools.wraps(engine)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        again = kwargs.get("create_graph") or kwargs.get("retain_graph")
        wanted = inputs if isinstance(inputs, (list, tuple)) else ()
        of_parameters = any(isinstance(t, torch.nn.Parameter) and t.is_leaf for t in wanted)
        if listener.nested or again or args or not of_parameters:
            return engine(outputs, inputs, *args, **kwargs)
        listener.nested += 1
        try:
            losses = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
            losses = [loss for loss in losses if isinstance(loss, torch.Tensor)]
            settle(losses)
            for loss in losses:
                listener.observer.loss(loss)
            listener.backwards += 1
            return engine(outputs, inputs, **kwargs)
        finally:
            listener.nested -= 1

    torch.autograd.grad = grad


# ---- the end of the program


def _patch_endings() -> None:
    hook, of_threads = sys.excepthook, threading.excepthook
    told: list[BaseException] = []

    def tell(error: BaseException | None) -> None:
        if error is not None and not any(error is e for e in told) and not isinstance(error, KeyboardInterrupt):
            told.append(error)
            error.__traceback__ = _without_frames_of(_WRAPPERS, error.__traceback__)
            last_chance()
            listener.observer.raised(error)

    def excepthook(kind: Any, error: BaseException, trace: Any) -> None:
        tell(error)
        if isinstance(error, KeyboardInterrupt):  # it may come while we look at the step
            error.__traceback__ = _without_frames_of((_ATTACH,), error.__traceback__)
        hook(kind, error, error.__traceback__)

    def thread_excepthook(args: Any) -> None:
        tell(args.exc_value)
        of_threads(args)

    over: set[int] = set()

    def ended() -> None:
        if os.getpid() in over:
            return
        over.add(os.getpid())
        tell(getattr(sys, "last_value", None))  # of a program with an excepthook of its own
        last_chance()
        listener.observer.end()

    sys.excepthook, threading.excepthook = excepthook, thread_excepthook
    atexit.register(ended)
    _patch_processes(tell, ended)
    _patch_exit(ended)


def _patch_exit(ended: Callable[[], None]) -> None:
    """A program that trained may end without atexit, as by an excepthook of its own. Our own ends are told already."""
    leaving = os._exit

    @functools.wraps(leaving)
    def _exit(status: int) -> NoReturn:
        if listener.ticks and not sys._getframe(1).f_globals.get("__name__", "").startswith("postmortem."):
            ended()
        leaving(status)

    os._exit = _exit


def _without_frames_of(ours: tuple[str, ...], trace: TracebackType | None) -> TracebackType | None:
    """The traceback as it would be without functions in files that begin so: they wrap others."""
    frames = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(ours):
            frames.append(trace)
        trace = trace.tb_next
    for outer, inner in itertools.pairwise([*frames, None]):
        if outer is not None:
            outer.tb_next = inner
    return frames[0] if frames else None


def _patch_processes(tell: Callable[[BaseException | None], None], ended: Callable[[], None]) -> None:
    """Processes that `multiprocessing` started end without an excepthook and without atexit."""
    import subprocess
    from multiprocessing.process import BaseProcess

    running = BaseProcess.run

    @functools.wraps(running)
    def run(self: Any) -> None:
        try:
            running(self)
        except Exception as error:
            tell(error)
            raise
        except SystemExit as end:  # torch.multiprocessing writes the error to a file, and exits
            tell(end.__context__)
            ended()
            raise
        ended()

    starting = BaseProcess.start

    @functools.wraps(starting)
    def start(self: Any) -> None:
        _process_started()  # also where it is spawned
        starting(self)

    BaseProcess.run, BaseProcess.start = run, start  # type: ignore[method-assign]
    opening = subprocess.Popen.__init__

    @functools.wraps(opening)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        _process_started()  # as the server of an experiment tracker
        opening(self, *args, **kwargs)

    subprocess.Popen.__init__ = __init__  # type: ignore[method-assign]
