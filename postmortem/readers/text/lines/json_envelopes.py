r"""Log lines inside JSON objects, as Docker, Fluentd, cloud consoles and benchmark runners store them.

``{"log":"step 10 loss 0.5\n","stream":"stdout","time":"2026-11-20T12:00:01Z"}`` is the line ``step 10 loss 0.5``. An
object whose other members are numbers of the training is a log line itself and is left unchanged.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from postmortem.core.patterns import later

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONTENT = ("log", "message", "msg", "data", "line", "text", "textPayload", "MESSAGE", "content")
_ABOUT = {
    "time",
    "ts",
    "timestamp",
    "@timestamp",
    "pid",
    "tid",
    "rank",
    "local_rank",
    "lineno",
    "line_number",
    "seq",
    "level",
    "severity",
    "offset",
}
"""Members that may be numbers: they describe the line, not the training."""
_TIMES = ("time", "timestamp", "@timestamp", "ts")
_DATE = later(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?")
_NUMBER = later(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)", re.IGNORECASE)
_SAMPLE, _FEW = 50, 3


def content_key(head: bytes) -> str | None:
    """The member that holds the line if the first lines of a file are all such objects, else None."""
    lines = [line for line in head.split(b"\n")[:-1][:_SAMPLE] if line.strip()]
    if len(lines) < _FEW:
        return None
    objects = [_object(line) for line in lines]
    if any(o is None for o in objects):
        return None
    found = {_key(o) for o in objects if o is not None}
    return found.pop() if len(found) == 1 else None


def unwrapped(pieces: Iterator[bytes], key: str, longest: int) -> Iterator[bytes]:
    """The lines inside the objects, one per line of the file. Lines that are no such object are left unchanged.

    `pieces` are of any size; a line of more than `longest` bytes is passed on as it comes.
    """
    left = b""
    for piece in pieces:
        data = left + piece
        end = data.rfind(b"\n") + 1
        left = data[end:]
        if len(left) > longest:
            yield b"\n".join((*(_line(line, key) for line in data[:end].split(b"\n")[:-1]), left))
            left = b""
        elif end:
            yield b"".join(_line(line, key) + b"\n" for line in data[: end - 1].split(b"\n"))
    if left:
        yield _line(left, key)


def _object(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _key(found: dict[str, Any]) -> str | None:
    """The member that holds a line; None if several could, or if there are other members with numbers."""
    texts = [name for name in _CONTENT if isinstance(found.get(name), str)]
    if len(texts) != 1:
        return None
    beside = [value for name, value in found.items() if name not in _ABOUT and name != texts[0]]
    numbers = any(
        (isinstance(v, (int, float)) and not isinstance(v, bool)) or (isinstance(v, str) and _NUMBER.fullmatch(v))
        for v in beside
    )
    return None if numbers else texts[0]


def _line(line: bytes, key: str) -> bytes:
    """The text inside, after the time and the rank of the object, in the format of a container runtime."""
    found = _object(line)
    text = found.get(key) if found is not None else None
    if found is None or not isinstance(text, str):
        return line
    # a text of several lines is one line of the file: its parts are rows of that line
    text = text.rstrip("\r\n").replace("\r\n", "\r").replace("\n", "\r")
    time = next((found[name] for name in _TIMES if isinstance(found.get(name), str)), "")
    rank = found.get("rank")
    lead = f"{time} stdout F " if _DATE.fullmatch(time) else ""
    if isinstance(rank, int) and rank >= 0:
        lead += f"[rank{rank}]: "
    return "\r".join(lead + part for part in text.split("\r")).encode("utf-8", "replace")
