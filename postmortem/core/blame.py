"""The result of `check`: faults that raise no error and produce no NaN, and a checklist."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "not ok", "not checked"]
ENOUGH = 4
"""Optimizer steps; in fewer nothing passes for ok, as most faults show only in several."""


@dataclass(frozen=True, slots=True)
class Blame:
    """One silent fault. `file` and `line` are where the user's code makes it; `evidence` is one sentence with what was
    measured, `measured` the same as numbers. `confirm`: how to see it oneself. `tried`: what was changed to see whether
    it cures the fault."""

    name: str
    family: str
    file: str | None
    line: int | None
    evidence: str
    measured: dict[str, Any] = field(default_factory=dict)
    confirm: str = ""
    tried: tuple[dict[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As in the answer of `postmortem check`."""
        return {name: getattr(self, name) for name in self.__slots__} | {"tried": list(self.tried)}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the checklist. `told`: the short answer has it as well, although nothing is wrong. `absent`: it was
    not checked because the program has nothing of the kind."""

    name: str
    status: Status
    detail: str = ""
    told: bool = False
    absent: bool = False

    def as_json(self) -> dict[str, Any]:
        """As in the answer of `postmortem check`."""
        return {"name": self.name, "status": self.status, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class NonfiniteLoss:
    """A loss that was not finite, as first seen: not every step is looked at. `step`: optimizer steps made before it;
    `value`: NaN or an infinity; `passes` of `of` backward passes that were looked at began at such a loss; `file` and
    `line`: of the first of them. `nan`: how many of `passes` are NaN; the others are infinite."""

    step: int
    value: float
    passes: int
    of: int
    file: str | None = None
    line: int | None = None
    nan: int = 0

    def as_json(self) -> dict[str, Any]:
        """As in the answer of `postmortem check`."""
        return {name: getattr(self, name) for name in self.__slots__} | {"value": str(self.value)}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The answer of `postmortem check` and `postmortem run --why`. `steps`: optimizer steps that were made under watch.
    `nonfinite`: the first loss that was not finite. `notes`: what hindered the look. `failed`: how the program ended by
    itself with an error; "" where it did not."""

    command: tuple[str, ...]
    faults: tuple[Blame, ...] = ()
    checks: tuple[Check, ...] = ()
    steps: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    nonfinite: NonfiniteLoss | None = None
    failed: str = ""

    @property
    def too_few(self) -> bool:
        """Steps were seen, but too few to call anything ok."""
        return 0 < self.steps < ENOUGH

    @property
    def exit_code(self) -> int:
        """1: faults, a loss that was not finite, or a failed program; 3: no steps, or too few to judge; else 0."""
        if self.faults or self.nonfinite or self.failed:
            return 1
        return 0 if self.steps >= ENOUGH else 3

    def as_json(self) -> dict[str, Any]:
        """The object that `--format json` prints."""
        return {
            "schema_version": 1,
            "command": list(self.command),
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "nonfinite": self.nonfinite.as_json() if self.nonfinite is not None else None,
            "failed": self.failed or None,
            "faults": [fault.as_json() for fault in self.faults],
            "checks": [check.as_json() for check in self.checks],
            "checked": [check.name for check in self.checks if check.status != "not checked"],
            "not_checked": [{"name": c.name, "why": c.detail} for c in self.checks if c.status == "not checked"],
            "notes": list(self.notes),
        }
