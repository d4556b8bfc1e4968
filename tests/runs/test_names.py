"""Names of runs: what the tool that logged a run shows, unique in a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import postmortem
from postmortem.cli.main import cli
from postmortem.readers.wandb.transaction_log import RECORD
from tests.readers.wandb.test_wandb import history, log_file


def named_wandb(root: Path, id_: str, *names: str, last: float = 1.0) -> Path:
    """A W&B run that had these names one after the other; the folder is that of the client."""
    folder = root / "wandb" / f"offline-run-20260101_000000-{id_}"
    folder.mkdir(parents=True)
    records = [
        RECORD(run={"run_id": id_.encode(), "display_name": name.encode()}).SerializeToString() for name in names
    ]
    rows = [history(i, loss=2.5 - 0.01 * i if i < 99 else last) for i in range(100)]
    (folder / f"run-{id_}.wandb").write_bytes(log_file([records[0], *rows, *records[1:]])[0])
    return folder


def test_the_name_in_wandb_is_the_name_of_the_run(tmp_path: Path) -> None:
    """In the report, its JSON, the frames and the text, which shows the path as well; the last name counts."""
    folder = named_wandb(tmp_path, "abc123", "first-name", "royal-sweep-12", last=float("nan"))
    report = postmortem.scan(tmp_path)
    assert [run.name for run in report] == ["royal-sweep-12"]
    assert report["royal-sweep-12"] is report[0] is report[str(tmp_path)]
    run = postmortem.load(folder)
    assert (run.name, set(run.frame["run"]), set(report.findings_frame()["run"])) == (
        "royal-sweep-12",
        {"royal-sweep-12"},
        {"royal-sweep-12"},
    )
    text = CliRunner().invoke(cli, ["scan", str(folder)]).output
    assert "royal-sweep-12" in text
    assert "abc123" in text
    document = json.loads(CliRunner().invoke(cli, ["scan", str(folder), "--format", "json"]).output)
    assert [(run["run"], run["path"]) for run in document["runs"]] == [("royal-sweep-12", str(folder))]


def test_two_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    """W&B lets a sweep have one name; a folder that happens to have that name is a third."""
    folders = [named_wandb(tmp_path, id_, "baseline") for id_ in ("abc1", "abc2")]
    (tmp_path / "baseline").mkdir()
    (tmp_path / "baseline" / "train.out").write_text("".join(f"step {i} loss {3 - i / 50}\n" for i in range(90)))
    report = postmortem.scan(tmp_path)
    names = {f"baseline ({folder.name})" for folder in folders} | {"baseline (baseline)"}
    assert {run.name for run in report} == names
    assert {run.run.name for run in report if run.run is not None} == names
    assert report[str(folders[0])].name == f"baseline ({folders[0].name})"
    with pytest.raises(KeyError, match="baseline \\(baseline\\)"):
        report["baseline"]
    compared = postmortem.compare(*folders)
    assert (compared.a, compared.b) == tuple(map(str, folders))


def test_a_page_of_many_runs_shows_where_a_name_lies(tmp_path: Path) -> None:
    """A name of W&B alone would not say which path to give to the next command."""
    named_wandb(tmp_path, "abc1", "royal-sweep-12", last=float("nan"))
    named_wandb(tmp_path, "abc2", "noble-fog-3")
    page = CliRunner().invoke(cli, ["scan", str(tmp_path)], env={"COLUMNS": "160"})
    text = " ".join(page.output.split())
    for folder, name in (("abc1", "royal-sweep-12"), ("abc2", "noble-fog-3")):
        assert f"{name} (offline-run-20260101_000000-{folder})" in text


def test_folders_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    """Where the last part of the path is the same as well, the whole path is shown."""
    folders = [named_wandb(tmp_path / part, "abc1", "baseline") for part in "ab"]
    assert {run.name for run in postmortem.scan(folders)} == {f"baseline ({folder})" for folder in folders}


def test_a_wandb_run_without_a_name_has_that_of_its_folder(tmp_path: Path) -> None:
    """Offline, W&B gives none; a name of spaces is none."""
    assert postmortem.load(named_wandb(tmp_path, "abc1", " ")).name == "offline-run-20260101_000000-abc1"


def test_an_empty_folder_is_told_what_is_read(tmp_path: Path) -> None:
    """All kinds of files, JSON included."""
    with pytest.raises(postmortem.NotFoundError, match="CSV, JSON and JSON lines"):
        postmortem.scan(tmp_path)
