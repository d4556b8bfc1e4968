"""The text of a draft: its head, and the functions that the user fills in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postmortem.replay.scaffold.layout import Layout
    from postmortem.replay.scaffold.script import Script


def head(kind: str, layout: Layout, imports: Sequence[str], missing: Sequence[str]) -> str:
    """The docstring and the imports."""
    what = "\n".join(f"    {name}()" for name in missing) or "    nothing"
    return (
        f'"""Draft of a recipe ({kind}), written by `postmortem recipe`.\n\n'
        f"{layout.described()} To fill in:\n{what}\n"
        '"""\n\n' + "\n".join(imports) + "\n\nimport postmortem\n"
    ).replace("\\", "\\\\")


def to_fill_in(name: str, arguments: str, what: str) -> str:
    """A function that says what to fill in when it is called."""
    return f'\n\ndef {name}({arguments}):\n    raise NotImplementedError("fill in {name}(): {what}")\n'


SET_SEED = ("", "set the seeds, as the training does before it builds the model")
"""Arguments and content of a function that is to be filled in."""


def seeding(layout: Layout, script: Script) -> str | None:
    """The statement that seeds torch; "" where a checkpoint holds the state, None where it is not known."""
    if layout.path is not None:
        return ""
    seed = script.seed()
    return None if seed is None else f"torch.manual_seed({seed})"


def seed_line(statement: str | None) -> str:
    """A line of the recipe for what `seeding` says."""
    return "" if statement == "" else f"{'set_seed()' if statement is None else statement}\n    "


MOVE = """

def to_device(batch, device):
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch.to(device) if hasattr(batch, "to") else batch
"""
