"""Marks what postmortem prints beside a training, so that it is not read as the training's own output."""

from __future__ import annotations

from typing import TextIO

OWN = "postmortem: "
"""Before each line that goes into the output of a training. Readers leave out what follows it in a line."""


def beside_a_training(text: str, stream: TextIO) -> str:
    """The lines of `text` with the mark, unless `stream` is a terminal, where nobody mines them.

    >>> import io
    >>> beside_a_training("The culprit:\\n\\n  loss = x / 0", io.StringIO())
    'postmortem: The culprit:\\n\\npostmortem:   loss = x / 0'
    """
    if stream.isatty():
        return text
    return "\n".join(OWN + line if line else "" for line in text.split("\n"))
