"""``postmortem doctor``: what is installed, what is missing and how to get it."""

from __future__ import annotations

import importlib.metadata
import platform

import click

from postmortem import api
from postmortem._version import __version__
from postmortem.cli.shared import CONTEXT

_NEEDED = ("numpy", "pandas", "protobuf", "pyyaml", "google-crc32c", "click", "rich")
_EXTRAS = {"matplotlib": "plot", "torch": "replay", "safetensors": "replay"}


@click.command(context_settings=CONTEXT)
def doctor() -> int:
    """Show versions, devices, readers and plugins, what is missing and how to install it.

    Exit code 2 if something is broken.
    """
    click.echo(f"postmortem {__version__}, Python {platform.python_version()}, {platform.platform()}")
    missing = [name for name in _NEEDED if not _show(name, needed=True)]
    for name in _EXTRAS:
        _show(name, needed=False)
    click.echo(f"device: {_device()}")
    registries = api.registries()
    broken = [(kind, b) for kind, registry in registries.items() for b in registry.broken]
    for kind, registry in registries.items():
        names = [
            next(filter(None, (getattr(item, a, None) for a in ("name", "kind", "__name__")))) for item in registry
        ]
        click.echo(f"{kind}: {len(names)} ({', '.join(names)})")
    for kind, plugin in broken:
        click.echo(f"broken plugin ({kind}): {plugin.where}: {plugin.why}")
    return 2 if missing or broken else 0


def _show(name: str, *, needed: bool) -> bool:
    try:
        click.echo(f"  {name} {importlib.metadata.version(name)}")
    except importlib.metadata.PackageNotFoundError:
        hint = f"pip install {name}" if needed else f"pip install 'training-postmortem[{_EXTRAS[name]}]'"
        click.echo(f"  {name} is not installed{'' if needed else ' (optional)'}: {hint}")
        return False
    return True


def _device() -> str:
    from postmortem.replay import device_summary

    return device_summary()
