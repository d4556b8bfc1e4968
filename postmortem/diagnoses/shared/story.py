"""Helpers of all causes: the order of faults, their consequences, and `Story`, which builds the diagnosis."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Self

from postmortem.core.launched import own_command
from postmortem.core.model import Diagnosis
from postmortem.core.patterns import later
from postmortem.diagnoses.shared.last_good import last_good_checkpoint, last_good_step, logged_between, watched
from postmortem.diagnoses.shared.rerun import Rerun, rerun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from postmortem.core.model import Checkpoint, Finding, Strength
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
    "score-collapse",
    "blank-values",
    "metric-explosion",
)
ABOUT_NUMBERS = later(
    r"\bnan\b|\binf(inite|inity)?\b|non-?finite|overflow|cholesky|singular|svd|probability tensor|device-side assert",
    re.I,
)
"""Messages of crashes that non-finite values lead to."""


def named(findings: Iterable[Finding], *names: str) -> list[Finding]:
    """Findings of these names at severity warning or error, earliest step first, ties in the order of the names."""
    if not findings:
        return []
    chosen = [f for f in findings if f.name in names and f.severity != "info"]
    return sorted(chosen, key=lambda f: (f.step is None, f.step or 0, names.index(f.name)))


def faults(view: View, findings: Iterable[Finding]) -> list[Finding]:
    """Faults in the numbers at severity error, earliest first: the first one is the root.

    At the same step, a non-finite loss explains its gradient; a gradient alone is a fault of its own; and a non-finite
    learning rate comes first. An evaluation
    between the last finite and the first non-finite row of the training loss counts as of the later row.
    """
    if not findings:
        return []
    order = (
        "loss-scale-collapse",
        "nonfinite-gradient",
        "masked-nonfinite",
        "nan-onset",
        "inf-onset",
        "gradient-explosion",
        *BLOW_UP,
    )
    grave = [f for f in named(findings, *order) if f.severity == "error"]
    training = [f for f in grave if f.name in NONFINITE and role(view, f) == "loss"]

    def order_of(f: Finding) -> tuple[bool, int, int, int]:
        evaluated = f.name in NONFINITE and (role(view, f) or "").startswith("val_")
        later = [t.step or 0 for t in training if evaluated and _seen_between(f, t)]
        place = {"lr": 0, "loss": 1}.get(role(view, f) or "", 2) if f.name in ("nan-onset", "inf-onset") else 1
        if f.tag is None and "line" in f.evidence:  # reported in words: what the program says first comes first
            return f.step is None, max(later, default=f.step or 0), 1, f.evidence["line"] or 0
        return f.step is None, max(later, default=f.step or 0), place, 0

    return sorted(grave, key=order_of)


def _seen_between(f: Finding, root: Finding) -> bool:
    """True if `f`, of a metric logged more rarely, lies between the last finite row of `root` and its onset."""
    known, own = root.evidence.get("last_finite_step"), f.evidence.get("last_finite_step", -1)
    if known is None or f.step is None or root.step is None:
        return False
    return bool(own < known < f.step <= root.step and root.step - known <= f.step - own)


def consequences(findings: Iterable[Finding], root: Finding) -> list[Finding]:
    """Consequences of a fault in the numbers: other faults at or after its step, and crashes over such numbers."""
    found = []
    for f in findings:
        if f is root:
            continue
        after = root.step is None or f.step is None or f.step >= root.step
        after = after or (f.name in NONFINITE and _seen_between(f, root))
        about = f.name == "crash" and bool(ABOUT_NUMBERS.search(f.message))
        if after and (f.name in _FOLLOWS or about):
            found.append(f)
    return sorted(found, key=lambda f: (f.step is None, f.step or 0))


def role(view: View, finding: Finding) -> str | None:
    """The role of the finding's tag."""
    return view.run.roles.get(finding.tag) if finding.tag is not None else None


def has_errors(findings: Iterable[Finding]) -> bool:
    """True if any finding is an error."""
    return any(f.severity == "error" for f in findings)


