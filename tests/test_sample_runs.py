"""The sample runs: what a scan says of each is what its `expected.json` says, and `make.py` still makes them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

SAMPLES = Path(__file__).parent.parent / "sample_runs"
NAMES = sorted(p.parent.name for p in SAMPLES.glob("*/expected.json"))


@pytest.fixture(scope="module")
def scanned() -> dict[str, Any]:
    """The runs of ``postmortem scan sample_runs --format json`` by name."""
    import postmortem
    from postmortem.reporters import REPORTERS, RenderOptions

    report = json.loads(REPORTERS["json"](postmortem.scan(SAMPLES), RenderOptions()))
    return {run["run"]: run for run in report["runs"]}


def expected(name: str) -> dict[str, Any]:
    return json.loads((SAMPLES / name / "expected.json").read_text())


def matches(finding: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """`name` may list alternatives (a|b), `step` may be an interval [from, to]."""
    step = wanted.get("step")
    at_step = (
        step is None
        or finding["step"] == step
        or (isinstance(step, list) and step[0] <= (finding["step"] or 0) <= step[1])
    )
    return finding["name"] in wanted["name"].split("|") and wanted.get("tag") in (None, finding["tag"]) and at_step


def test_command_line_lists_every_sample(postmortem):
    """Scanning the folder through the command line finds each sample as one run, and nothing beside them."""
    called = postmortem("scan", SAMPLES, "--format", "json")
    assert called.code == 1, called.err
    report = json.loads(called.out)
    assert sorted(run["run"] for run in report["runs"]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_verdict_and_findings(scanned, name):
    """The verdict, the root cause, how the run ended, and each expected finding at its tag and step."""
    run, truth = scanned[name], expected(name)
    assert run["verdict"] == truth["verdict"], run["findings"]
    assert (run["diagnosis"] or {}).get("name") == truth.get("diagnosis")
    if "ended" in truth:
        assert run["ended"] == truth["ended"]
    for wanted in truth["findings"]:
        assert any(matches(f, wanted) for f in run["findings"]), (wanted, run["findings"])


@pytest.mark.parametrize("name", NAMES)
def test_no_finding_beyond_the_expected(scanned, name):
    """Every error or warning is expected, allowed, or the consequence of another one; healthy samples have none."""
    truth = expected(name)

    def known(finding: dict[str, Any]) -> bool:
        return finding["name"] in truth.get("allowed", []) or any(
            matches(finding, wanted) for wanted in truth["findings"]
        )

    assert [
        f for f in scanned[name]["findings"] if f["severity"] != "info" and f["because_of"] is None and not known(f)
    ] == []


@pytest.mark.parametrize("name", [n for n in NAMES if "event" in expected(n)])
def test_decisive_line(scanned, name):
    """The line of the log that says why the run ended is found, by file and line."""
    wanted = expected(name)["event"]
    seen = [(Path(e["file"]).name, e["line"]) for e in scanned[name]["events"] if e["severity"] == "error"]
    assert (wanted["file"], wanted["line"]) in seen


def test_last_good_checkpoint(scanned):
    """The NaN sample names its last good step and the newest checkpoint from before the fault."""
    story, truth = scanned["nan-log-of-zero"]["diagnosis"], expected("nan-log-of-zero")
    assert story["last_good_step"] == truth["last_good_step"]
    assert Path(story["last_good_checkpoint"]).name == truth["last_good_checkpoint"]


def test_no_traces_of_the_machine():
    """Nothing in the sample runs names the machine or the folders they were made in, and they stay small."""
    files = [p for p in SAMPLES.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    here = str(SAMPLES.parent).encode()
    assert [p for p in files if here in p.read_bytes()] == []
    assert max(p.stat().st_size for p in files) < 2**20
    assert sum(p.stat().st_size for p in files) < 10 * 2**20


@pytest.mark.torch
@pytest.mark.parametrize("name", ["killed"])
def test_make_trains_it_again(python, tmp_path, name):
    """`make.py` really makes the sample: trained again elsewhere, a scan of it gives the expected findings."""
    pytest.importorskip("torch")
    import postmortem

    made = python(str(SAMPLES / "make.py"), name, "--into", str(tmp_path))
    assert made.returncode == 0, made.stderr
    (run,) = postmortem.scan(tmp_path / name).runs
    truth = expected(name)
    assert run.verdict == truth["verdict"]
    for wanted in truth["findings"]:
        assert any(matches({"name": f.name, "tag": f.tag, "step": f.step}, wanted) for f in run.findings), (
            wanted,
            run.findings,
        )


@pytest.mark.torch
def test_replay_needs_torch_alone(monkeypatch):
    """`make demo` installs torch and no logger: the recipe of the NaN sample works without one."""
    pytest.importorskip("torch")
    from postmortem import api

    for logger in ("tensorboard", "torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, logger, None)
    culprit = api.replay(SAMPLES / "nan-log-of-zero", fix=False).as_json()["culprit"]
    assert culprit["code"].strip() == "return torch.log(energy)"


def test_readme_lists_every_sample():
    """The table in sample_runs/README.md has a row for each folder, and each folder says what happened."""
    text = (SAMPLES / "README.md").read_text()
    assert [n for n in NAMES if f"[{n}]({n})" not in text or not (SAMPLES / n / "README.md").exists()] == []


@pytest.mark.torch
def test_replay_names_the_planted_line(postmortem, tmp_path):
    """The command that the scan suggests for the NaN sample names the line with the logarithm, the clip and the
    cure."""
    pytest.importorskip("torch")
    folder = tmp_path / "nan-log-of-zero"
    shutil.copytree(SAMPLES / "nan-log-of-zero", folder)
    called = postmortem("replay", folder, "--format", "json")
    answer = json.loads(called.out)
    culprit = answer["culprit"]
    planted = 1 + (folder / "train.py").read_text().splitlines().index("        return torch.log(energy)")
    assert (culprit["phase"], culprit["module"], culprit["op"], culprit["line"]) == (
        "forward",
        "frontend",
        "log",
        planted,
    )
    assert answer["step"] == 156
    assert answer["fidelity"]["ok"]
    assert culprit["samples"] == [30]
    assert {"eps", "drop_sample"} <= {f["name"] for f in culprit["fixes"] if f["cured"]}


@pytest.mark.torch
def test_a_report_with_replay_prints_what_the_replay_found(postmortem, tmp_path):
    """What `make demo` ends with: the page has the culprit, stdout its text with fixes, change and next steps."""
    pytest.importorskip("torch")
    page = tmp_path / "report.html"
    called = postmortem("report", SAMPLES / "nan-log-of-zero", "--replay", "-o", page)
    assert called.code == 0, called.err
    first, _, text = called.out.partition("\n\n")
    assert " ".join(first.split()).endswith("step 156, from checkpoint step_000139.pt")
    assert text.startswith("Culprit: log(0) at step 156, in sample 30 of the batch: 16 of the 512 values")
    for part in (
        "Fixes tried:",
        "energy.clamp(min=1e-06)",
        "Try this first",
        "Fidelity: good",
        "reran steps 140 to 156",
    ):
        assert part in text, part
    assert "log(0) at step 156, in sample 30 of the batch" in page.read_text()
    assert "wrote " in called.err


@pytest.mark.torch
@pytest.mark.skipif(sys.platform != "linux", reason="files are protected by Linux")
def test_own_command_names_the_planted_line(postmortem, tmp_path, monkeypatch):
    """What `make demo` shows: the training command itself, resumed, names the division and the empty message."""
    pytest.importorskip("torch")
    folder = tmp_path / "nan-empty-mask"
    shutil.copytree(SAMPLES / "nan-empty-mask", folder)
    monkeypatch.chdir(folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    command = [sys.executable, "train.py", "--steps", "180", "--lr", "3e-3", "--resume", "ckpt_100.pt"]
    called = postmortem("replay", ".", "--format", "json", "--", *command)
    assert called.code == 1, called.err
    answer = json.loads(called.out)
    culprit = answer["culprit"]
    planted = [i for i, line in enumerate((folder / "train.py").read_text().splitlines(), 1) if "/ mask.sum" in line]
    assert [culprit["line"]] == planted
    assert (culprit["op"], culprit["samples"], answer["step"]) == ("div", [5], 137)
    assert answer["fidelity"]["ok"]
    assert {"eps", "drop_sample"} <= {f["name"] for f in culprit["fixes"] if f["cured"]}
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
