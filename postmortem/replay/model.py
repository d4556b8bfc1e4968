"""The input of a replay: `TrainStep`, returned by a recipe, and `Context`, passed to it. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


@dataclass(slots=True)
class TrainStep:
    """One training step of the user's program, to be rerun.

    One step is: ``before_step(step)``; the batch; zero_grad; forward under autocast; backward; unscale; clip;
    optimizer step; scaler update; scheduler step.

    model, optimizer: a module and its optimizer, or dicts of them (with the keys of the checkpoint). An optimizer that
        needs a closure (LBFGS) gets one that runs zero_grad, forward and backward again.
    step: ``step(model, batch)`` returns the scalar loss, or a dict of named losses (backward runs on their sum). A dict
        of such functions, keyed by optimizer name, defines sub-steps that run in this order on the same batch.
    batch: the batch of the only step to run. batches: ``batches(step) -> batch``, with steps numbered as in the log, or
        an iterable that starts at the first step after the checkpoint.
    scheduler: one or a list, stepped after every optimizer step.
    accumulate=k: a batch is a list of k micro-batches; backward runs on loss / k for each.
    clip: max_norm of ``clip_grad_norm_`` over all parameters, after unscaling. autocast: None, "fp16" or "bf16".
    scaler: True to use a GradScaler, with `init_scale`.
    first_step: the number, as logged, of the first step after the checkpoint.
    logged: the tag that holds the loss, or a dict {loss name: tag}.
    ranks=N: the training has N processes, and so has the replay (gloo, on the CPU). The recipe is called in each, with
        ``ctx.rank`` and ``ctx.world_size``. Write N as a literal number: it is read from the file before the recipe is
        called.
    shared: keys of the batch that are not per sample. sample_dim: key -> dimension of the samples, if not 0.
    divisible=False: samples cannot be dropped (nodes of one graph).
    """

    model: Any
    optimizer: Any
    step: Any
    batch: Any = None
    batches: Callable[[int], Any] | Iterable[Any] | None = field(default=None, kw_only=True)
    scheduler: Any = field(default=None, kw_only=True)
    accumulate: int = field(default=1, kw_only=True)
    clip: float | None = field(default=None, kw_only=True)
    autocast: Literal["fp16", "bf16"] | None = field(default=None, kw_only=True)
    scaler: Any = field(default=False, kw_only=True)
    init_scale: float | None = field(default=None, kw_only=True)
    first_step: int | None = field(default=None, kw_only=True)
    before_step: Callable[[int], Any] | None = field(default=None, kw_only=True)
    logged: str | Mapping[str, str] | None = field(default=None, kw_only=True)
    shared: tuple[str, ...] = field(default=(), kw_only=True)
    sample_dim: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    divisible: bool = field(default=True, kw_only=True)
    ranks: int = field(default=1, kw_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a recipe receives.

    device; step: the requested step or None; checkpoint: absolute path or None; state: what could be loaded safely from
    the checkpoint (of a file its content; of a folder a dict, keyed by file name without suffix; None if nothing
    could); config: the configuration of the run; rank and world_size: of this process, if there are several.
    """

    device: Any
    step: int | None = None
    checkpoint: Path | None = None
    state: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    rank: int = 0
    world_size: int = 1