def _words(view: View, root: Finding) -> Iterator[str]:
    """What the program itself reports about a non-finite value: the parameters that it names, and the line."""
    if root.name not in NONFINITE:
        return
    for event in view.events:
        names = event.fields.get("parameters") or [event.fields.get("parameter")]
        if event.kind == "nan-report" and names[0] is not None:
            listed = ", ".join(map(str, names[:3])) + (" and others" if len(names) > 3 else "")
            yield f"the program names {listed}: {event.message.strip()!r} (line {event.line})"


_TWO_STOPS = later(r"(?<!\.)\.\.(?=\s|$)")


def sentence(text: str) -> str:
    """The text with its first letter capitalised."""
    return text[:1].upper() + text[1:]


class Story:
    """Builds the `Diagnosis` of one cause around its root finding.

    Every method but `diagnosis` returns the story itself. Texts that are None are left out, so that a condition can
    be written inline::

        return (
            Story(view, root, consequences(findings, root))
            .because(f"the loss was stable up to step {root.step}")
            .against("no learning rate is logged" if rate is None else None)
            .disproved_by("a replay of the step stays finite")
            .advise("lower the learning rate")
            .replay()
            .diagnosis("diverged", f"The training diverged: {root.message}.", "likely")
        )

    The last good step is the last logged one before the root's step with a stable loss and gradient norm, unless
    `last_good` or `after_the_log` sets it otherwise; the last good checkpoint is the newest at or before it.
    """

    def __init__(self, view: View, root: Finding, others: Iterable[Finding] = ()) -> None:
        """`root`: the finding that came first. `others`: its consequences, shown below it."""
        self._view = view
        self._root = root
        self._others = tuple(others)
        self._for: list[str] = []
        self._against: list[str] = []
        self._disprove: list[str] = []
        self._advice: list[str] = []
        self._good: int | None = None
        self._onset = root.step
        self._in_the_log = True
        self._ever_good = True
        self._sudden = root.name in _SEEN_NONFINITE
        self._rerun: int | None = None
        self._replayed = False

    def because(self, *evidence: str | None) -> Self:
        """Adds evidence for the cause, strongest first."""
        self._for += _given(evidence)
        return self

    def against(self, *evidence: str | None) -> Self:
        """Adds evidence against the cause."""
        self._against += _given(evidence)
        return self

    def disproved_by(self, *observations: str | None) -> Self:
        """Adds observations that would show the cause to be wrong."""
        self._disprove += _given(observations)
        return self

    def advise(self, *actions: str | None) -> Self:
        """Adds what to do next, best first. Commands in backticks are shown so that they can be copied."""
        self._advice += _given(actions)
        return self

    def last_good(self, *, step: int | None = None, before: int | None = None) -> Self:
        """Sets the last good step, or the step that it is searched `before`; None leaves it unchanged."""
        if step is not None:
            self._good = step
        if before is not None:
            self._onset, self._sudden = before, False
        return self

    def after_the_log(self) -> Self:
        """The fault came after the last logged row: all finite checkpoints precede it; a replay finds the step."""
        self._in_the_log = False
        return self

    def never_good(self) -> Self:
        """The fault was there from the first row of its metric on: no step before it is known to be good."""
        self._ever_good = False
        return self

    def replay(self, *, step: int | None = None) -> Self:
        """Puts the command that reruns `step` (default: the root's) in front of the advice.

        Without a checkpoint to start from, the last advice is to train again, with the command that watches it.
        """
        self._replayed, self._rerun = True, step
        return self

    def diagnosis(self, name: str, summary: str, strength: Strength = "possible") -> Diagnosis:
        """The finished diagnosis. `name`: the id of the cause, `summary`: one or two sentences.

        `strength`: "certain" only where the log proves the cause, "likely" for the best explanation of what is logged.
        """
        good = self._last_good_step()
        checkpoint = last_good_checkpoint(self._view, good, self._finite_until(good))
        return Diagnosis(
            name=name,
            strength=strength,
            summary=_TWO_STOPS.sub(".", summary),  # a quoted message may end with one of its own
            findings=tuple(dict.fromkeys([self._root.id, *(f.id for f in self._others)])),
            evidence_for=(*self._for, *_words(self._view, self._root)),
            evidence_against=tuple(self._against),
            disprove=tuple(self._disprove),
            next=tuple(map(self._of_the_job, self._actions(good, checkpoint))),
            last_good_step=good,
            last_good_checkpoint=checkpoint.path if checkpoint is not None else None,
        )

    def _of_the_job(self, action: str) -> str:
        """With the id of the run's own job in a command of Slurm, if it is known."""
        known = (reading.facts.get("job_id") for reading in self._view.run.readings)
        job = next(filter(None, known), None)
        return action.replace(" -j JOB ", f" -j {job} ") if job else action

    def _last_good_step(self) -> int | None:
        if not self._ever_good:
            return None
        if self._good is not None:
            return self._good
        if not watched(self._view):  # only the faulty metric itself is logged
            return self._root.evidence.get("last_finite_step")
        return last_good_step(self._view, self._onset if self._in_the_log else None)

    def _finite_until(self, good: int | None) -> int | None:
        """The step before which a checkpoint known to be finite is good as well, although it was saved after `good`."""
        if not self._in_the_log:
            return sys.maxsize
        onset = self._root.step
        return onset if self._sudden and onset is not None and not logged_between(self._view, good, onset) else None

    def _actions(self, good: int | None, checkpoint: Checkpoint | None) -> Iterator[str]:
        step = self._root.step if self._rerun is None else self._rerun
        again = None
        if self._replayed and step is not None and self._root.step is not None:
            again = self._again(step, checkpoint)
        if again is not None and again.start == "checkpoint":
            yield again.action
        yield from self._advice
        if again is not None and again.start != "checkpoint":
            yield self._from_the_beginning(again, good)
        if again is None and checkpoint is not None:
            yield f"resume from {checkpoint.path} (step {checkpoint.step}, the newest before the fault)"

    def _again(self, step: int, checkpoint: Checkpoint | None) -> Rerun:
        """The command that shows the fault at `step` again."""
        if (captured := self._captured(step)) is not None:
            return Rerun(captured)
        unknown = any(c.step is None and c.finite is None for c in self._view.checkpoints)  # a replay looks into them
        path = checkpoint.path if checkpoint is not None else None
        named = step if self._in_the_log and not self._at_an_epoch() else None
        return rerun(self._view.run, named, path, startable=checkpoint is not None or unknown)

    def _at_an_epoch(self) -> bool:
        """Whether the log places the root finding by an epoch: no step is known to go to."""
        return any(s.epoch is not None for s in self._view.series if s.tag == self._root.tag)

    def _from_the_beginning(self, again: Rerun, good: int | None) -> str:
        weights = f"from step {good} or earlier" if good is not None else "from before the fault"
        if again.start == "beginning":
            trained = f"`{again.command}` trains again from the start"
            return f"{trained}, and {self._shows()}; a checkpoint {weights} saves that"
        if self._grown():  # a watched training stops at non-finite values only
            replayed = rerun(self._view.run, None, None, startable=True)
            note = f" ({replayed.note})" if replayed.note else ""
            return f"save checkpoints: with weights {weights}, `{replayed.command}` {self._shows()}{note}"
        note = f" ({again.note})" if again.note else ""
        why = f"there is no checkpoint {weights} to replay from, so"
        return f"{why} `{again.command}` trains again under watch, and {self._shows()}{note}"

    def _captured(self, step: int) -> str | None:
        """The command that repeats the step at fault from a capture of it, which needs no checkpoint."""
        first, last = self._root.evidence.get("between") or (step, step)
        for c in self._view.run.captures:
            inside = first <= c.step <= last if self._in_the_log else step <= c.step
            if inside and (c.fault or c.step == last):
                return own_command(c.path, self._view.run.launched or c.launched or self._view.run.script, None)
        return None

    def _grown(self) -> bool:
        return self._root.name in (*BLOW_UP, "gradient-spike")

    def _shows(self) -> str:
        """What a replay can show of the root, and the steps in which its onset lies if the log does not name one."""
        shows = "can show which change cures it" if self._grown() else "can name the operation and the samples"
        between = self._root.evidence.get("between")
        return f"{shows} (the onset is in steps {between[0]} to {between[1]})" if between else shows


def _given(texts: Iterable[str | None]) -> list[str]:
    return [text for text in texts if text is not None]
