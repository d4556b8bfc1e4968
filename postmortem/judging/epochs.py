"""The wording of findings about values that the log places by an epoch: "epoch 83", not the step before it.

Detectors and causes order all values by steps, also those that stand at an epoch (`Series.epoch`). The log does not
print that step beside them: the report names the epoch, and this is the one place where it is put in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postmortem.core.patterns import later

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence

    from postmortem.core.model import Diagnosis, Finding
    from postmortem.core.report import Around
    from postmortem.core.view import View

_STEP = later(r"(?<![-\w])(?P<word>[Ss]tep)(?P<plural>s?) (?P<n>-?\d+)(?:(?P<and> (?:to|and) )(?P<m>-?\d+))?(?!\.?\d)")


_OF_AN_EPOCH = (("the batch of step ", "a batch of step "), ("the previous step", "the previous epoch"))
"""An epoch has many batches, and the row before is of the epoch before."""


class Epochs:
    """The epochs of the run's values, by tag and by the step that orders them."""

    def __init__(self, view: View) -> None:
        self._of_tag: dict[str, dict[int, int]] = {}
        self._whole = view.run.step_axis == "epoch"
        self._view = view
        for series in (*view.overwritten, *view.series):
            if series.epoch is not None:
                steps = zip(series.step.tolist(), series.epoch.tolist(), strict=True)
                self._of_tag.setdefault(series.tag, {}).update(steps)

    def __bool__(self) -> bool:
        return self._whole or bool(self._of_tag)

    def finding(self, finding: Finding) -> Finding:
        """The finding with epochs for steps, if its values stand at epochs; `evidence` says so."""
        epochs = self._of(finding)
        if finding.step is None or epochs is None:
            return finding
        evidence = {key: _moved(key, value, epochs) for key, value in finding.evidence.items()}
        return replace(
            finding,
            step=epochs.get(finding.step, finding.step),
            end_step=None if finding.end_step is None else epochs.get(finding.end_step, finding.end_step),
            message=_worded(finding.message, epochs),
            evidence=evidence | {"axis": "epoch"},
        )

    def diagnosis(self, story: Diagnosis, findings: Sequence[Finding]) -> Diagnosis:
        """The diagnosis with the epochs of its root; what it quotes of a finding of `findings` is worded as that."""
        root = next((f for f in findings if f.id in story.findings[:1]), None)
        own = None if root is None or root.step is None else self._of(root)
        quoted = {f.message: _worded(f.message, epochs) for f in findings if (epochs := self._of(f)) is not None}

        def worded(text: str) -> str:
            for message, new in quoted.items():
                text = text.replace(message, new)
            return text if own is None else _worded(text, own)

        def all_of(texts: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(map(worded, texts))

        return replace(
            story,
            summary=worded(story.summary),
            evidence_for=all_of(story.evidence_for),
            evidence_against=all_of(story.evidence_against),
            disprove=all_of(story.disprove),
            next=all_of(story.next),
            last_good_step=story.last_good_step if self._is_step(story.last_good_step) else None,
        )

    def _is_step(self, step: int | None) -> bool:
        return any((s.step == step).any() for s in self._view.series if s.epoch is None)

    def around(self, values: Around) -> Around:
        """The values before and at the onset, each at what the log prints beside it."""
        epochs = _Same() if self._whole else self._of_tag.get(values.tag)
        if epochs is None:
            return values
        before, at = (None if step is None else epochs.get(step, step) for step in (values.before_step, values.at_step))
        return replace(values, before_step=before, at_step=at, unit="epoch")

    def _of(self, finding: Finding) -> Mapping[int, int] | None:
        if self._whole:
            return _Same()
        return self._of_tag.get(finding.tag or "")


class _Same(dict[int, int]):
    """Every step is the epoch itself: the log counts nothing else."""

    def __contains__(self, step: object) -> bool:
        return True

    def __missing__(self, step: int) -> int:
        return step


def _moved(key: str, value: Any, epochs: Mapping[int, int]) -> Any:
    """A step or several in the evidence, as epochs."""
    if "step" not in key and key != "between":
        return value
    if isinstance(value, list):
        return [_moved(key, v, epochs) for v in value]
    return epochs[value] if isinstance(value, int) and value in epochs else value


def _worded(text: str, epochs: Mapping[int, int]) -> str:
    """The text with "epoch 83" for the step at which the log stands after that epoch."""

    def word(match: re.Match[str]) -> str:
        steps = [int(match[k]) for k in ("n", "m") if match[k] is not None]
        if steps[0] not in epochs and steps[0] - 1 in epochs and len(steps) == 2 and not isinstance(epochs, _Same):
            named = [epochs[steps[0] - 1] + 1, *(epochs[step] for step in steps[1:] if step in epochs)]
        else:
            named = [epochs[step] for step in steps if step in epochs]
        if len(named) < len(steps):
            return match[0]
        word = "Epoch" if match["word"] == "Step" else "epoch"
        if len(set(named)) < len(steps):
            return f"{word} {named[0]}"
        return f"{word}{match['plural']} {(match['and'] or '').join(map(str, named))}"

    for said, meant in _OF_AN_EPOCH:
        text = text.replace(said, meant)
    return _STEP.sub(word, text)
