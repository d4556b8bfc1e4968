"""Known failure texts: a catalogue of data files, one per family, and the loader that reads them.

To add a failure, add one ``[[signature]]`` with an example line to the file of its family; the tests match every
example against the whole catalogue. See `Signature` for the keys.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, get_args

from postmortem.core.errors import UsageError, did_you_mean
from postmortem.core.patterns import later

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.model import Ended, Severity, Strength

Role = Literal["cause", "waiting", "victim", "wrapper", "note"]
"""How far an event can be blamed. A *cause* fails by itself; a *waiting* rank or a scheduler's limit is the root only
if no cause came before; a *victim* fails because another did; a *wrapper* reports what others did; a *note* is never
the root."""

FieldType = Literal["str", "int", "float", "ints", "words", "size", "nonfinite"]
_LONGEST = 4000
"""Characters of a message that patterns see."""

_IF = later(
    r"(?i)\b(?:if|in case|whenever|when you|avoid\w{0,3}|prevent\w{0,3}|risk of"
    r"|(?:may|might|can|could|would) (?:potentially )?"
    r"(?:cause|run|result|lead|get|see|encounter|hit|trigger|fail|go|be))\b"
)

_UNITS = {"b": 1, "bytes": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power, _letter: 1024**_power}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One known failure.

    `patterns` are alternatives, searched in a line without its prefixes or in ``Class: message`` of an exception, also
    with `` [raised in FOLDER/FILE]`` of its innermost frame appended. `anchors` are plain texts; every text that the
    patterns match contains at least one of them, which is a cheap test before the patterns. `details` are searched for
    more fields in the message and the next `follow` lines. A text that matches `unless` is not meant.

    Named groups become fields, converted by `fields` (default str). `scope` "exception" excludes ordinary lines, "line"
    excludes exceptions. Appearances that agree in the fields named by `same` are one event (a name that is not a field,
    such as "kind", joins all of them; "line" keeps each). If several entries match, the highest `rank` wins. `ended` is
    how a run ended whose root cause this is.

    `strength` says how surely the message means what `meaning` says: "certain" only if the message itself proves every
    flat statement of it, else "likely" (the default).
    """

    id: str
    family: str
    severity: Severity
    meaning: str
    patterns: tuple[re.Pattern[str], ...]
    anchors: tuple[str, ...]
    examples: tuple[str, ...]
    details: tuple[re.Pattern[str], ...] = ()
    unless: re.Pattern[str] | None = None
    fields: Mapping[str, FieldType]
    causes: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    evidence: str = ""
    strength: Strength = "likely"
    rank: int = 50
    role: Role = "cause"
    scope: Literal["any", "exception", "line"] = "any"
    follow: int = 0
    same: tuple[str, ...] = ()
    ended: Ended | None = None

    @property
    def claim(self) -> str:
        """The meaning, introduced as surely as the message allows; empty for exceptions that no entry describes."""
        if self.rank == 0:
            return ""
        return self.meaning if self.strength == "certain" else f"Usual meaning of this message: {self.meaning}"

    def match(self, text: str) -> dict[str, Any] | None:
        """The fields of a text, or None if this signature does not match it."""
        found = self._search(text)
        return self.typed(found.groupdict()) if found is not None else None

    def is_hypothetical(self, text: str) -> bool:
        """Whether the words before the match make it a possibility: ``to avoid CUDA out of memory`` is no failure."""
        found = self._search(text)
        return found is not None and _IF.search(text, max(0, found.start() - 200), found.start()) is not None

    def _search(self, text: str) -> re.Match[str] | None:
        text = text[:_LONGEST]
        if not any(anchor in text for anchor in self.anchors):
            return None
        if self.unless is not None and self.unless.search(text) is not None:
            return None
        return next((found for pattern in self.patterns if (found := pattern.search(text)) is not None), None)

    def detail(self, text: str) -> dict[str, Any]:
        """The fields that `details` find in a text of several lines."""
        found: dict[str, Any] = {}
        for pattern in self.details:
            match = pattern.search(text[:_LONGEST])
            if match is not None:
                found |= {k: v for k, v in self.typed(match.groupdict()).items() if k not in found}
        return found

    def typed(self, groups: Mapping[str, str | None]) -> dict[str, Any]:
        """Groups of a match as plain JSON values; groups that did not match are left out."""
        found: dict[str, Any] = {}
        for name, text in groups.items():
            if text is not None:
                _convert(found, name, text, self.fields.get(name, "str"))
        return found


