"""What replay takes: `TrainStep`, returned by a recipe, and `Context`, which a recipe is given. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


@dataclass(slots=True)
class TrainStep:
    """One training step as the user's program does it, to be rerun.

    One step is: ``before_step(step)``; the batch; zero_grad; forward under autocast; backward; unscale; clip;
    optimizer step; scaler update; scheduler step.

    model, optimizer: a module and its optimizer, or dicts of them (keys are the checkpoint's). One that needs a
        closure (LBFGS) gets one that runs zero_grad, forward and backward again.
    step: ``step(model, batch)`` returns the scalar loss or a dict of named losses (their sum is run backward);
        a dict of such functions by optimizer names makes sub-steps, in this order, on the same batch.
    batch: the batch of the one step to run. batches: ``batches(step) -> batch`` in the log's counting, or an
        iterable from the first step after the checkpoint on. scheduler: one or a list, stepped after every
        optimizer step. accumulate=k: a batch is a list of k micro-batches, loss / k is run backward for each.
    clip: max_norm of ``clip_grad_norm_`` over all parameters, after unscaling. autocast: None, "fp16", "bf16".
    scaler: a GradScaler is used, with `init_scale`. first_step: the log's step of the first step after the
        checkpoint. ranks=N: the training has N processes, and so has the replay (gloo, on the CPU): the recipe is
        called in each, with ``ctx.rank`` and ``ctx.world_size``. Write N as a number: it is read from the file, as
        the recipe cannot be called before. logged: the tag, or {loss name: tag}, that holds the loss. shared: keys
        of the batch that are not per sample; sample_dim: key -> dimension of the sample, if not 0;
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
    """What a recipe is given: device, the step asked for (or None), checkpoint (absolute path or None), what was
    safely loaded from it (of a file its content, of a folder a dict by file name without ending, None where
    nothing could be), the run's config, and the rank of the process, of `world_size` ones, if there are several."""

    device: Any
    step: int | None = None
    checkpoint: Path | None = None
    state: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    rank: int = 0
    world_size: int = 1
