"""The configuration of a run, for its recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmortem.checkpoints.find import home_of

if TYPE_CHECKING:
    from postmortem.core.run import Run


def config_of(run: Run | None, target: Path) -> dict[str, Any]:
    """The run's configuration: ``config.json`` or ``hparams.yaml`` beside its log, over what the log itself holds."""
    config = dict(run.config) if run is not None else {}
    folder = target if target.is_dir() else target.parent
    own = Path(run.path) if run is not None else folder  # below the target, as Lightning's version_0/ is
    folders = [folder, folder.parent] if run is None else [own if own.is_dir() else own.parent, folder, home_of(folder)]
    for path in [
        f / n for f in folders for n in ("config.json", "hparams.json", "args.json", "hparams.yaml", "config.yaml")
    ]:
        if path.is_file() and path.stat().st_size < 1 << 20:
            found = _read_config(path)
            if isinstance(found, dict) and found:
                return {**config, **found}
    return config


def _read_config(path: Path) -> Any:
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except ValueError:
            return None  # the scan has reported it as a problem of the run
    return flat_yaml(text)


def flat_yaml(text: str) -> dict[str, Any]:
    """The ``key: value`` lines at the top level of a YAML file, which is what Lightning's hparams.yaml is."""
    config: dict[str, Any] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key and not key[0].isspace() and not key.startswith(("#", "-")):
            config[key.strip()] = _scalar(value.split(" #")[0].strip())
    return config


def _scalar(text: str) -> Any:
    words = {"true": True, "false": False, "null": None, "~": None, "": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"")