_CODE = re.compile(
    r"\s*+(?:(?:self\.)?_?(?:log|logger|logging)\.\w{3,10}|print|raise [A-Z]\w{0,60}|warnings\.warn)\((?:[fr]?[\"']|$)"
)
"""A line of source, as of a script that was printed, which says what it would print."""


def is_code(text: str) -> bool:
    """Whether a line is source code that would print a message, and not the message.

    >>> is_code('    logging.warning(f"NaN loss at epoch {epoch}")'), is_code("NaN loss at epoch 3")
    (True, False)
    """
    return _CODE.match(text) is not None


def _convert(found: dict[str, Any], name: str, text: str, kind: FieldType) -> None:
    """Stores one field in `found`. A size "1.22 GiB" becomes `name_bytes` (int) and `name_gib` (as printed)."""
    digits = text.replace(",", "")
    if kind == "int" and re.fullmatch(r"[+-]?\d{1,18}", digits):
        found[name] = int(digits)
    elif kind == "ints":
        found[name] = [int(d[:18]) for d in re.findall(r"-?\d+", text)]
    elif kind == "words":
        found[name] = [w for w in (part.strip(" \t\n\"'[]().") for part in text.split(",")) if w]
    elif kind == "float" and (number := re.search(r"[-+]?(\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", digits)):
        found[name] = float(number.group())
    elif kind == "size" and (size := re.fullmatch(r"\s*(\d+\.?\d*)\s*([A-Za-z]*)\s*", digits)):
        unit = size[2].lower() or "b"
        if unit in _UNITS:
            found[f"{name}_bytes"] = round(float(size[1]) * _UNITS[unit])
            if unit not in ("b", "bytes"):
                found[f"{name}_{unit}"] = float(size[1])
    elif kind == "nonfinite":
        found[name] = text.lower()
    else:
        found[name] = text


