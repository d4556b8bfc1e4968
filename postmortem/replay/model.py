"""What replay takes (`TrainStep`, handed over by a recipe) and what it answers (`Culprit`).

Plain dataclasses: importing them does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

Cause = Literal[
    "bad-input",
    "bad-parameter",
    "forward-op",
    "backward-singularity",
    "dtype-overflow",
    "loss-scale",
    "optimizer-update",
    "divergence",
    "layout",
    "transient",
    "none",
]
Phase = Literal["data", "parameters", "forward", "backward", "optimizer", "scaler", "layout", "none"]
Established = Literal["cured", "observed", "inferred"]


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
        checkpoint. logged: the tag, or {loss name: tag}, that holds the loss. shared: keys of the batch that are
        not per sample; sample_dim: key -> dimension of the sample, if not 0; divisible=False: samples cannot
        be dropped (nodes of one graph).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a recipe is given: device, the step asked for (or None), checkpoint (absolute path or None), what was
    safely loaded from it (of a file its content, of a folder a dict by file name without ending, None where
    nothing could be), and the run's config."""

    device: Any
    step: int | None = None
    checkpoint: Path | None = None
    state: Any = None
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A repair that was tried on the offending step, and whether it left loss, gradients and parameters finite."""

    name: str
    cured: bool
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How faithful the rerun was: replayed losses against logged ones, to the digits that the log shows."""

    ok: bool
    checkpoint: str | None = None
    first_step: int | None = None
    compared: int = 0
    exact: int = 0
    max_rel_error: float | None = None
    first_mismatch: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Who made the step fail. See design: `module` is the qualified name, '' for the root or code outside any
    module, None where not established; in the backward phase `op` is the forward op whose derivative fails;
    `samples` are sorted indices in the batch, None if all or not attributable."""

    cause: Cause
    phase: Phase
    module: str | None = None
    op: str | None = None
    file: str | None = None
    line: int | None = None
    code: str | None = None
    param: str | None = None
    tensor: dict[str, Any] = field(default_factory=dict)
    samples: tuple[int, ...] | None = None
    step: int | None = None
    precision_only: bool | None = None
    fixes: tuple[Fix, ...] = ()
    fidelity: Fidelity | None = None
    how: tuple[str, ...] = ()
    established: Established = "inferred"
    suggestion: str | None = None
    """A one-line repair of `code`, as a unified diff, where one was tried and cured the step."""
    fresh_state: bool | None = None
    """Whether forgetting the optimizer's state cures the step, as a fix does; None where it was not tried or there is none."""
