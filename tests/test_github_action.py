"""The GitHub Action of examples/: its commands run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "github-action"
ACTION = yaml.safe_load((FOLDER / "action.yml").read_text("utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}


def run(step: str, tmp_path: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """The script of a step in bash as GitHub starts it, with its environment."""
    given = {name: entry["default"] for name, entry in ACTION["inputs"].items()} | inputs
    env = {
        name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda m: given[m[1]], value)
        for name, value in STEPS[step].get("env", {}).items()
    }
    command = tmp_path / "bin" / "postmortem"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m postmortem "$@"\n')
    command.chmod(0o755)
    env |= {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    env |= {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "OMP_NUM_THREADS": "1"}
    script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]["run"]]
    return subprocess.run(script, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("fail_on", "code"), [("error", 1), ("never", 0)])
def test_a_failed_run_is_annotated_and_fails_the_step(tmp_path, fail_on, code):
    """The annotations are on stdout, the report in the summary of the job."""
    done = run("Scan", tmp_path, paths=str(ROOT / "sample_runs/killed"), **{"fail-on": fail_on})
    assert done.returncode == code, done.stderr
    assert ",line=136,title=RUN003 crash::" in done.stdout
    assert "host-kill" in (tmp_path / "summary.md").read_text()


def test_alerts_are_written_for_code_scanning(tmp_path):
    """The file that the next step uploads; a finding does not stop the job before it."""
    done = run("Alerts", tmp_path, paths=str(ROOT / "sample_runs/killed"))
    assert done.returncode == 0, done.stderr
    assert '"version": "2.1.0"' in (tmp_path / STEPS["Upload"]["with"]["sarif_file"]).read_text()


def test_it_installs_the_package_that_it_lies_in():
    """The path of the install step is the root of the repository."""
    script = STEPS["Install"]["run"]
    (path,) = re.findall(r'"\$GITHUB_ACTION_PATH/(.+)"', script)
    assert (FOLDER / path).resolve() == ROOT
    assert (ROOT / "pyproject.toml").exists()
