"""The program of `postmortem layout --recipe`: the steps of a recipe, one after another.

Run as a program: ``python -m postmortem.attach.layout.recipe_steps FILE.py[:FUNCTION] STEPS``.
"""

from __future__ import annotations

import sys
from collections.abc import Sized

import torch  # first: from here on the process is a copy that is looked at

from postmortem.core.errors import PostmortemError
from postmortem.replay.model import Context
from postmortem.replay.recipe.load import Recipe
from postmortem.replay.roll.roll import roll
from postmortem.replay.step.runner import StepRunner


def main(spec: str, steps: int) -> None:
    """Runs so many steps of the recipe, from its initial state."""
    recipe = Recipe(spec)
    with recipe.importable():
        made = recipe.build(Context(device="cuda" if torch.cuda.is_available() else "cpu"))
        runner = StepRunner(made)
        first = int(made.first_step or 0)
        known = len(made.batches) if isinstance(made.batches, Sized) else steps
        roll(runner, first, first + (min(steps, known) if made.batches is not None else 1) - 1)


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except PostmortemError as problem:
        sys.exit(f"postmortem: {problem}")
