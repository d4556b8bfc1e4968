"""What a replay looks for where every value of the log is finite: the finding that it aims at."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postmortem.core.model import Finding

Kind = Literal["spike", "growth", "still"]

KINDS: dict[str, Kind] = {
    "loss-spike": "spike",
    "gradient-spike": "spike",
    "divergence": "growth",
    "gradient-explosion": "growth",
    "loss-plateau": "still",
    "constant-metric": "still",
    "chance-level-loss": "still",
    "gradient-vanishing": "still",
    "lr-zero": "still",
}
"""Findings of finite values -> what happened: a jump, a growth over several steps, or no learning."""
_POINTS = 50  # logged losses from which on one that did not fall is worth a look
_ROLES = ("loss", "grad_norm", "lr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """A finding of finite values. name: of the finding. step: as the finding has it. interval: steps between two lines
    of the log. gradient: it is about the gradient norm, not about the loss."""

    name: str
    kind: Kind
    step: int
    interval: int = 1
    gradient: bool = False


def sought_of(
    findings: Sequence[Finding], roles: Mapping[str, str | None], interval: int, asked: int | None
) -> Sought | None:
    """The finding to look for: of `asked` the one at that step; else the first jump or growth, else the first of a
    training that does not learn. A consequence of another finding is left out where there is a cause."""
    known = [
        f
        for f in findings
        if f.name in KINDS and f.step is not None and f.severity != "info" and roles.get(f.tag or "") in _ROLES
    ]
    known = [f for f in known if f.step == asked] if asked is not None else known
    roots = [f for f in known if f.because_of is None] or known
    if not roots:
        return None
    first = min(roots, key=lambda f: (KINDS[f.name] == "still", f.step or 0, roles.get(f.tag or "") != "loss"))
    assert first.step is not None
    gradient = roles.get(first.tag or "") == "grad_norm"
    return Sought(name=first.name, kind=KINDS[first.name], step=first.step, interval=interval, gradient=gradient)


def explains(findings: Sequence[Finding], bad: Sequence[Finding]) -> bool:
    """True if every non-finite finding in `bad` is a consequence of a jump or a growth of finite values."""
    by_id = {f.id: f for f in findings}

    def root(f: Finding) -> Finding:
        for _ in findings:
            f = by_id.get(f.because_of or "", f)
        return f

    return bool(bad) and all(KINDS.get(root(f).name, "still") != "still" for f in bad)


def without_learning(losses: Sequence[float], steps: Sequence[int]) -> Sought | None:
    """A loss that is logged over many steps and never falls, although no finding says so."""
    n = len(losses)
    if n < _POINTS:
        return None
    first, last = statistics.median(losses[: n // 10]), statistics.median(losses[-n // 5 :])
    spread = statistics.median(abs(x - first) for x in losses)
    if not last > first - max(0.05 * abs(first), 0.5 * spread):
        return None
    return Sought(name="no-learning", kind="still", step=int(steps[0]))
