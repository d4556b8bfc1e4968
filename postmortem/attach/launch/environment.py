"""The environment of the user's command: our folder on PYTHONPATH, trackers offline, job submission disabled."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[3]
INJECTED = Path(__file__).resolve().parents[1] / "_inject"
SUBMITTERS = ("sbatch", "srun", "salloc", "qsub", "qrsh", "bsub", "kubectl", "sky", "ray")
# Trackers keep their numbers in files; the loopback device is where ranks meet
_TRACKERS = {
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}
_NO_NETWORK = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TP_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}
_STUB = """#!/bin/sh
echo "postmortem: {name} was not run: a rerun submits no job and starts nothing on other machines" >&2
exit 1
"""
# Only some of its commands submit
_RAY = """#!/bin/sh
case "$1 $2" in
"submit "*|"job submit"*|"up "*|"exec "*)
    echo "postmortem: ray $1 was not run: a rerun submits no job and starts nothing on other machines" >&2
    exit 1 ;;
esac
PATH=$(printf %s "$PATH" | sed 's|^[^:]*:||') exec ray "$@"
"""


def watched(base: Mapping[str, str], session: Path) -> dict[str, str]:
    """The environment of `postmortem run`: the user's own, and the two places that our code has to find."""
    path = [str(INJECTED), *filter(None, [base.get("PYTHONPATH")])]
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(path),
        "POSTMORTEM_ROOT": str(ROOT),
        "POSTMORTEM_SESSION": str(session),
        "POSTMORTEM_PLAN": str(session / "plan.json"),
    }


def rerun(base: Mapping[str, str], session: Path, offline: bool) -> dict[str, str]:
    """The environment of a rerun: as `watched`, and nothing is told to a tracker, a hub or a cluster."""
    tracking = session / "tracking"
    tracking.mkdir(exist_ok=True)
    found = {
        **watched(base, session),
        **_TRACKERS,
        "WANDB_DIR": str(tracking),
        "MLFLOW_TRACKING_URI": (tracking / "mlruns").as_uri(),
        "COMET_OFFLINE_DIRECTORY": str(tracking),
        "PATH": os.pathsep.join([str(session / "bin"), base.get("PATH", os.defpath)]),
    }
    for name in ("WANDB_RUN_ID", "WANDB_RESUME", "MLFLOW_RUN_ID"):  # they name the run that is investigated
        found.pop(name, None)
    if offline:
        found.update(_NO_NETWORK)
        if "MASTER_ADDR" in base:
            found["MASTER_ADDR"] = "127.0.0.1"
    else:
        found["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"  # what is public can be fetched; nothing is pushed
        found.pop("HF_TOKEN", None)
    return found


def stubs(session: Path, base: Mapping[str, str]) -> list[tuple[Path, Path]]:
    """Write the programs that stand in for those that submit jobs. -> (stub, program it takes the place of)."""
    folder = session / "bin"
    folder.mkdir()
    found = []
    for name in SUBMITTERS:
        stub = folder / name
        stub.write_text(_RAY if name == "ray" else _STUB.format(name=name))
        stub.chmod(0o755)
        program = shutil.which(name, path=base.get("PATH"))
        if program and name != "ray":
            found.append((stub, Path(program).resolve()))
    return found
