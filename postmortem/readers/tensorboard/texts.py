"""Texts in event files: settings, as trainers log them with `add_text`, and what a program said."""

from __future__ import annotations

import json
import re
from typing import Any

_RULE = re.compile(r"[\s:|-]+")
_LONGEST = 1 << 20
"""Characters; a longer text is a dump of something else."""


def settings_in(text: str) -> dict[str, Any]:
    """The settings that a text holds as a whole, empty if it is something else.

    transformers logs its arguments as a JSON object, CleanRL and others as a Markdown table of two columns.
    """
    text = text.strip()
    if len(text) > _LONGEST:
        return {}
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}
    lines = text.splitlines()
    if len(lines) < 3 or not _RULE.fullmatch(lines[1]) or "|" not in lines[1]:
        return {}
    rows = [[cell.strip() for cell in line.strip().split("|")] for line in lines if line.strip()]
    if not all(len(row) == 4 and row[0] == row[3] == "" and row[1] for row in rows):
        return {}
    return {name: _plain(value) for _, name, value, _ in rows[2:]}


def _plain(cell: str) -> Any:
    """A number or a truth value as such, all else as text."""
    known = {"True": True, "False": False, "None": None}
    if cell in known:
        return known[cell]
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
