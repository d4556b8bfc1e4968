"""``postmortem checkpoints``: the health of saved weights."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from postmortem import api
from postmortem.checkpoints.last_good import last_good_of
from postmortem.cli.shared import CONTEXT, PATH, echo_json, warn_of_broken_plugins
from postmortem.core.errors import NotFoundError
from postmortem.core.model import SCHEMA_VERSION
from postmortem.core.registry import collected_faults
from postmortem.reporters.checkpoints_text import health_lines, one_line

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.checkpoints.health import Health


@click.command(context_settings=CONTEXT)
@click.argument("path", type=PATH)
@click.option("--format", "format_", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.option("--trust", is_flag=True, help="Unpickle everything, which can run code: only for files you trust.")
@click.option("--checksums", is_flag=True, help="Also compare the checksums of archives of more than 64 MiB.")
@click.option("-v", "--verbose", is_flag=True, help="Show every tensor.")
def checkpoints(path: Path, format_: str, trust: bool, checksums: bool, verbose: bool) -> int:
    """Check the checkpoints in and below PATH for non-finite values and name the last good one.

    No pickled code is run unless --trust is given. Exit code 1: a checkpoint holds non-finite values or cannot be read;
    0: all are good.
    """
    warn_of_broken_plugins("checkpoint formats")
    with collected_faults() as faults:
        found = api.checkpoints(path, trust=trust, checksums=checksums)
    for fault in faults:
        click.echo(f"postmortem: {one_line(f'{fault.path}: {fault.what}; lost: {fault.lost}')}", err=True)
    if not found:
        raise NotFoundError(
            f"{path}: no checkpoint found (.pt, .pth, .ckpt, .safetensors, pytorch_model.bin, checkpoint folders)"
        )
    good = last_good_of(found)
    if format_ == "json":
        whole = {
            "schema_version": SCHEMA_VERSION,
            "path": str(path),
            "last_good": good.path if good else None,
            "checkpoints": [_as_json(h) for h in found],
        }
        echo_json(whole)
    else:
        for h in found:
            click.echo("\n".join(health_lines(h, path, verbose=verbose)))
        click.echo(one_line(f"last good: {good.path}") if good else "last good: none")
    return 1 if any(h.finite is not True or h.problems for h in found) else 0


def _as_json(h: Health) -> dict[str, Any]:
    tensors = [{**asdict(t), "nonfinite": t.nonfinite, "bad": t.bad} for t in h.tensors]
    return {
        "path": h.path,
        "step": h.step,
        "finite": h.finite,
        "nbytes": h.nbytes,
        "unverified": h.unverified,
        "tensors": tensors,
        "problems": [asdict(p) for p in h.problems],
    }
