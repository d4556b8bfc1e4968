"""``postmortem checkpoints``: the health of saved weights."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from postmortem import api
from postmortem.cli._params import PATH, echo_json
from postmortem.core.errors import NotFoundError
from postmortem.core.model import SCHEMA_VERSION
from postmortem.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.checkpoints.health import Health, TensorHealth

_SHOWN = 5
_LONGEST = 100  # characters of a tensor's name
_STATE = re.compile(r"optim|(^|[./])state[./]|exp_avg|momentum_buffer|sched|scaler|(^|[._/])rng|random", re.IGNORECASE)
_RECORD = re.compile(r"best|min_val|max_val|metric|monitor|loss|step$", re.IGNORECASE)  # where it is a single number
_LEAP = 100.0  # moments of an optimizer change by their own size and more from one checkpoint to the next


@click.command()
@click.argument("path", type=PATH)
@click.option("--format", "format_", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.option("--trust", is_flag=True, help="Unpickle whatever is in them: only for files of your own.")
@click.option("-v", "--verbose", is_flag=True, help="Show every tensor.")
def checkpoints(path: Path, format_: str, trust: bool, verbose: bool) -> int:
    """Look into the checkpoints in and below PATH, and name the last good one.

    Nothing that is pickled is run, unless you --trust it. Exit code 1: one holds non-finite values or cannot be read; 0: all are good.
    """
    found = api.checkpoints(path, trust=trust)
    if not found:
        raise NotFoundError(f"{path}: no checkpoint found (.pt, .pth, .ckpt, .safetensors, pytorch_model.bin, checkpoint folders)")
    good = sorted((h for h in found if h.finite), key=lambda h: (h.step is not None, h.step or 0))
    if format_ == "json":
        whole = {
            "schema_version": SCHEMA_VERSION,
            "path": str(path),
            "last_good": good[-1].path if good else None,
            "checkpoints": [_as_json(h) for h in found],
        }
        echo_json(whole)
    else:
        for h in found:
            click.echo("\n".join(_one_line(line) for line in _text(h, path, verbose)))
        click.echo(_one_line(f"last good: {good[-1].path}") if good else "none of them is good")
    return 1 if any(h.finite is not True or h.problems for h in found) else 0


def _as_json(h: Health) -> dict[str, Any]:
    tensors = [{**asdict(t), "nonfinite": t.nonfinite, "bad": t.bad} for t in h.tensors]
    return {"path": h.path, "step": h.step, "finite": h.finite, "nbytes": h.nbytes, "tensors": tensors, "problems": [asdict(p) for p in h.problems]}


def _text(h: Health, root: Path, verbose: bool) -> Iterator[str]:
    said = "good" if h.finite and not h.problems else "NOT FINITE" if h.finite is False else "damaged"
    if not h.tensors:
        said = "UNREADABLE" if h.problems else "NO WEIGHTS"
    state = [t for t in h.tensors if _STATE.search(t.name) and not _is_record(t)]
    weights = [t for t in h.tensors if not _STATE.search(t.name) and not _is_record(t)] or state
    norm = sum(t.norm**2 for t in weights) ** 0.5
    size = f"{len(h.tensors)} tensors, {_size(h.nbytes)}" if h.tensors else ""
    size += f", norm {norm:.4g}{'' if h.finite else ' of what is finite' if h.finite is False else ' of what could be read'}" if norm else ""
    name = Path(h.path)
    shown_name = name.relative_to(root) if name != root and name.is_relative_to(root) else name
    yield f"{shown_name}  step {'?' if h.step is None else h.step}  {said}  {size}".rstrip()
    shown = h.bad if not verbose else h.tensors
    for t in shown[: None if verbose else _SHOWN]:
        kinds = ", ".join(f"{n} {what}" for n, what in ((t.nan, "NaN"), (t.posinf, "inf"), (t.neginf, "-inf")) if n)
        sizes = "nothing in it is finite" if t.nonfinite and t.nonfinite >= t.numel else f"max {t.max_abs:.4g}, norm {t.norm:.4g}"
        yield f"    {_short(t.name)} {list(t.shape)} {t.dtype}: {kinds + ', ' if kinds else ''}{sizes}"
    if len(shown) > _SHOWN and not verbose:
        yield f"    and {len(shown) - _SHOWN} more"
    changed = _most_changed(weights)[:3] + [t for t in _most_changed(state)[:1] if t not in weights and (t.change or 0) > _LEAP]
    if changed and h.finite:
        yield "    changed most since the one before: " + ", ".join(f"{_short(t.name)} {t.change:.2g}" for t in changed)
    if not h.tensors and not h.problems:
        yield "    none of its tensors holds floating-point numbers"
    for p in h.problems:
        yield f"    {Path(p.path).name}: {p.what}"


def _most_changed(tensors: list[TensorHealth]) -> list[TensorHealth]:
    return sorted((t for t in tensors if t.change), key=lambda t: -(t.change or 0))


def _is_record(t: TensorHealth) -> bool:
    """A number that is kept beside the weights: how many steps were done, the best loss so far."""
    return t.numel == 1 and _RECORD.search(t.name) is not None


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.1f} KiB"


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"


def _one_line(text: str) -> str:
    """Safe for a terminal; a name with a line break in it stays in its line."""
    return printable(text).replace("\n", " ⏎ ")
