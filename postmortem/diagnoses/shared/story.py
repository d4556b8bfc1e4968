"""What the causes share: faults in order, what was good before them, the learning rate then, and the command that goes on."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING

from postmortem.core.model import Diagnosis
from postmortem.diagnoses.shared.last_good import _logged_between, last_good_checkpoint, last_good_step, watched

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postmortem.core.model import Checkpoint, Finding
    from postmortem.core.view import View

NONFINITE = ("nan-onset", "inf-onset", "nonfinite-gradient", "masked-nonfinite")
_SEEN_NONFINITE = ("nan-onset", "inf-onset", "nonfinite-gradient")
BLOW_UP = ("divergence", "gradient-explosion", "loss-spike")
_FOLLOWS = (
    *NONFINITE,
    *BLOW_UP,
    "gradient-spike",
    "gradient-vanishing",
    "loss-plateau",
    "constant-metric",
    "chance-level-loss",
    "loss-scale-collapse",
)
ABOUT_NUMBERS = re.compile(r"\bnan\b|\binf(inite|inity)?\b|non-?finite|overflow|cholesky|singular|svd|probability tensor|device-side assert", re.I)


def named(findings: Iterable[Finding], *names: str) -> list[Finding]:
    """Findings of these names above info, earliest step first, ties in the order of the names."""
    chosen = [f for f in findings if f.name in names and f.severity != "info"]
    return sorted(chosen, key=lambda f: (f.step is None, f.step or 0, names.index(f.name)))


def faults(view: View, findings: Iterable[Finding]) -> list[Finding]:
    """What went wrong with the numbers, at severity error, earliest first: the head is the root of the trouble.

    At the same step a loss that is not finite explains its gradient; a gradient alone stands for itself. An evaluation
    between two rows of the training loss, the one finite and the other not, only met what had happened.
    """
    order = ("loss-scale-collapse", "nonfinite-gradient", "masked-nonfinite", "nan-onset", "inf-onset", "gradient-explosion", *BLOW_UP)
    grave = [f for f in named(findings, *order) if f.severity == "error"]
    training = [f for f in grave if f.name in NONFINITE and role(view, f) == "loss"]

    def when(f: Finding) -> tuple[bool, int, bool]:
        met = [t.step or 0 for t in training if f.name in NONFINITE and (role(view, f) or "").startswith("val_") and _met(f, t)]
        return f.step is None, max(met, default=f.step or 0), f.name in ("nan-onset", "inf-onset") and role(view, f) != "loss"

    return sorted(grave, key=when)


def _met(f: Finding, root: Finding) -> bool:
    """Whether the quantity of `f`, which is logged more rarely, saw the fault of `root` first: between its last finite row and its onset."""
    known, own = root.evidence.get("last_finite_step"), f.evidence.get("last_finite_step", -1)
    if known is None or f.step is None or root.step is None:
        return False
    return bool(own < known < f.step <= root.step and root.step - known <= f.step - own)


def consequences(findings: Iterable[Finding], root: Finding) -> list[Finding]:
    """What a fault in the numbers leads to: other faults at or after its step, and crashes that speak of such numbers."""
    found = []
    for f in findings:
        if f is root:
            continue
        after = root.step is None or f.step is None or f.step >= root.step or (f.name in NONFINITE and _met(f, root))
        about = f.name == "crash" and bool(ABOUT_NUMBERS.search(f.message))
        if after and (f.name in _FOLLOWS or about):
            found.append(f)
    return sorted(found, key=lambda f: (f.step is None, f.step or 0))


def role(view: View, finding: Finding) -> str | None:
    """The role of the finding's tag."""
    return view.run.roles.get(finding.tag) if finding.tag is not None else None


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(f.severity == "error" for f in findings)


def sentence(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def replay_command(view: View, step: int | None, checkpoint: Checkpoint | None) -> str:
    """The exact command that reruns `step`; names the checkpoint where weights are at hand."""
    command = f"postmortem replay {shlex.quote(str(view.run.path))}"
    if step is not None:
        command += f" --step {step}"
    if checkpoint is not None:
        command += f" --checkpoint {shlex.quote(checkpoint.path)}"
    return command


def tell(
    view: View,
    name: str,
    root: Finding,
    others: Iterable[Finding] = (),
    *,
    summary: str,
    evidence_for: Iterable[str] = (),
    against: Iterable[str] = (),
    disprove: Iterable[str] = (),
    advice: Iterable[str] = (),
    replay: bool = True,
    good_before: int | None = None,
    good: int | None = None,
    unlogged: bool = False,
    rerun: int | None = None,
) -> Diagnosis:
    """A story with its last good step and checkpoint, from before `good_before` (default: the root's step) unless `good`
    says it.

    `replay` puts the command that reruns the root's step (or the step `rerun`) in front of the advice. `unlogged`: the fault came after the
    last row of the log, so that every finite checkpoint is from before it and the replay has to find the step.
    """
    if good is None:
        good = last_good_step(view, None if unlogged else root.step if good_before is None else good_before)
        if not watched(view):  # what went wrong is all that tells of the training
            good = root.evidence.get("last_finite_step")
    sudden = root.name in _SEEN_NONFINITE and root.step is not None and good_before is None and not _logged_between(view, good, root.step)
    checkpoint = last_good_checkpoint(view, good, sys.maxsize if unlogged else root.step if sudden else None)
    steps = list(advice)
    if replay and root.step is not None:
        step = None if unlogged else root.step if rerun is None else rerun
        if checkpoint is not None or any(c.step is None and c.finite is None for c in view.checkpoints):
            steps.insert(0, replay_command(view, step, checkpoint))  # it asks those that were not looked into for their steps
        else:
            where = f"from step {good} or before" if good is not None else "from before it"
            steps.append(f"save checkpoints: with weights {where}, `{replay_command(view, step, None)}` names the operation and the samples")
    elif checkpoint is not None:
        steps.append(f"resume from {checkpoint.path} (step {checkpoint.step}, the newest before the fault)")
    return Diagnosis(
        name=name,
        summary=summary,
        findings=tuple(dict.fromkeys([root.id, *(f.id for f in others)])),
        evidence_for=tuple(evidence_for),
        evidence_against=tuple(against),
        disprove=tuple(disprove),
        next=tuple(steps),
        last_good_step=good,
        last_good_checkpoint=checkpoint.path if checkpoint is not None else None,
    )
