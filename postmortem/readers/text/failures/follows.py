"""Matched lines whose signatures read on in the lines after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from postmortem.signatures import CATALOGUE

if TYPE_CHECKING:
    from postmortem.readers.text.failures.fold import Occurrence, Occurrences


@dataclass(slots=True)
class _Follow:
    """A matched line whose signature reads on in the next lines of the same rank."""

    seen: Occurrence
    key: int | None
    left: int
    lines: list[str]

    def is_followed_by(self, text: str) -> bool:
        """Whether a line begins the next message of the signature, where the lines of each one are indented."""
        indented = any(line[:1].isspace() for line in (text, *self.lines[1:]))
        return indented and self.seen.signature.match(text) is not None

    def lacks(self, text: str) -> bool:
        """Whether a line has details of the signature that the lines before it do not have."""
        told = self.seen.signature.detail(text).keys()
        return bool(told) and not told <= self.seen.signature.detail("\n".join(self.lines)).keys()


class Follows:
    """The matched lines that read on, and the lines that each of them has read."""

    def __init__(self, found: Occurrences) -> None:
        self.open: list[_Follow] = []
        self._found = found

    def add(self, seen: Occurrence, key: int | None, text: str) -> None:
        """Reads on after a matched line; what the same signature was still reading from this rank is complete."""
        self._close([f for f in self.open if f.key == key and f.seen.signature is seen.signature])
        self.open.append(_Follow(seen, key, seen.signature.follow, [text]))

    def read(self, key: int | None, text: str) -> bool:
        """Hands a line to the matched lines of its rank; returns whether it belongs to one of them, being indented.

        Where only the first line of a message bears a rank, the others go to the message that lacks what they tell.
        """
        self._close([f for f in self.open if f.key == key and f.is_followed_by(text)])
        own = [f for f in self.open if f.key == key and f.left > 0]
        if key is None and not any(f.lacks(text) for f in own):
            own += [f for f in self.open if f.key is not None and f.lacks(text)][:1]
        for follow in own:
            follow.left -= 1
            follow.lines.append(text[:2000])
        self._close([f for f in self.open if f.left <= 0])
        return bool(own) and text[:1].isspace() and not text.isspace()

    def close(self) -> None:
        """Completes what is still open at the end of the log."""
        self._close(list(self.open))

    def _close(self, complete: list[_Follow]) -> None:
        for follow in complete:
            self.open.remove(follow)
            self._finish(follow.seen, "\n".join(follow.lines))

    def _finish(self, seen: Occurrence, text: str) -> None:
        """Adds the fields that the whole text has; an abort that alone shows the reason is named after the reason."""
        seen.fields = seen.signature.detail(text) | seen.fields | {"text": text[:4000]}
        what = seen.fields.get("what")
        if not isinstance(what, str):
            return
        errors = (o for o in self._found.kept if o.severity == "error" and o.attempt == seen.attempt)
        if any(o is not seen for o in errors):
            return
        known = CATALOGUE.match(what, exception=True)
        if known is not None and known[0].rank > seen.signature.rank:
            seen.signature, seen.severity = known[0], known[0].severity
            seen.fields = known[0].detail(what) | known[1] | seen.fields
            seen.message = f"{seen.message}: {what}"
        elif seen.signature.role == "wrapper":
            seen.message = f"{seen.message}: {what}"
