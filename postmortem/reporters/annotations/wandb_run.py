"""Findings in a W&B run: keys of its summary, and an alert."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from postmortem.core.errors import MissingExtra, NotFoundError, PostmortemError
from postmortem.reporters.shared.outline import headline

if TYPE_CHECKING:
    from pathlib import Path

    from postmortem.core.report import RunReport


def write_to_wandb(run: RunReport, folder: Path) -> str:
    """Resumes the W&B run of a report, sets its summary keys ``postmortem/…`` and raises an alert if it is not healthy.

    The SDK decides by its environment (WANDB_MODE, WANDB_ENTITY, …) where that goes; its files, in offline mode the
    whole run to be synced, are in `folder`. Other W&B runs of the process are ended. Returns the id of the run.
    NotFoundError if the report is of no W&B run, MissingExtra without the SDK, PostmortemError if W&B did not take it.
    """
    known = next((r.facts for r in (run.run.readings if run.run else ()) if r.source == "wandb"), {})
    if not known.get("run_id"):
        raise NotFoundError(f"{run.path}: no W&B run is in it, so there is none to annotate")
    if find_spec("wandb") is None:
        raise MissingExtra("annotate --wandb", "wandb")
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    try:
        _resume_and_write(run, str(known["run_id"]), str(known.get("project") or "") or None, folder)
    except (wandb.Error, OSError) as error:  # no login, no network, no permission, a full disk
        why = " ".join(str(error).split()).rstrip(".")
        advice = "WANDB_MODE=offline writes to a file that `wandb sync` sends later"
        raise PostmortemError(f"{run.path}: the W&B run was not annotated: {why}; {advice}") from error
    wandb.teardown()  # else the end of the file may be written after the process has gone on
    return str(known["run_id"])


def _resume_and_write(run: RunReport, run_id: str, project: str | None, folder: Path) -> None:
    import wandb

    settings = wandb.Settings(disable_git=True, save_code=False, console="off", x_disable_stats=True)
    with wandb.init(id=run_id, project=project, dir=str(folder), resume="allow", settings=settings) as resumed:
        resumed.summary.update(summary_of(run))
        if run.verdict in ("failed", "suspect"):
            level = "ERROR" if run.verdict == "failed" else "WARN"
            text = run.diagnosis.summary if run.diagnosis else ""
            resumed.alert(title=f"{run.verdict}: {headline(run)}"[:200], text=text[:2000] or headline(run), level=level)


def summary_of(run: RunReport) -> dict[str, Any]:
    """The keys of the summary; those that nothing is known of are left out."""
    story = run.diagnosis
    found = {
        "verdict": run.verdict,
        "finding": headline(run),
        "step": next((f.step for f in run.findings if story and f.id in story.findings), None),
        "cause": story.name if story else None,
        "strength": story.strength if story else None,
        "next": story.next[0] if story and story.next else None,
        "last_good_step": story.last_good_step if story else None,
        "last_good_checkpoint": story.last_good_checkpoint if story else None,
    }
    return {f"postmortem/{key}": value for key, value in found.items() if value is not None}