class Catalogue(Mapping[str, Signature]):
    """All signatures by id, read from the data files on first use."""

    @cached_property
    def _entries(self) -> dict[str, Signature]:
        entries: dict[str, Signature] = {}
        for file in sorted(resources.files(__name__).iterdir(), key=lambda f: f.name):
            if file.name.endswith(".toml"):
                for entry in tomllib.loads(file.read_text("utf-8"))["signature"]:
                    signature = _signature(entry, file.name.removesuffix(".toml"))
                    if signature.id in entries:
                        raise ValueError(f"{file.name}: signature {signature.id!r} is there twice")
                    entries[signature.id] = signature
        return entries

    @cached_property
    def by_rank(self) -> tuple[Signature, ...]:
        """All entries, highest rank first: the first that matches is the answer."""
        return tuple(sorted(self._entries.values(), key=lambda s: -s.rank))

    @cached_property
    def anchors(self) -> tuple[str, ...]:
        """The anchors of all entries: a line without any of them matches nothing."""
        return tuple(sorted({anchor for signature in self._entries.values() for anchor in signature.anchors if anchor}))

    @cached_property
    def _places(self) -> dict[str, list[tuple[str, int]]]:
        """(anchor, index of its entry in `by_rank`) by the first four letters of the anchor; shorter ones under ""."""
        places: dict[str, list[tuple[str, int]]] = {}
        for place, signature in enumerate(self.by_rank):
            for anchor in signature.anchors:
                places.setdefault(anchor[:4] if len(anchor) >= 4 else "", []).append((anchor, place))
        return places

    def _candidates(self, text: str) -> list[Signature]:
        """The entries with an anchor in the text, highest rank first: matching every entry would dominate a scan."""
        beginnings = self._places.keys() & {text[i : i + 4] for i in range(len(text) - 3)}
        found = {
            place for letters in (*beginnings, "") for anchor, place in self._places.get(letters, ()) if anchor in text
        }
        return [self.by_rank[place] for place in sorted(found)]

    def match(self, text: str, *, exception: bool = False) -> tuple[Signature, dict[str, Any]] | None:
        """The matching signature of highest rank, and its fields. `exception`: the text is ``Class: message``."""
        for signature in self._candidates(text[:_LONGEST]):
            if signature.scope in ("any", "exception" if exception else "line"):
                fields = signature.match(text)
                if fields is not None:
                    return signature, fields
        return None

    def __getitem__(self, key: str) -> Signature:
        """The entry of that id; raises UsageError with the nearest name if there is none."""
        if key not in self._entries:
            raise UsageError(f"no failure signature {key!r}{did_you_mean(key, self._entries)}")
        return self._entries[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The entry of that id, or `default`; unlike a lookup with [], never raises."""
        return self._entries.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _signature(entry: dict[str, Any], family: str) -> Signature:
    """One entry of a data file; raises ValueError for a faulty one."""
    unknown = set(entry) - set(Signature.__slots__)
    if unknown or {"id", "severity", "meaning", "patterns", "anchors", "examples"} - set(entry):
        raise ValueError(f"{family}.toml: {entry.get('id', '?')}: unknown or missing keys {sorted(unknown)}")
    if entry.get("strength", "likely") not in ("certain", "likely"):
        raise ValueError(f"{family}.toml: {entry['id']}: strength is neither certain nor likely")
    fields = dict(entry.pop("fields", {}))
    if bad := set(fields.values()) - set(get_args(FieldType)):
        raise ValueError(f"{family}.toml: {entry['id']}: unknown field types {sorted(bad)}")
    for key in ("patterns", "details"):
        entry[key] = tuple(later(p, re.MULTILINE) for p in entry.get(key, ()))
    if "unless" in entry:
        entry["unless"] = later(entry["unless"])
    for key in ("anchors", "examples", "causes", "fixes", "same"):
        entry[key] = tuple(entry.get(key, ()))
    return Signature(family=family, fields=fields, **entry)


CATALOGUE = Catalogue()


@dataclass(frozen=True, slots=True)
class _Advice:
    exception: re.Pattern[str]
    message: re.Pattern[str]
    fixes: tuple[str, ...]
    example: str


@cache
def advices() -> tuple[_Advice, ...]:
    """What to do about exceptions without a signature, special cases before general ones."""
    table = tomllib.loads((resources.files(__name__) / "general.toml").read_text("utf-8"))["advice"]
    return tuple(
        _Advice(re.compile(a["exception"]), re.compile(a.get("message", "")), tuple(a["fixes"]), a["example"])
        for a in table
    )


def advice(exception: str, message: str) -> tuple[str, ...]:
    """What to do about an exception, by its class (without its module) and message; empty if nothing is known."""
    message = message[:_LONGEST]
    return next((a.fixes for a in advices() if a.exception.fullmatch(exception) and a.message.search(message)), ())


def page(signature: Signature) -> str:
    """The page that ``postmortem explain ID`` shows, as Markdown."""
    parts = [f"# {signature.id}", signature.claim or signature.meaning]
    if signature.causes:
        parts.append("## Usual causes\n" + "\n".join(f"- {c}" for c in signature.causes))
    if signature.fixes:
        parts.append("## What to do\n" + "\n".join(f"{n}. {f}" for n, f in enumerate(signature.fixes, start=1)))
    if signature.evidence:
        parts.append(f"## What would confirm it\n{signature.evidence}")
    if signature.rank == 0:
        parts.append("## By its class\n" + "\n".join(f"- `{a.example}`: {' '.join(a.fixes)}" for a in advices()))
    parts.append("## How it is found\n" + _how(signature))
    parts.append("## Example\n```\n" + "\n".join(signature.examples) + "\n```")
    return "\n\n".join(parts) + "\n"


def _how(signature: Signature) -> str:
    where = {"exception": "the message of an exception", "line": "any line of the log"}.get(
        signature.scope, "an exception or any line of the log"
    )
    kinds = {"error": "an error", "warning": "a warning", "info": "a note"}
    lines = [
        f"Severity: {kinds[signature.severity]}. Searched in {where}, after rank and logger prefixes were taken off:"
    ]
    lines += [f"- `{pattern.pattern}`" for pattern in signature.patterns]
    if signature.unless is not None:
        lines.append(f"- but not if it contains `{signature.unless.pattern}`")
    groups = sorted({name for pattern in (*signature.patterns, *signature.details) for name in pattern.groupindex})
    if groups:
        lines.append(f"\nFields: {', '.join(groups)}.")
    return "\n".join(lines)
