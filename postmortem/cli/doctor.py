"""``postmortem doctor``: what is installed, what is missing and how to get it."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import textwrap

import click

from postmortem import api
from postmortem._version import __version__
from postmortem.cli.shared import CONTEXT

_NEEDED = ("numpy", "pandas", "protobuf", "pyyaml", "google-crc32c", "click", "rich")
_EXTRAS = {
    "torch": (
        "replay",
        "replay, run, check, recipe and checkpoints do not work; scan does not open saved weights",
    ),
    "safetensors": ("replay", "checkpoints in this format cannot be replayed"),
    "matplotlib": ("plot", "plots in Python and notebooks do not work"),
    "tensorboard": ("tensorboard", "TensorBoard has no tab Postmortem"),
    "pyarrow": ("parquet", "export cannot write Parquet"),
    "zstandard": ("zstd", "logs compressed with zstd are not read"),
    "fsspec": ("remote", "runs behind a URL (s3://, https://) cannot be read"),
    "wandb": ("wandb", "annotate --wandb does not work"),
}
"""Package -> the extra that installs it, and what does not work without it."""


@click.command(context_settings=CONTEXT)
def doctor() -> int:
    """Show versions, devices, readers and plugins, what is missing and how to install it.

    Exit code 2 if something is broken.
    """
    click.echo(f"postmortem {__version__}, Python {platform.python_version()}, {platform.platform()}")
    missing = [name for name in _NEEDED if not _show(name, needed=True)]
    left_out = [name for name in _EXTRAS if not _show(name, needed=False)]
    click.echo(f"device: {_device()}")
    registries = api.registries()
    broken = [(kind, b) for kind, registry in registries.items() for b in registry.broken]
    for kind, registry in registries.items():
        names = [
            next(filter(None, (getattr(item, a, None) for a in ("name", "kind", "__name__")))) for item in registry
        ]
        text = f"{kind}: {len(names)} ({', '.join(names)})"
        width = max(40, shutil.get_terminal_size((100, 24)).columns)
        click.echo("\n".join(textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)))
    for kind, plugin in broken:
        click.echo(f"broken plugin ({kind}): {plugin.where}: {plugin.why}")
    for name in left_out:
        extra, cost = _EXTRAS[name]
        click.echo(f"missing: {name}: {cost}; pip install 'training-postmortem[{extra}]'")
    for name in missing:
        click.echo(f"missing: {name}, which every command may need; pip install {name}")
    if not (left_out or missing or broken):
        click.echo("nothing is missing")
    return 2 if missing or broken else 0


def _show(name: str, *, needed: bool) -> bool:
    try:
        click.echo(f"  {name} {importlib.metadata.version(name)}")
    except importlib.metadata.PackageNotFoundError:
        click.echo(f"  {name} is not installed{'' if needed else ' (optional)'}")
        return False
    return True


def _device() -> str:
    from postmortem.replay import device_summary

    return device_summary()
