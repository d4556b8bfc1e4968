"""Every form of prefix, alone and stacked, and what must not be taken for one."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postmortem.readers.text import read_text
from postmortem.readers.text.lines.prefixes import NOTHING, Prefix, labelled, peel

FORMS = [
    ("[1,0]<stdout>:text", "text", {"rank": 0}),
    ("[main] INFO org.app.Trainer - text", "text", {"level": "INFO", "logger": "org.app.Trainer"}),
    ("12:01:03.402 [pool-1-thread-2] DEBUG o.a.Trainer:12 - text", "text", {"level": "DEBUG", "logger": "o.a.Trainer"}),
    ("2026-11-20 12:00:01,104 [MainThread] a.train INFO step 1", "step 1", {"logger": "a.train", "level": "INFO"}),
    ("2026-11-20 12:00:01,104 a.train INFO: mAP: 6", "mAP: 6", {"logger": "a.train", "level": "INFO"}),
    ("2026-11-20 12:00:01,104 a.train WARNING text", "text", {"logger": "a.train", "level": "WARNING"}),
    (
        "INFO 2026-11-20 12:00:01,104 | server.py:89 | text",
        "text",
        {"wall_time": 1795176001.104, "level": "INFO", "logger": "server.py:89"},
    ),
    ("INFO flwr 2026-11-20 12:00:01,104 | server.py:89 | text", "text", {"level": "INFO", "logger": "server.py:89"}),
    ("2026-11-20 12:00:01,104 - INFO - [10]\tauc: 0.9", "[10]\tauc: 0.9", {"level": "INFO", "logger": None}),
    ("2026-11-20 12:00:01 [INFO] [10] loss 0.9", "[10] loss 0.9", {"level": "INFO"}),
    ("WARNING: 2026-11-20 12:00:01 - text", "text", {"level": "WARNING", "wall_time": 1795176001.0}),
    ("[default1]:text", "text", {"local_rank": 1}),
    ("[trainer1]:text", "text", {"local_rank": 1}),
    ("[rank3]: Traceback (most recent call last):", "Traceback (most recent call last):", {"rank": 3}),
    ('[rank3]:   File "x.py", line 3', '  File "x.py", line 3', {"rank": 3}),
    ("[rank3]: ", "", {"rank": 3}),
    (
        "[E ProcessGroupNCCL.cpp:737] [Rank 1] text",
        "text",
        {"rank": 1, "level": "ERROR", "logger": "ProcessGroupNCCL.cpp:737"},
    ),
    (
        "[W1017 12:09:57.211698780 reducer.cpp:327] Warning: text",
        "Warning: text",
        {"level": "WARNING", "logger": "reducer.cpp:327"},
    ),
    ("W1120 20:33:57.237000 1574 torch/_dynamo/convert_frame.py:1994] [0/2] text", "text", {"level": "WARNING"}),
    ("I0316 10:34:38.268212 140096538502976 runner.py:408] text", "text", {"level": "INFO", "logger": "runner.py:408"}),
    ("(RayTrainWorker pid=4121, ip=10.0.0.3) text", "text", {"pid": 4121, "host": "10.0.0.3"}),
    ("2026-11-20T12:00:01.5Z stdout F text", "text", {"wall_time": 1795176001.5}),
    ("2026-11-20T12:00:01+02:00 text", "text", {"wall_time": 1795168801.0}),
    ("2026-11-20 12:00:01,104 - INFO - text", "text", {"wall_time": 1795176001.104, "level": "INFO"}),
    ("2026-11-20 12:00:01,104 - mmdet - INFO - text", "text", {"logger": "mmdet", "level": "INFO"}),
    ("2026-11-20 12:00:01 | INFO | train_inner | text", "text", {"logger": "train_inner", "level": "INFO"}),
    ("2026-11-20 12:00:00.123 | INFO     | module:func:12 - text", "text", {"logger": "module:func:12"}),
    (
        "[2026-11-20 12:00:07,037] [INFO] [timer.py:264:stop] text",
        "text",
        {"logger": "timer.py:264:stop", "level": "INFO"},
    ),
    ("[2026-11-20 12:00:07,037] [INFO] [logging.py:128:log_dist] [Rank 2] step=1", "step=1", {"rank": 2}),
    ("[2021-08-12 19:06:36,123][train_inner][INFO] - text", "text", {"logger": "train_inner", "level": "INFO"}),
    (
        "[2024-03-01 10:00:00,123] torch.distributed.run: [WARNING] text",
        "text",
        {"level": "WARNING", "logger": "torch.distributed.run"},
    ),
    ("11/20 20:35:01 - mmengine - INFO - text", "text", {"logger": "mmengine", "wall_time": None}),
    ("[11/20 12:00:00 d2.utils.events]: text", "text", {"logger": "d2.utils.events"}),
    ("[11/20 12:00:00] ppdet.engine INFO: text", "text", {"logger": "ppdet.engine", "level": "INFO"}),
    ("[titan] 2026-11-20 12:00:07,001 - root - INFO - text", "text", {"level": "INFO", "logger": "root"}),
    ("[node01] 2026-11-20 12:06:05,001 (trainer:762) INFO: text", "text", {"host": "node01", "level": "INFO"}),
    (
        "2026-11-20 12:01:13.001\tnid001234:0\tolmo.train:980\tINFO\ttext",
        "text",
        {"host": "nid001234", "local_rank": 0},
    ),
    ("[INFO|2026-11-20 12:00:01] file.py:45 >> text", "text", {"level": "INFO"}),
    ("[INFO|trainer.py:1740] 2022-11-20 12:00:01,000 >> text", "text", {"logger": "trainer.py:1740"}),
    (
        " [2026-11-20 12:01:13.000000] iteration       10/     150 |",
        "iteration       10/     150 |",
        {"wall_time": 1795176073.0},
    ),
    ("[rank7]:[E419 10:42:28.858931807 ProcessGroupNCCL.cpp:616] [Rank 7] text", "text", {"rank": 7, "level": "ERROR"}),
    ("ERROR 06-25 15:28:30 worker_base.py:148] text", "text", {"level": "ERROR", "logger": "worker_base.py:148"}),
    ("E0000 00:00:1742121287.5      46 cuda_blas.cc:1418] text", "text", {"wall_time": 1742121287.5, "level": "ERROR"}),
    ("[13/09/24 21:48:46] INFO   text", "text", {"level": "INFO", "wall_time": None}),
    (
        "10/27/2022 09:53:49 - INFO - torch.distributed - text",
        "text",
        {"wall_time": 1666864429.0, "logger": "torch.distributed"},
    ),
    ("Nov 20 12:00:01 node7 python[4711]: text", "text", {"host": "node7", "pid": 4711}),
    ("WARNING:root:text", "text", {"level": "WARNING", "logger": "root"}),
    ("[1,mpirank:5,algo-1]<stderr>:text", "text", {"rank": 5}),
    ("[W 2026-11-20 12:00:01,365] text", "text", {"level": "WARNING", "wall_time": 1795176001.365}),
    ("[worker 3] text", "text", {"host": "worker 3", "rank": None}),
    (">   text", "  text", {}),
    ("2026-11-20 12:00:01 10.0.0.33 [3] text", "text", {"task": 3, "host": "10.0.0.33"}),
    ("2026-11-20 12:00:01,365 (worker_7) : text", "text", {"rank": 7, "wall_time": 1795176001.365}),
    ("[task 2026-11-20T12:00:01Z] text", "text", {"wall_time": 1795176001.0}),
    (
        "2026-11-20 12:00:01,289 [steps/nnet3/train.py:493 - train - INFO ] text",
        "text",
        {"level": "INFO", "logger": "steps/nnet3/train.py:493"},
    ),
    (
        "LOG (nnet3-train[5.5.2~1-8cb]:Train():nnet-training.cc:34) text",
        "text",
        {"level": "INFO", "logger": "Train():nnet-training.cc:34"},
    ),
    ("VLOG[1] (train-ctc:Report():ctc-loss.cc:226) text", "text", {"logger": "Report():ctc-loss.cc:226"}),
    ("03 Jul 18:05  update 250 nll -0.6", "update 250 nll -0.6", {"wall_time": None}),
    ("11/20 20:00:09 it=0 loss=14.1", "it=0 loss=14.1", {"wall_time": None}),
    ("11-20 20:00:09.125 | INFO | it=0 loss=14.1", "it=0 loss=14.1", {"level": "INFO"}),
    ("[11/20 20:00:09] step 3 loss 14.1", "step 3 loss 14.1", {"logger": None}),
    ("[11/20 20:00:09 d2.utils.events]:  eta: 0:10:00", " eta: 0:10:00", {"logger": "d2.utils.events"}),
    ("[3-Jul-2026 18:05:07] INFO: loss 2", "loss 2", {"level": "INFO", "wall_time": 1783101907.0}),
]


@pytest.mark.parametrize(("line", "rest", "content"), FORMS, ids=[f[0][:40] for f in FORMS])
def test_a_form_is_peeled_and_read(line: str, rest: str, content: dict[str, object]) -> None:
    """Each usual prefix is stripped whole, and its content is typed."""
    text, prefix = peel(line)
    assert text == rest
    assert {key: getattr(prefix, key) for key in content} == content


@pytest.mark.parametrize(
    "line",
    [
        "step 3 loss 4.1",
        "1: foo",
        "[1,  2000] loss: 2.173",
        "[batch=10/1000]:",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step.",
        "[0]:",
        "[1]: params[2] in this process",
        '  File "x.py", line 3',
        "[Eval batch=50/50] Eval on eval data:",
        "",
    ],
)
def test_content_stays(line: str) -> None:
    """Brackets and numbers that belong to the text are left alone."""
    assert peel(line) == (line, NOTHING)


def test_layers_stack() -> None:
    """Task number, role, rank and C++ header come off one after the other."""
    text, prefix = peel(
        "4: [default1]:[rank5]:[E1120 20:27:21.415 ProcessGroupNCCL.cpp:629] [Rank 5] text", labels=True, year=2026
    )
    assert text == "text"
    assert (prefix.task, prefix.local_rank, prefix.rank, prefix.best_rank) == (4, 1, 5, 5)
    assert prefix.wall_time == 1795206441.415


def test_labels_are_a_property_of_the_file() -> None:
    """Task numbers and node names count only where most lines have one; a numbered list has none."""
    assert labelled(
        [
            " 0: step 1",
            " 1: step 1",
            "10: step 1",
            " 0: step 2",
            " 1: step 2",
            "10: step 2",
            "srun: error: node1: task 3: Killed",
        ]
    )
    assert labelled(["node-1: a", "node-2: b", "node-1: c", "node-2: d"])
    assert not labelled(["1: first", "2: second", "3: third", "4: fourth", "5: fifth"])
    assert not labelled(["loss: 3", "loss: 2", "loss: 1", "loss: 1"])


def test_an_impossible_date_has_no_time() -> None:
    """A date outside the calendar is taken off, and its time is unknown."""
    assert peel("2026-13-41 12:00:01 text")[1].wall_time is None


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="[]():|-,. 0123456789abIEWrank\t\x00é", max_size=80), st.booleans())
def test_any_text_gives_a_suffix_of_itself(line: str, labels: bool) -> None:
    """Whatever the line, what is left is its end."""
    assert line.endswith(peel(line, labels=labels)[0])


@pytest.mark.parametrize(
    ("clock", "hour"), [("12:05:01 AM", 0), ("11:05:01 AM", 11), ("12:05:01 PM", 12), ("01:05:01 PM", 13)]
)
def test_a_clock_of_twelve_hours(clock: str, hour: int) -> None:
    """``%m/%d %I:%M:%S %p``, as searches for architectures print it."""
    text, prefix = peel(f"11/20 {clock} train 000 2.3 31.2 80.1", year=2026)
    assert text == "train 000 2.3 31.2 80.1"
    assert prefix.wall_time == datetime(2026, 11, 20, hour, 5, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("date", ["20243-01-01 00:00:30", "0024-01-01 00:00:30", "9024-01-01 00:00:30"])
def test_an_impossible_date_costs_only_itself(date: str, tmp_path: Path) -> None:
    """One damaged time stamp, between rows that are read in bulk, leaves its row without a time and all steps."""
    rows = [f"[2024-01-01 00:{i // 60:02d}:{i % 60:02d}] step {i} loss: {2 - i / 400:.4f}\n" for i in range(300)]
    rows[30] = rows[30].replace("2024-01-01 00:00:30", date)
    (tmp_path / "train.out").write_text("".join(rows))
    reading = read_text(tmp_path / "train.out")
    assert (reading.points.step.tolist(), reading.problems) == (list(range(300)), [])
    assert np.flatnonzero(~np.isfinite(reading.points.wall_time)).tolist() == [30]


def test_processes_in_brackets() -> None:
    """Numbers in brackets are processes if they come again and again in varying order; epochs and batches do not."""
    order = [0, 2, 1, 1, 0, 2, 2, 0, 1, 0, 1, 2, 1, 2, 0, 2, 1, 0]
    assert labelled([f"[{rank}] step {i // 3} loss 0.5" for i, rank in enumerate(order)])
    assert labelled([f"[{rank}] step {i // 2} loss 0.5" for i, rank in enumerate([0, 1, 1, 0, 0, 1, 0, 1, 1, 0])])
    assert not labelled([f"[{i // 10}] step {i} loss 0.5" for i in range(50)])
    assert not labelled([f"[{i}] loss 0.5" for i in range(50)])
    assert not labelled([f"[{i % 5}] loss 0.5" for i in range(50)])
    assert not labelled([f"[{i // 2 % 5}] {'val' if i % 2 else 'train'} loss 0.5" for i in range(100)])
    assert peel("[2] 02h02:36  pas 15", labels=True) == ("02h02:36  pas 15", Prefix(task=2))
