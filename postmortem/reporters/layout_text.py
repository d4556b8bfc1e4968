"""The text output of `postmortem layout`: the gradients, what produced their strides, and the fixes that were tried."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.core.layout import LayoutResult, LayoutTrial, StridedGradient

_DIFFERENCE = {
    "size-1": "differ only in dimensions of size 1: same memory layout, so DDP warns but nothing more is copied",
    "copy": "different memory layout, copied in each backward pass: by autograd (no warning) or DDP (with a warning)",
}


def layout_lines(result: LayoutResult, width: int = 100) -> list[str]:
    """All lines."""
    return list(_lines(result, max(60, min(width, 120))))


def _lines(result: LayoutResult, width: int) -> Iterator[str]:
    odd = len(result.gradients)
    passes = f"{result.iterations} iteration{'' if result.iterations == 1 else 's'}"
    of = f"of {result.looked} gradient{'' if result.looked == 1 else 's'} in {passes}"
    if odd:
        yield f"{odd} {of} {'has' if odd == 1 else 'have'} strides that differ from the parameter's"
    else:
        yield f"0 {of} have strides that differ from their parameter's"
    for gradient in result.gradients:
        yield ""
        yield from _gradient(gradient, width)
    if result.gradients:
        yield from _inputs(result)
    yield from _under_ddp(result, width)
    for note in result.notes:
        yield f"note: {note}"


def _gradient(found: StridedGradient, width: int) -> Iterator[str]:
    yield f"{found.name}  {found.shape} {found.dtype} {found.device}"
    layout = f" ({found.format})" if found.difference == "copy" else ""
    yield f"  gradient strides {found.strides}{layout}, expected {found.expected}"
    yield from textwrap.wrap(_DIFFERENCE[found.difference], width, initial_indent="  ", subsequent_indent="  ")
    if found.file:
        yield f"  produced at  {_relative(found.file)}:{found.line}  {found.op}"
        if found.code:
            yield f"               {found.code}"
    else:
        yield f"  produced by  {found.op or 'unknown'}: no line of the program is known"
    if found.called:
        yield f"  called at  {_relative(found.called[0])}:{found.called[1]}"
    if found.beside:
        yield f"  the parameter is used at  {_relative(found.beside[0])}:{found.beside[1]}"
    for phase in found.phases:
        several = f"iterations {phase['first']} to {phase['last']}" if phase["iterations"] > 1 else ""
        when = several or f"iteration {phase['first']}"
        # of a recipe, the backward pass is run by postmortem itself
        where = f" at {_relative(phase['file'])}:{phase['line']}" if phase["file"] else ""
        yield f"  backward pass{where}, {when}" + (f", {found.ranks} ranks" if found.ranks > 1 else "")


def _inputs(result: LayoutResult) -> Iterator[str]:
    if result.inputs:
        yield ""
        yield "inputs"
    for given in result.inputs:
        shape = tuple(given["shape"])
        yield f"  {given['model']}[{given['index']}]  {shape} {given['dtype']} {given['device']} {given['format']}"
    for model in result.models:
        for own in model["odd"]:
            strides = tuple(own["strides"])
            yield f"  {model['model']}.{own['parameter']} itself is {own['format']} at the start, {strides}"


def _under_ddp(result: LayoutResult, width: int) -> Iterator[str]:
    if not result.tried:
        if result.own_ddp:
            yield f"PyTorch's DDP warned about strides {_times(result.warnings or 0)}"
        return
    yield ""
    how = "the program's own DDP" if result.own_ddp else "DistributedDataParallel, gloo"
    told = "" if result.warnings is None else f"; without a fix it warned about strides {_times(result.warnings)}"
    yield f"tried under {how}, {result.ranks} process{'' if result.ranks == 1 else 'es'}{told}"
    for trial in result.tried:
        yield from _trial(trial, width)


def _trial(trial: LayoutTrial, width: int) -> Iterator[str]:
    verdict = "not tried" if trial.error else "cures" if trial.cures else "partly" if trial.cured else "no"
    text = f"{trial.fix}: {trial.what}"
    if trial.error:
        text += f": {trial.error}"
    elif trial.after is not None:
        text += f"; warnings {trial.before} -> {trial.after}, gradients {trial.odd_before} -> {trial.odd_after}"
    else:
        text += f"; gradients {trial.odd_before} -> {trial.odd_after}"
    text += f"; cost: {trial.cost}" if trial.cost and not trial.error else ""
    yield from textwrap.wrap(text, width, initial_indent=f"  {verdict:<9}  ", subsequent_indent=" " * 13)
    if trial.change and trial.cured:
        for line in trial.change.splitlines():
            if not line.startswith(("---", "+++", "@@")):
                yield f"             {line[0]} {line[1:].strip()}"


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def _relative(file: str) -> str:
    """As seen from here, if it is below the working directory."""
    try:
        relative = os.path.relpath(file)
    except (ValueError, OSError):
        return file
    return file if relative.startswith("..") else relative
