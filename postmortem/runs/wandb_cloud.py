"""Runs in W&B's cloud (``wandb://entity/project/run``), copied by the SDK as the folders of an older client.

`scan_history` gives every row of the history, not a sample. Which server is asked and with which key is the SDK's own
matter: WANDB_BASE_URL, WANDB_API_KEY, ``wandb login``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from postmortem.core.errors import MissingExtra, NotFoundError, PostmortemError, UsageError
from postmortem.core.progress import progressed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FORM = "wandb://ENTITY/PROJECT/RUN, or wandb://ENTITY/PROJECT for all runs of a project"


def copy_runs(url: str, name: str, folder: Path) -> None:
    """Copies the run, or the runs of the project, with this name to `folder`, or to a folder in it for each.

    NotFoundError if there is none, MissingExtra where the SDK is not installed.
    """
    parts = name.strip("/").split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise UsageError(f"{url}: not a run of W&B: {_FORM}")
    try:
        import wandb
    except ImportError as error:
        raise MissingExtra(url, "wandb") from error
    try:
        api = wandb.Api()
        if len(parts) == 3:
            _copy(api.run("/".join(parts)), folder, url)
            return
        for run in api.runs("/".join(parts), lazy=False):  # these lack the SDK's own settings, the step metrics
            _copy(api.run("/".join([*parts, run.id])), folder / run.id, url)
    except Exception as error:  # network, key, server: the SDK has exceptions of several packages
        if isinstance(getattr(error, "exc", error), ValueError):  # of a run that is not there, wrapped by the SDK
            raise NotFoundError(f"{url}: {_line(error)}") from error
        raise PostmortemError(f"{url}: cannot be read: {_line(error)}") from error
    if not folder.is_dir():
        raise NotFoundError(f"{url}: no runs in this project")


def _copy(run: Any, folder: Path, url: str) -> None:
    """Copies the history, the configuration, the console output and what is known of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    last = run.lastHistoryStep
    with (folder / "wandb-history.jsonl").open("w", encoding="utf-8") as out:
        for row in run.scan_history():
            out.write(json.dumps(row) + "\n")
            progressed(url, int(row.get("_step") or 0), last + 1)
    known = {
        **(run.metadata or {}),
        "id": run.id,
        "name": run.name,
        "project": run.project,
        "state": run.state,
        "stepMetrics": _declared_steps(run.rawconfig),
    }
    (folder / "wandb-metadata.json").write_text(json.dumps(known), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(run.config), encoding="utf-8")
    for file in run.files(names=["output.log"]):
        file.download(root=str(folder), replace=True).close()


def _declared_steps(config: Mapping[str, Any]) -> dict[str, str]:
    """The columns that `define_metric` declared as steps: the server keeps its records with the configuration.

    The fields are numbered as in W&B's MetricRecord: name (1), pattern (2), step metric (4) or its place among the
    records, counted from 1 (5).
    """
    own = config.get("_wandb")
    records = own.get("m") if isinstance(own, dict) else None
    records = [record for record in records if isinstance(record, dict)] if isinstance(records, list) else []
    found = {}
    for record in records:
        at = record.get("5")
        other = records[at - 1] if isinstance(at, int) and 0 < at <= len(records) else {}
        name, step = record.get("2") or record.get("1"), record.get("4") or other.get("1")
        if isinstance(name, str) and isinstance(step, str):
            found[name] = step
    return found


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
