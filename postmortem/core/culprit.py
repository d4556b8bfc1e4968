"""The result of a replay: the culprit, the fixes that were tried, the fidelity. Plain data, no torch."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from postmortem.core.display import Displayed
from postmortem.core.model import SCHEMA_VERSION, json_value
from postmortem.core.printable import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postmortem.core.model import Ended, Event

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
    "outlier-sample",
    "exploding-layer",
    "dead-layer",
    "learning-rate-zero",
    "none",
]
Phase = Literal["data", "parameters", "forward", "backward", "optimizer", "scaler", "layout", "none"]
Established = Literal["cured", "observed", "inferred"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A fix that was tried on the failing step.

    cured: with the fix, loss, gradients and parameters are finite; for a loss that rises but stays finite: with the fix
    it stays in the range of the preceding steps. loss: the loss of the step with the fix, None if not known. before:
    the last finite loss of the preceding steps, None if it or `loss` is not known. far_from: the usual loss of the
    preceding steps if `loss` is more than ten times as large (the step is finite, but the training would not continue
    as before); otherwise, or if not known, None. ran: False if the step could not be run with the fix, so that nothing
    is known of it. note: what speaks against the fix although it cures the step.
    """

    name: str
    cured: bool
    how: str = ""
    loss: float | None = None
    far_from: float | None = None
    before: float | None = None
    ran: bool = True
    note: str = ""

    @property
    def good(self) -> bool:
        """Whether the step is finite with the fix and its loss, if known, is not far from the usual value."""
        return self.cured and self.far_from is None

    @property
    def loss_after(self) -> str:
        """The loss with the fix in words, and that of the preceding steps; empty if not known."""
        if not self.cured or self.loss is None:
            return ""
        words = f"the loss is then {number(self.loss)}"
        if self.far_from is not None:
            return f"{words}, far from its course (about {number(self.far_from)} before)"
        return words if self.before is None else f"{words}, after {number(self.before)} in the step before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How closely the replayed losses match the logged ones, to the digits that were logged.

    reasons: possible reasons if the replay does not match the log, the most likely first.
    """

    ok: bool
    checkpoint: str | None = None
    first_step: int | None = None
    compared: int = 0
    exact: int = 0
    max_rel_error: float | None = None
    first_mismatch: int | None = None
    note: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Culprit(Displayed):
    """What made the step fail.

    module: qualified name; "" for the root module or code outside any module, None if not established.
    op: the operator; in the backward phase the forward operator whose derivative is non-finite.
    samples: sorted indices in the batch; None if all samples, or no particular ones, cause the failure.
    """

    cause: Cause | str
    """Of a training that does not learn, the name of a silent fault as well."""
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
    """The step does not fail in double precision; None if that was not tried."""
    fixes: tuple[Fix, ...] = ()
    fidelity: Fidelity | None = None
    how: tuple[str, ...] = ()
    established: Established = "inferred"
    suggestion: str | None = None
    """A change of `code` that cures the step, as a unified diff."""
    fresh_state: bool | None = None
    """Whether an empty optimizer state cures the step; None if there is no state or it was not tried."""

    def __repr__(self) -> str:
        """One line; `print` shows the full text, and so does a notebook."""
        step = "" if self.step is None else f" at step {self.step}"
        op = f", operator {self.op}" if self.op else ""
        line = f", {os.path.basename(self.file)}:{self.line}" if self.file and self.line else ""
        return f"<Culprit {self.cause}{step}: phase {self.phase}{op}{line}>"

    def as_json(self) -> dict[str, Any]:
        """All fields as plain JSON types; NaN and the infinities are the strings "nan", "inf" and "-inf"."""
        return dict(json_value(asdict(self)))

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Culprit:
        """The culprit from the output of `as_json`, without its fidelity; non-finite numbers stay strings."""
        made = {k: v for k, v in plain.items() if k in {f.name for f in fields(cls)} - {"fidelity"}}
        made["fixes"] = tuple(Fix(**fix) for fix in made.get("fixes") or ())
        made["how"] = tuple(made.get("how") or ())
        made["samples"] = tuple(made["samples"]) if made.get("samples") is not None else None
        return cls(**made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What `postmortem run` noted of a run that it watched, and that has ended.

    ended: how. exit_code: None where a fault explains it. event: the non-finite value that was seen. culprit: as it was
    saved, None if none was named. next: the actions that were saved with it.
    """

    ended: Ended
    exit_code: int | None = None
    event: Event | None = None
    culprit: Culprit | None = None
    next: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """The exception that ended the user's program, with the innermost line of the user's own files."""

    type: str
    message: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReplayResult(Displayed):
    """The result of a replay: what was rerun, from which checkpoint, with which fidelity, and the culprit.

    recipe, checkpoint: empty if the user's own `command` was run; checkpoint also if the replay started from the
    recipe's initial state. fitted, unfitted: descriptions of the parts of the checkpoint that were loaded, and of those
    that were not. judged: False if the replay does not match the log, so that nothing can be concluded. next: suggested
    actions, in the order in which to try them. tick: the failing optimizer step, counted from 0 at the start of
    the command. rank: the failing rank. micro_batch: the failing micro-batch, counted from 0; None if a step has one
    batch, or if not known. ranks: for each rank with its own log, how many of its losses match that log. raised: the
    exception that ended the command, if no non-finite value explains it. protection: how the user's files were
    protected from the command. captures: path, tick, step and bytes of each capture of a watched program, or why there
    is none.
    """

    target: str
    recipe: str
    checkpoint: str
    step: int | None
    fidelity: Fidelity
    culprit: Culprit
    fitted: tuple[str, ...] = ()
    unfitted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    judged: bool = True
    seconds: float = 0.0
    command: tuple[str, ...] = ()
    tick: int | None = None
    rank: int | None = None
    micro_batch: int | None = None
    ranks: tuple[dict[str, Any], ...] = ()
    raised: Raised | None = None
    protection: str = ""
    captures: tuple[dict[str, Any], ...] = ()

    def __repr__(self) -> str:
        """One line; `print` shows the full text, and so does a notebook."""
        return f"<ReplayResult of {self.target!r}: {self.culprit!r}>"

    def as_json(self) -> dict[str, Any]:
        """The documented JSON object, of plain types: schema_version, target, step, fidelity, culprit, next.

        If a command was run, also its tick, rank and exception.
        """
        of_ranks = {"rank": self.rank, "micro_batch": self.micro_batch, "ranks": list(self.ranks)}
        of_command = {
            "command": list(self.command),
            "tick": self.tick,
            **of_ranks,
            "captures": json_value(self.captures),
            "raised": None if self.raised is None else json_value(asdict(self.raised)),
        }
        return {
            **(of_command if self.command else of_ranks if self.rank is not None else {}),
            "schema_version": SCHEMA_VERSION,
            "target": self.target,
            "step": self.step,
            "fidelity": json_value(asdict(self.fidelity)),
            "culprit": self.culprit.as_json(),
            "next": list(self.next),
        }
