"""``postmortem checkpoints``: the health of saved weights."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from postmortem import api
from postmortem.cli._params import PATH, echo_json
from postmortem.core.errors import NotFoundError
from postmortem.core.model import SCHEMA_VERSION
from postmortem.core.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postmortem.replay.health import Health

_SHOWN = 5


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
    good = [h for h in found if h.finite]
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
            click.echo(printable("\n".join(_text(h, path, verbose))))
        click.echo(printable(f"last good: {good[-1].path}") if good else "none of them is good")
    return 1 if any(h.finite is not True or h.problems for h in found) else 0


def _as_json(h: Health) -> dict[str, Any]:
    tensors = [{**asdict(t), "nonfinite": t.nonfinite, "bad": t.bad} for t in h.tensors]
    return {"path": h.path, "step": h.step, "finite": h.finite, "nbytes": h.nbytes, "tensors": tensors, "problems": [asdict(p) for p in h.problems]}


def _text(h: Health, root: Path, verbose: bool) -> Iterator[str]:
    said = "good" if h.finite and not h.problems else "NOT FINITE" if h.finite is False else "UNREADABLE" if not h.tensors else "damaged"
    weights = [t for t in h.tensors if not t.name.endswith("step")]  # optimizers count their steps in tensors
    norm = sum(t.norm**2 for t in weights) ** 0.5
    size = f"{len(h.tensors)} tensors, {h.nbytes / 2**20:.1f} MiB" if h.tensors else ""
    size += f", norm {norm:.4g}{'' if h.finite else ' of what is finite' if h.finite is False else ' of what could be read'}" if norm else ""
    name = Path(h.path)
    shown_name = name.relative_to(root) if name != root and name.is_relative_to(root) else name
    yield f"{shown_name}  step {'?' if h.step is None else h.step}  {said}  {size}".rstrip()
    shown = h.bad if not verbose else h.tensors
    for t in shown[: None if verbose else _SHOWN]:
        kinds = ", ".join(f"{n} {what}" for n, what in ((t.nan, "NaN"), (t.posinf, "inf"), (t.neginf, "-inf")) if n)
        sizes = "nothing in it is finite" if t.nonfinite and t.nonfinite >= t.numel else f"max {t.max_abs:.4g}, norm {t.norm:.4g}"
        yield f"    {t.name} {list(t.shape)} {t.dtype}: {kinds + ', ' if kinds else ''}{sizes}"
    if len(shown) > _SHOWN and not verbose:
        yield f"    and {len(shown) - _SHOWN} more"
    changed = sorted((t for t in weights if t.change), key=lambda t: -(t.change or 0))[:3]
    if changed and h.finite:
        yield "    changed most since the one before: " + ", ".join(f"{t.name} {t.change:.2g}" for t in changed)
    for p in h.problems:
        yield f"    {Path(p.path).name}: {p.what}"
