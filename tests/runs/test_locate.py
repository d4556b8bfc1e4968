"""The file and line at which a metric's finding stands, for code review."""

from __future__ import annotations

import json

import pytest

import postmortem


def results(postmortem_command, *args):
    return json.loads(postmortem_command("scan", *args, "--format", "sarif").out)["runs"][0]["results"]


def place(result):
    physical = result["locations"][0]["physicalLocation"]
    return physical["artifactLocation"]["uri"], physical.get("region", {}).get("startLine")


def loss(step, bad):
    return "nan" if bad and step >= 60 else f"{2 / (1 + step / 10):.4f}"


WRITERS = {
    "train.out": lambda s: f"[12:00:{s % 60:02d}] step {s}/100 | loss {loss(s, True)} | lr 0.001\n",
    "metrics.csv": lambda s: f"{s},{loss(s, True)},0.001\n",
    "log.jsonl": lambda s: json.dumps({"step": s, "loss": float(loss(s, True)), "lr": 0.001}) + "\n",
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_finding_has_the_line_of_its_value(tmp_path, postmortem, name):
    """Of text, a table and JSON lines: the line that prints the step and the value."""
    head = ["step,loss,lr\n"] if name.endswith("csv") else ["60 steps, nancy\n"] if name.endswith("out") else []
    lines = head + [WRITERS[name](s) for s in range(100)]
    (tmp_path / name).write_text("".join(lines))
    (found,) = results(postmortem, tmp_path)
    uri, line = place(found)
    assert uri.endswith(f"/{name}")
    assert line == 61 + len(head)


def test_the_finding_of_a_rank_is_at_the_file_of_that_rank(tmp_path, postmortem):
    """Rank 3 has the NaN; rank 0 is read first."""
    for rank in range(4):
        rows = [f"step {s} loss {loss(s, rank == 3)}\n" for s in range(100)]
        (tmp_path / f"train_rank{rank}.out").write_text("".join(rows))
    (found,) = results(postmortem, tmp_path)
    assert found["properties"]["rank"] == 3
    assert place(found) == (f"file://{tmp_path}/train_rank3.out", 61)
    told = postmortem("scan", tmp_path, "--format", "github").out
    assert f"::error file={tmp_path}/train_rank3.out,line=61,title=NAN001 nan-onset::" in told


def test_fingerprints_do_not_depend_on_where_the_scan_was_started(sample_runs, postmortem, monkeypatch):
    """The same runs by another path, and beside others, have the same fingerprints."""
    whole = {r["properties"]["run"]: r["partialFingerprints"] for r in results(postmortem, sample_runs)}
    monkeypatch.chdir(sample_runs)
    (alone,) = results(postmortem, "nan-empty-mask")
    assert alone["partialFingerprints"] == whole["nan-empty-mask"]


def test_the_line_of_the_program_stands_beside_that_of_the_log(sample_runs, postmortem):
    """A traceback names both."""
    (found,) = results(postmortem, sample_runs / "cuda-oom")
    assert place(found)[0].endswith("train.err")
    assert (
        found["relatedLocations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "file:///home/user/exp/train.py"
    )


def test_no_line_where_there_is_none(sample_runs):
    """An event file has no lines; its finding has the file."""
    (run,) = postmortem.scan(sample_runs / "nan-log-of-zero", locate=True)
    evidence = run.findings[0].evidence
    assert evidence["file"].endswith(".4242.0")
    assert "line" not in evidence


def test_the_finding_of_a_checkpoint_is_at_the_checkpoint(sample_runs, postmortem):
    """The first file that holds non-finite weights."""
    pytest.importorskip("torch")
    found = {r["ruleId"]: r for r in results(postmortem, sample_runs / "nan-log-of-zero")}
    assert place(found["CKP001"])[0].endswith("/step_000159.pt")


def test_a_value_of_a_binary_file_is_at_the_line_that_prints_it(tmp_path, postmortem):
    """The text log beside an event file prints four digits of it; a step that it leaves out has no line there."""
    values = [2 / (1 + step / 10) + 1e-7 for step in range(60)] + [float("nan")] * 40
    writer = pytest.importorskip("tensorboard.summary").Writer(str(tmp_path / "run"))
    for step, value in enumerate(values):
        writer.add_scalar("train/loss", value, step)
    writer.close()
    for every, at in ((1, ("train.log", 61)), (7, None)):
        rows = [f"[{s}] epoch 1 train loss {v:.4g}\n" for s, v in enumerate(values) if s % every == 0]
        (tmp_path / "run" / "train.log").write_text("".join(rows))
        found = next(r for r in results(postmortem, tmp_path) if r["properties"]["step"] == 60)
        uri, line = place(found)
        assert (uri.rsplit("/", 1)[-1], line) == at if at else ("tfevents" in uri and line is None)
