"""The base class of detectors and helpers that several of them use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from postmortem.core.model import Finding
from postmortem.core.stats import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Event, Severity
    from postmortem.core.series import Series
    from postmortem.core.view import View


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """No options."""


def silenced() -> np.errstate:
    """No warnings of overflows: logs hold values up to 1e308, and infinity compares correctly."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore")


class BaseDetector:
    """Keeps the options and makes findings with the detector's code, name and severity."""

    code: str
    name: str
    severity: Severity
    Options: type[Any] = NoOptions
    reads_checkpoints: bool = False
    """Whether it judges `view.checkpoints`: it then runs after saved weights were inspected, the others before."""

    def __init_subclass__(cls) -> None:
        """Silences the warnings of `detect`, but of its attribute `unguarded`, for who calls many of them."""
        judge = cls.detect

        @wraps(judge)
        def detect(self: Any, view: View) -> Iterator[Finding]:
            with silenced():
                return iter(list(judge(self, view)))

        detect.unguarded = judge  # type: ignore[attr-defined]
        cls.detect = detect  # type: ignore[method-assign]

    def __init__(self, options: Any = None) -> None:
        self.options = options if options is not None else self.Options()

    def detect(self, view: View) -> Iterator[Finding]:
        """Findings in any order, without ids. Raises NotChecked where the run lacks what it needs."""
        raise NotImplementedError

    def found(
        self,
        series: Series,
        at: int,
        message: str,
        *,
        severity: Severity | None = None,
        end: int | None = None,
        step: int | None = None,
        evidence: dict[str, Any] | None = None,
    ) -> Finding:
        """A finding at point `at` of `series` (to point `end`); `step` if it is not that of the point."""
        wall = float(series.wall_time[at])
        return Finding(
            code=self.code,
            name=self.name,
            severity=severity or self.severity,
            message=message,
            tag=series.tag,
            rank=series.rank if series.rank >= 0 else None,
            step=int(series.step[at]) if step is None else step,
            end_step=None if end is None else int(series.step[end]),
            wall_time=wall if math.isfinite(wall) else None,
            evidence={k: _json(v) for k, v in (evidence or {}).items()},
        )

    def reported(self, event: Event) -> Finding:
        """A finding made from an event of the log."""
        return Finding(
            code=self.code,
            name=self.name,
            severity=self.severity,
            message=event.message.splitlines()[0] if event.message else event.kind,
            rank=event.rank,
            step=event.step,
            wall_time=event.wall_time if math.isfinite(event.wall_time) else None,
            evidence={"kind": event.kind, "file": event.file, "line": event.line},
        )


def _json(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_json(v) for v in value]
    if isinstance(value, (str, dict, bool)) or value is None:
        return value
    return plain(np.asarray(value).item())
