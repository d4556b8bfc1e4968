"""The commands in the advice of a report, told from its words."""

from __future__ import annotations

import re

from postmortem.core.patterns import later
from postmortem.reporters.shared.words import clean

_PROGRAMS = "postmortem|python3?|pip|export|torchrun|accelerate|deepspeed|srun|sacct|dmesg|uv run"
_TOOLS = rf"(?:\(?cd [^`]+ && )?(?:{_PROGRAMS}) "
_QUOTED = later(rf":? ?`((?:\$ )?{_TOOLS}[^`]*)`")
_BARE = later(rf"\s*(?:\$ )?({_TOOLS}.*?)(?:\s{{2,}}\((.*)\)\s*)?", re.DOTALL)


def with_commands(action: str) -> tuple[str, list[str]]:
    """Splits a next action into its words and its commands, which are shown so that they can be copied.

    Commands are in backticks, or are the whole action; then a note in parentheses may follow after two spaces. In the
    middle of a sentence, "this" replaces the command.
    """
    bare = _BARE.fullmatch(action)
    if bare:
        return (clean(bare[2], 1000) + ":" if bare[2] else ""), [clean(bare[1])]
    commands = [clean(c.removeprefix("$ ")) for c in _QUOTED.findall(action)]
    words = _QUOTED.sub(lambda m: " this" if action[m.end() :].strip(" .") else "", action).removesuffix(":")
    return (clean(words.rstrip(" ."), 1000) + ":" if commands else clean(words, 1000)), commands
