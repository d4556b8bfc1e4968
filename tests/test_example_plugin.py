"""The example plugin package: installed from its pyproject.toml, found by its entry points, used by the CLI."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and the metadata that an installer writes; needs no network and no build backend."""
    target = tmp_path_factory.mktemp("site")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    about = project["project"]
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        shutil.copytree(EXAMPLE / package, target / package)
    info = target / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in names.items())
        for group, names in about["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    return target


@pytest.fixture(scope="module")
def call(installed: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """call(*args) runs ``postmortem ARGS…`` in a fresh process that sees the plugin."""

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)])}
        command = [sys.executable, "-m", "postmortem", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, env=env, check=False)

    return run


def test_reader_detector_and_diagnosis_are_used(call: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """A scan reads the example's log with its reader; finding and story are those of its detector and diagnosis."""
    called = call("scan", EXAMPLE / "run", "--format", "json", "--ignore", "LOS007")  # which finds it as well
    assert (called.returncode, called.stderr) == (1, "")
    (run,) = json.loads(called.stdout)["runs"]
    assert [(s["kind"], s["points"]) for s in run["sources"]] == [("tally", 80)]
    assert [(f["code"], f["name"], f["step"]) for f in run["findings"]] == [("RWD001", "reward-collapse", 310)]
    assert run["diagnosis"]["name"] == "policy-collapse"
    assert run["problems"] == []


def test_options_of_the_detector(
    call: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The detector is tuned and left out like those of the package."""
    (tmp_path / "pyproject.toml").write_text("[tool.postmortem.detectors.reward-collapse]\nshare = 0.01\n")
    monkeypatch.chdir(tmp_path)
    scan = ("scan", EXAMPLE / "run", "--ignore", "LOS007")
    assert call(*scan, "--format", "tsv").stdout.splitlines()[1].split("\t")[1] == "healthy"
    assert json.loads(call(*scan, "--ignore", "RWD", "--format", "json").stdout)["runs"][0]["findings"] == []


def test_the_format_is_there(call: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """``--format tsv`` renders with the example's reporter."""
    called = call("scan", EXAMPLE / "run", "--format", "tsv")
    assert called.stdout == "run\tverdict\tdiagnosis\nrun\tfailed\tpolicy-collapse\n"


def test_pages_of_plugins(call: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """``postmortem explain`` shows the docstring of the example's detector."""
    assert "a curriculum" in call("explain", "RWD001").stdout


def test_a_replay_tries_its_fix(call: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """The example's fix is tried in its order and reported; ``postmortem explain`` has its page."""
    pytest.importorskip("torch")
    called = call("replay", ROOT / "sample_runs" / "nan-log-of-zero", "--format", "json")
    fixes = json.loads(called.stdout)["culprit"]["fixes"]
    known = ["clip_grad", "lower_lr", "half_lr", "fp64"]
    assert [f["name"] for f in fixes if f["name"] in known] == known
    assert next(f["cured"] for f in fixes if f["name"] == "half_lr") is False
    assert "too large, but not by much" in call("explain", "half_lr").stdout


def test_damage_in_its_log_is_a_problem(call: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """A line that is no row costs that line."""
    (tmp_path / "a.tally").write_text((EXAMPLE / "run" / "rewards.tally").read_text() + "torn;rew")
    (run,) = json.loads(call("scan", tmp_path, "--format", "json").stdout)["runs"]
    assert [(p["line"], p["lost"]) for p in run["problems"]] == [(82, "the line")]
    assert run["diagnosis"]["name"] == "policy-collapse"


def test_it_imports_the_public_face_only() -> None:
    """Of postmortem, the example imports nothing but postmortem.plugins."""
    for path in sorted(EXAMPLE.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        named = [n.module for n in nodes if isinstance(n, ast.ImportFrom)] + [
            a.name for n in nodes if isinstance(n, ast.Import) for a in n.names
        ]
        assert {name for name in named if name and name.split(".")[0] == "postmortem"} <= {"postmortem.plugins"}, path
