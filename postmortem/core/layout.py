"""The result of `postmortem layout`: gradients whose strides differ from those of their parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class StridedGradient:
    """A parameter and its gradient. Strides are in elements.

    difference: "size-1", only in dimensions of size 1: the memory is the same, DDP warns; "copy": another memory
    layout, which is copied into the parameter's in each backward pass. op, file, line, code: what gave the gradient its
    strides. beside: where the parameter itself is used, if on another line; called: of a custom Function, its call
    (file and line). phases: (file and line of the backward pass, first iteration, last iteration, how many) of each
    that made such a gradient. ranks: processes that saw it. bytes: of the gradient.
    """

    model: str
    parameter: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    expected: tuple[int, ...]
    dtype: str
    device: str
    format: str
    difference: Literal["size-1", "copy"]
    op: str
    file: str | None
    line: int | None
    code: str
    beside: tuple[str, int] | None
    called: tuple[str, int] | None
    phases: tuple[dict[str, Any], ...]
    ranks: int
    bytes: int

    @property
    def name(self) -> str:
        """Model and parameter."""
        return f"{self.model}.{self.parameter}" if self.model else self.parameter

    def as_json(self) -> dict[str, Any]:
        """As in the answer of `postmortem layout`."""
        told = {name: getattr(self, name) for name in self.__slots__}
        return {"name": self.name} | {k: list(v) if isinstance(v, tuple) else v for k, v in told.items()}


@dataclass(frozen=True, slots=True)
class LayoutTrial:
    """A change that was tried under DDP. before, after: how many warnings of DDP about strides all ranks gave.

    cured: names of the parameters whose gradients then had the right strides; `cures`: all that it could help, and DDP
    warns no more. change: the changed line as a diff. cost: what it costs. error: why it could not be tried.
    """

    fix: str
    what: str
    cures: bool = False
    cured: tuple[str, ...] = ()
    before: int | None = None
    after: int | None = None
    odd_before: int = 0
    odd_after: int | None = None
    change: str | None = None
    cost: str = ""
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        """As in the answer of `postmortem layout`."""
        told = {name: getattr(self, name) for name in self.__slots__ if name not in ("before", "after")}
        told |= {"cured": list(self.cured), "warnings": {"before": self.before, "after": self.after}}
        odd = {"before": told.pop("odd_before"), "after": told.pop("odd_after")}
        return told | {"gradients": odd}


@dataclass(frozen=True, slots=True)
class LayoutResult:
    """gradients: those with other strides. looked: gradients that were looked at, per backward pass, of the most.
    warnings: of DDP about strides, without a change; None where the program was not run under DDP. ranks: processes of
    the trials. models, inputs: as they were noted, plain data.
    """

    command: tuple[str, ...]
    gradients: tuple[StridedGradient, ...] = ()
    tried: tuple[LayoutTrial, ...] = ()
    looked: int = 0
    iterations: int = 0
    warnings: int | None = None
    ranks: int = 1
    own_ddp: bool = False
    models: tuple[dict[str, Any], ...] = ()
    inputs: tuple[dict[str, Any], ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """1: a gradient has other strides than its parameter; else 0."""
        return 1 if self.gradients else 0

    def as_json(self) -> dict[str, Any]:
        """The object that `--format json` prints."""
        return {
            "schema_version": 1,
            "command": list(self.command),
            "gradients": [each.as_json() for each in self.gradients],
            "tried": [each.as_json() for each in self.tried],
            "gradients_looked_at": self.looked,
            "iterations": self.iterations,
            "warnings": self.warnings,
            "ranks": self.ranks,
            "own_ddp": self.own_ddp,
            "models": list(self.models),
            "inputs": list(self.inputs),
            "seconds": round(self.seconds, 1),
            "notes": list(self.notes),
        }
