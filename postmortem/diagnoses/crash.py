from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from postmortem.core.patterns import later
from postmortem.diagnoses import diagnosis
from postmortem.diagnoses.shared.story import ABOUT_NUMBERS, Story, named, sentence
from postmortem.signatures import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postmortem.core.model import Diagnosis, Event, Finding, Strength
    from postmortem.core.view import View
    from postmortem.signatures import Signature

_LONG = 200  # characters of a message
_SEE = later(r"See (?P<other>[\w-]+)(?:[:;] (?P<rest>.+)|\.?$)")


@diagnosis
class Crash:
    """The program failed with a message; the metrics show nothing that led to it.

    Certain if the message itself proves its meaning (CUDA out of memory, a time limit, the text of an assertion),
    likely if it usually means this (an input/output error); the page of the signature says which. A program that
    stopped responding and a timeout, which is a symptom of another rank's failure, are likely causes.
    """

    name = "crash"
    priority = 65

    @staticmethod
    def diagnose(view: View, findings: tuple[Finding, ...]) -> Diagnosis | None:
        crashes = [f for f in findings if f.name in ("crash", "hang") and f.severity == "error"]
        if not crashes:
            return None
        root = next((f for f in crashes if f.name == "crash"), crashes[0])
        known = CATALOGUE.get(str(root.evidence.get("kind")))
        count = int(root.evidence.get("count", 1))
        ranks = root.evidence.get("ranks") or []
        frame, unreadable = root.evidence.get("frame"), root.evidence.get("unreadable")
        summary = f"{_what(view, root, known)}: {_first_sentence(root.message).rstrip('.')}."
        story = (
            Story(view, root, [*(f for f in crashes if f is not root), *named(findings, "silent-death")])
            .after_the_log()
            .because(f"raised at {_place(frame)}" if isinstance(frame, dict) else None)
            .because(
                f"reported {count} times, by ranks {', '.join(map(str, ranks))}"
                if count > 1 and len(ranks) > 1
                else None
            )
            .advise(f"check {unreadable}: repair it or leave it out" if unreadable else None)
            .advise(*(root.evidence.get("advice") or (_fixes(known, unreadable, frame) if known is not None else ())))
            .advise(to_look_for(known) if known and known.evidence else None)
            .advise(f"postmortem explain {root.evidence.get('kind', root.code)}")
        )
        if ABOUT_NUMBERS.search(root.message):
            story.replay()
        symptom = root.name != "crash" or (known is not None and "timeout" in known.id)
        if known is None:
            return story.diagnosis(root.name, summary, "likely" if symptom else "certain")
        strength: Strength = "likely" if symptom else known.strength
        return story.diagnosis(f"crash: {known.id}", f"{summary} {known.claim}".rstrip(), strength)


def to_look_for(known: Signature) -> str:
    """What else would show the cause, as advice."""
    return f"to look for, not checked here: {known.evidence}"


def _first_sentence(message: str) -> str:
    """Of a long message its first sentence: the event has all of it."""
    end = message.find(". ")
    return message[:end] if len(message) > _LONG and end > 0 else message


def _what(view: View, root: Finding, known: Signature | None) -> str:
    """ "The program failed after step 28, the last one logged": what the log shows to have happened, and where."""
    ended = "The program failed"
    if root.name == "hang":
        ended = "The program likely stopped responding"
    elif known is not None and known.ended in ("killed", "time-limit", "preempted", "interrupted"):
        ended = "The program was ended from outside"
    if root.step is None:
        return ended
    if root.step == view.last_step:  # it may be of this step or the next one
        return f"{ended} after step {root.step}, the last one logged"
    return f"{ended} at step {root.step}"


class Reason(NamedTuple):
    """Why it failed: the evidence for it, and what to do, best first."""

    evidence: str
    advice: tuple[str, ...]


def crash_of(view: View, findings: tuple[Finding, ...], *kinds: str) -> tuple[Diagnosis, Event] | None:
    """The diagnosis of the crash that ended the run, and its event, if it is of one of these kinds."""
    story = Crash.diagnose(view, findings)
    if story is None or story.name not in [f"crash: {kind}" for kind in kinds]:
        return None
    evidence = next(f for f in findings if f.id == story.findings[0]).evidence
    at = tuple(evidence[key] for key in ("kind", "file", "line"))
    return story, next(e for e in view.events if (e.kind, e.file, e.line) == at)


def with_reasons(
    story: Diagnosis, event: Event, reasons: Sequence[Reason], instead_of: Sequence[str] = ()
) -> Diagnosis:
    """The diagnosis of a crash with `reasons`, best first, in place of the general meaning of its signature.

    `instead_of`: advice of the signature that the reasons replace.
    """
    if not reasons:
        return story
    claim = CATALOGUE[event.kind].claim
    advice = [*(a for r in reasons for a in r.advice), *(a for a in story.next if a not in instead_of)]
    return replace(
        story,
        summary=f"{sentence(reasons[0].evidence)}. {story.summary.removesuffix(claim).rstrip()}",
        evidence_for=(*(r.evidence for r in reasons), *story.evidence_for),
        next=tuple(dict.fromkeys(advice)),
    )


def _fixes(signature: Signature, known_file: str | None = None, frame: object = None) -> Iterator[str]:
    """The advice of a signature, and of the one that it refers to ("See nan-metric: …").

    If the message names the file at fault, nobody has to find it, and nor the innermost line of a known traceback.
    """
    for fix in signature.fixes:
        if (known_file and fix.startswith("Find the ")) or (frame and fix.startswith("Check the innermost frame")):
            continue
        see = _SEE.match(fix)
        if see is not None and see["other"] in CATALOGUE and see["other"] != signature.id:
            yield from CATALOGUE[see["other"]].fixes
            if see["rest"]:
                yield sentence(see["rest"])
        else:
            yield fix


def _place(frame: dict[str, Any]) -> str:
    """The innermost line of the user's own code: ``train.py:34 in forward: return torch.log(energy)``."""
    function = f" in {frame['function']}" if frame.get("function") else ""
    code = f": {frame['code']}" if frame.get("code") else ""
    return f"{frame['file']}:{frame['line']}{function}{code}"
