"""The same training in another format, or split over two files, gets the same answer."""

from __future__ import annotations

import json

import numpy as np
import pytest

import postmortem


def columns() -> dict[str, list[float]]:
    """300 steps that spike at 150 and turn NaN at 240."""
    rng = np.random.default_rng(3)
    loss = 2.0 * np.exp(-np.arange(300) / 120) + 0.5 + rng.normal(0, 0.01, 300)
    norm = 1.0 + rng.normal(0, 0.05, 300)
    loss[150], norm[150] = 6.0, 40.0
    loss[240:], norm[240:] = np.nan, np.nan
    return {"loss": loss.round(6).tolist(), "grad_norm": norm.round(6).tolist(), "lr": [0.001] * 300}


def as_csv(folder, data, rows):
    head = ",".join(["step", *data])
    body = "".join(f"{i},{','.join(repr(data[k][i]) for k in data)}\n" for i in rows)
    (folder / "metrics.csv").write_text(f"{head}\n{body}")


def as_jsonl(folder, data, rows):
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": i, **{k: data[k][i] for k in data}}) + "\n" for i in rows)
    )


def as_text(folder, data, rows):
    (folder / "train.out").write_text(
        "".join(f"step={i} {' '.join(f'{k}={data[k][i]!r}' for k in data)}\n" for i in rows)
    )


def as_trainer_state(folder, data, rows):
    history = [{"step": i, **{k: data[k][i] for k in data}} for i in rows]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history, "global_step": 300}))


def as_events(folder, data, rows, name="1700000000"):
    tensorboard = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    with (folder / f"events.out.tfevents.{name}.host.1.0").open("wb") as file:
        writer = RecordWriter(file)
        for i in rows:
            values = [Summary.Value(tag=k, simple_value=data[k][i]) for k in data]
            writer.write(tensorboard.Event(step=i, wall_time=1.7e9, summary=Summary(value=values)).SerializeToString())


def answer(folder):
    """(name, tag, step) of what was found, apart from damage and timing."""
    (run,) = postmortem.scan(folder).runs
    return run.verdict, sorted((f.name, f.tag, f.step, f.severity) for f in run.findings)


@pytest.fixture
def expected(tmp_path):
    folder = tmp_path / "expected"
    folder.mkdir()
    as_csv(folder, columns(), range(300))
    verdict, found = answer(folder)
    assert verdict == "failed"
    assert {("nan-onset", "loss", 240), ("loss-spike", "loss", 150)} <= {f[:3] for f in found}
    return verdict, found


@pytest.mark.parametrize("write", [as_jsonl, as_text, as_trainer_state, as_events], ids=lambda w: w.__name__)
def test_another_format(tmp_path, expected, write):
    """CSV, JSON lines, text, trainer_state.json and event files of one training: the same findings at the same
    steps."""
    folder = tmp_path / "other"
    folder.mkdir()
    write(folder, columns(), range(300))
    assert answer(folder) == expected


def test_two_event_files(tmp_path, expected):
    """A log that continues in a second file is judged as one run."""
    folder = tmp_path / "two"
    folder.mkdir()
    as_events(folder, columns(), range(170))
    as_events(folder, columns(), range(170, 300), name="1700000900")
    assert answer(folder) == expected
