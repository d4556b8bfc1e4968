"""Tracebacks in logs: one event each, however they are printed."""

from collections.abc import Callable
from typing import Any

import pytest

from postmortem.core.model import Event
from postmortem.readers.text.failures import EventReading, find_events

Scan = Callable[[str], EventReading]


@pytest.fixture
def scan() -> Scan:
    """Reads a log given as text."""

    def read(text: str) -> EventReading:
        return find_events(enumerate(text.split("\n"), 1), path="train.out")

    return read


def only(reading: EventReading) -> Event:
    (event,) = reading.events
    return event


PLAIN = """step 1 loss 2.0
Traceback (most recent call last):
  File "/home/me/project/train.py", line 30, in <module>
    main()
  File "/home/me/project/model.py", line 12, in forward
    return self.fc(x)
  File "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 2048x10)
"""


def test_a_traceback_is_one_event_at_its_last_line(scan: Scan) -> None:
    """Class, message, line, the innermost own frame with its code, and the numbers of the message."""
    event = only(scan(PLAIN))
    assert (event.kind, event.severity, event.line, event.message) == (
        "mat-shapes",
        "error",
        10,
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 2048x10)",
    )
    assert event.fields["frame"] == {
        "file": "/home/me/project/model.py",
        "line": 12,
        "function": "forward",
        "code": "return self.fc(x)",
    }
    assert event.fields["a_cols"] == 512
    assert event.fields["first_line"] == 2
    assert scan(PLAIN).ended == "crashed"


def test_an_unknown_exception_is_reported_too(scan: Scan) -> None:
    """Without an entry in the catalogue it is a generic exception, with class and message."""
    event = only(
        scan(
            'Traceback (most recent call last):\n  File "train.py", line 3, in f\n    g()\nmypkg.errors.OddThing: at '
            "index 17\n"
        )
    )
    assert event.kind == "generic-exception"
    assert event.fields["exception"] == "OddThing"
    assert event.fields["exception_class"] == "mypkg.errors.OddThing"
    assert event.fields["exception_message"] == "at index 17"


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "AssertionError", "EOFError"])
def test_an_exception_without_a_message(scan: Scan, name: str) -> None:
    """The class alone is a last line."""
    event = only(scan(f'Traceback (most recent call last):\n  File "train.py", line 3, in f\n    g()\n{name}\n'))
    assert event.line == 4
    assert event.message == name


def test_the_last_line_counts_without_a_header(scan: Scan) -> None:
    """A log that kept only `Class: message` still names the failure."""
    event = only(scan("step 3 loss 1.0\n[rank2]: ValueError: bad sample at index 17\n"))
    assert (event.kind, event.rank, event.line) == ("generic-exception", 2, 2)


def test_a_header_in_the_middle_of_a_line(scan: Scan) -> None:
    """print() had left a line open when the traceback began."""
    event = only(
        scan('pass 0 Traceback (most recent call last):\n  File "train.py", line 3, in f\n    g()\nValueError: x\n')
    )
    assert event.line == 4
    assert event.fields["first_line"] == 1


def test_chained_causes_keep_their_order(scan: Scan) -> None:
    """The line is that of the last block, the kind and the frame are nearest to the cause."""
    text = """Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1291, in _try_get_data
    data = self._data_queue.get(timeout=timeout)
RuntimeError: DataLoader worker (pid 918) is killed by signal: Killed.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/dl.py", line 14, in <module>
    for b in loader: pass
RuntimeError: DataLoader worker (pid(s) 918) exited unexpectedly
"""
    event = only(scan(text))
    assert (event.kind, event.line) == ("dl-worker-killed", 11)
    assert event.fields["signal"] == "Killed"
    assert event.fields["causes"] == ["RuntimeError: DataLoader worker (pid 918) is killed by signal: Killed."]
    assert event.fields["frame"]["file"] == "/home/me/dl.py"


def test_the_exception_inside_a_worker_is_the_cause(scan: Scan) -> None:
    """`Caught KeyError in DataLoader worker`: the original traceback names the frame and the class."""
    text = """Traceback (most recent call last):
  File "/home/me/train.py", line 20, in <module>
    for batch in loader:
  File "/opt/lib/python3.11/site-packages/torch/_utils.py", line 794, in reraise
    raise exception
KeyError: Caught KeyError in DataLoader worker process 3.
Original Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/me/data.py", line 41, in __getitem__
    return row["label"]
KeyError: 'label'

"""
    event = only(scan(text))
    assert (event.kind, event.line) == ("dl-caught", 6)
    assert (event.fields["exception"], event.fields["worker"], event.fields["cause_kind"]) == (
        "KeyError",
        3,
        "not-found",
    )
    assert event.fields["causes"] == ["KeyError: 'label'"]
    assert event.fields["frame"]["line"] == 41


def test_a_message_of_several_lines(scan: Scan) -> None:
    """Details are found in the lines after the first."""
    text = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    model.load_state_dict(state)
RuntimeError: Error(s) in loading state_dict for GPT:
\tMissing key(s) in state_dict: "wte.weight", "wpe.weight".
\tsize mismatch for head: copying a param with shape torch.Size([100, 8]) from checkpoint, the shape in current model is torch.Size([104, 8]).
"""  # noqa: E501
    event = only(scan(text))
    assert event.kind == "ckpt-keys"
    assert event.fields["missing"] == ["wte.weight", "wpe.weight"]
    assert event.fields["model_shape"] == [104, 8]


def _rank_lines(rank: int, index: int) -> list[str]:
    return [
        f"[rank{rank}]: Traceback (most recent call last):",
        f'[rank{rank}]:   File "/home/me/train.py", line 8, in <module>',
        f"[rank{rank}]:     step()",
        f"[rank{rank}]: ValueError: Target {index} is bad",
    ]


def test_interleaved_ranks_are_put_in_order(scan: Scan) -> None:
    """Lines of several ranks in turn: one event, all ranks, the frame whole."""
    lines = [line for group in zip(*(_rank_lines(r, r + 5) for r in (3, 0, 1)), strict=True) for line in group]
    event = only(scan("\n".join(lines)))
    assert (event.rank, event.line) == (3, 10)
    assert event.fields["ranks"] == [0, 1, 3]
    assert event.fields["count"] == 3
    assert event.fields["frame"]["line"] == 8


def test_processes_without_a_rank_prefix_write_over_one_another(scan: Scan) -> None:
    """The same exception k times in mixed frames is one event with its count."""
    block = ['  File "main.py", line 255, in evaluation', "    outputs = model(**batch)"]
    header = "Traceback (most recent call last):"
    error = (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:{} and cpu!"
    )
    lines = [
        header,
        block[0],
        header,
        block[0],
        block[1],
        block[1],
        error.format(1),
        *block,
        error.format(2),
        header,
        *block,
        error.format(3),
    ]
    event = only(scan("\n".join(lines)))
    assert (event.kind, event.line, event.fields["count"]) == ("device-mismatch", 7, 3)
    assert event.fields["frame"]["file"] == "main.py"


def test_logger_prefixes_on_every_line(scan: Scan) -> None:
    """A traceback that went through a logger is read the same."""
    prefix = "2026-11-20 12:00:01,104 - ERROR - "
    text = "\n".join(prefix + line for line in PLAIN.splitlines()[1:])
    event = only(scan(text))
    assert event.kind == "mat-shapes"
    assert event.wall_time == 1795176001.104


def test_srun_labels_give_the_rank(scan: Scan) -> None:
    """`srun -l` numbers the tasks: one GPU per task makes that the rank."""
    lines = [f"{task}: step {step} loss 1.0" for step in range(9) for task in (0, 1, 2)]
    lines += [f"2: {line}" for line in PLAIN.splitlines()[1:]]
    assert only(scan("\n".join(lines))).rank == 2


def test_a_traceback_that_the_file_cuts(scan: Scan) -> None:
    """Frames without a last line are an event that says so."""
    reading = scan('Traceback (most recent call last):\n  File "train.py", line 3, in f\n    g()')
    assert only(reading).fields["cut"] is True
    assert reading.ended == "cut"


@pytest.mark.parametrize(
    "line",
    [
        "L2Error: 0.31",
        "ValidationError: 12",
        "Validation Error: 0.3 at step 5",
        "UserWarning: this is only a warning",
        "INFO: the parameter error_rate is 0.1",
        "Loading weights... Error rate so far 0.1",
        "2026-11-20 12:00:01 | INFO | x | RuntimeError: retrying after a timeout",
    ],
)
def test_metrics_and_words_are_no_exceptions(scan: Scan, line: str) -> None:
    """A metric named Error, a warning and a logged remark are not failures."""
    assert scan(f"step 1 loss 1.0\n{line}\nstep 2 loss 0.9\n").events == []


def test_an_optional_import_that_failed_is_a_note(scan: Scan) -> None:
    """The traceback is printed, training goes on: severity info, the run did not crash."""
    start = (
        'ERROR:root:Unable to import wandb.\nTraceback (most recent call last):\n  File "log.py", line 27, in '
        "<module>\n    import wandb\n"
    )
    reading = scan(
        start
        + "ModuleNotFoundError: No module named 'wandb'\n"
        + "".join(f"step {i} loss {2 / (i + 1)}\n" for i in range(30))
    )
    event = only(reading)
    assert event.severity == "info"
    assert event.fields["went_on"] is True
    assert reading.ended is None


def test_a_caught_failure_long_before_the_end_is_a_note(scan: Scan) -> None:
    """An exception after which training went on for long lost nothing; what the buffer held proves nothing."""
    caught = PLAIN + "".join(f"step {i} loss 1.25 lr 0.1\n" for i in range(600))
    assert only(scan(caught)).severity == "info"
    flushed = PLAIN + "".join(f"step {i} loss 1.25 lr 0.1\n" for i in range(60))
    assert only(scan(flushed)).severity == "error"


def test_the_message_does_not_swallow_the_next_lines(scan: Scan) -> None:
    """What the scheduler prints after the message is an event of its own."""
    reading = scan(
        PLAIN + "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-11-20T12:45:36 DUE TO TIME LIMIT ***\n"
    )
    assert [e.kind for e in reading.events] == ["mat-shapes", "slurm-time-limit"]
    assert [e.severity for e in reading.events] == ["error", "info"]
    assert reading.facts["job_id"] == "77"


def test_redrawn_bars_and_colours_around_it(scan: Scan) -> None:
    """A traceback behind the states of a bar and colour codes keeps its physical line number."""
    bar = "".join(f"\r{i}%|#   | {i}/100 [00:01<00:09, 9.9it/s]" for i in range(90))
    event = only(
        scan(
            "first\n"
            + bar
            + "\r\x1b[31mTraceback (most recent call last):\x1b[0m\n"
            + "\n".join(PLAIN.splitlines()[2:])
        )
    )
    assert (event.kind, event.line) == ("mat-shapes", 10)


def test_events_are_plain_json(scan: Scan) -> None:
    """Fields hold JSON types only."""

    def check(value: Any) -> None:
        if isinstance(value, dict):
            assert all(isinstance(k, str) for k in value)
            for v in value.values():
                check(v)
        elif isinstance(value, list):
            for v in value:
                check(v)
        else:
            assert value is None or isinstance(value, (str, int, float, bool))

    for event in scan(PLAIN).events:
        check(event.fields)


def test_a_traceback_inside_of_something_else(scan: Scan) -> None:
    """All its lines are indented by the same blanks more: the last of them is still its exception."""
    text = "".join(f"    {line}\n" for line in PLAIN.splitlines()[1:])
    event = only(scan("worker 3 said:\n" + text + "worker 3 is gone\n"))
    assert (event.kind, event.line) == ("mat-shapes", 10)
    assert event.fields["frame"]["line"] == 12


def _of_kind(reading: EventReading, kind: str) -> Event:
    (event,) = [e for e in reading.events if e.kind == kind]
    return event


def test_a_traceback_in_a_box_has_frames(scan: Scan) -> None:
    """rich draws tracebacks into boxes, breaks long paths over rows and leaves the class outside."""
    box = [
        "╭────────────── Traceback (most recent call last) ───────────────╮",
        "│ /home/me/run.py:5 in <module>                                  │",
        "│                                                                │",
        "│ ❱ 5 main()                                                     │",
        "│ /home/me/a-long-folder/and-another-one/with/many/more/fol      │",
        "│ ders/net.py:26 in forward                                      │",
        "│   25 │   y = 1                                                 │",
        "│ ❱ 26 │   return self.head(x)                                   │",
        "╰────────────────────────────────────────────────────────────────╯",
        "ValueError: bad head",
    ]
    event = _of_kind(scan("\n".join(box) + "\n"), "generic-exception")
    frame = {
        "file": "/home/me/a-long-folder/and-another-one/with/many/more/folders/net.py",
        "line": 26,
        "function": "forward",
    }
    assert event.fields["frame"] == frame | {"code": "return self.head(x)"}
    assert event.line == len(box)


def test_a_class_of_python_may_be_in_small_letters(scan: Scan) -> None:
    """cv2.error and struct.error end a traceback like any other class."""
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 3, in load\n    x = unpack(b)\n'
        "struct.error: unpack requires a buffer of 4 bytes\n"
    )
    assert _of_kind(scan(text), "data-corrupt").fields["exception"] == "error"


def test_where_it_was_raised_tells_a_worker_from_a_file(scan: Scan) -> None:
    """EOFError from multiprocessing is a lost worker, from anywhere else an empty file."""
    text = 'Traceback (most recent call last):\n  File "{}", line 159, in read\n    raise EOFError\nEOFError\n'
    assert (
        _of_kind(scan(text.format("/usr/lib/python3.12/multiprocessing/reduction.py")), "worker-connection").severity
        == "error"
    )
    assert _of_kind(scan(text.format("/home/me/load.py")), "ckpt-corrupt").severity == "error"


def test_what_an_abort_says_is_the_failure(scan: Scan) -> None:
    """Where nothing else is said, the text of what() is looked up."""
    text = (
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  CUDA error: an illegal "
        "memory access was encountered\n"
    )
    event = _of_kind(scan(text), "illegal-access")
    assert (event.line, event.severity) == (1, "error")


def test_frames_count_where_the_header_is_lost(scan: Scan) -> None:
    """A log that begins in the middle of a traceback, or a header that a terminal broke."""
    tail = PLAIN.split("(most recent call last):\n")[1]
    event = _of_kind(scan("racking:\n" + tail), "mat-shapes")
    assert event.fields["frame"] == {"file": "/home/me/project/model.py", "line": 12, "function": "forward", "code": ""}


def test_a_rank_may_stand_behind_a_bar_that_did_not_end_its_line(scan: Scan) -> None:
    """The header stands in the line of the bar, the frames behind the rank alone."""
    header, *lines = PLAIN.splitlines()[1:]
    text = f" 16%|#6   | 16/100 [00:05<00:27,  3.1it/s][rank3]: {header}\n" + "".join(
        f"[rank3]: {line}\n" for line in lines
    )
    event = only(scan(text))
    assert (event.rank, event.kind, event.fields["frame"]["line"]) == (3, "mat-shapes", 12)


def test_an_unknown_exception_has_advice_for_its_class(scan: Scan) -> None:
    """What no entry knows is advised on by class and shape of the message; a class of one's own is not."""
    told = only(
        scan(
            PLAIN.replace(
                "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 2048x10)",
                "NameError: name 'x' is not defined",
            )
        )
    )
    assert told.kind == "generic-exception"
    assert "never assigned" in told.fields["advice"][0]
    own = only(
        scan(
            PLAIN.replace(
                "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 2048x10)", "mylib.OddError: bad"
            )
        )
    )
    assert own.kind == "generic-exception"
    assert "advice" not in own.fields


@pytest.mark.parametrize(("place", "line"), [("/opt/NeMo", 9), ("/opt/megatron-lm", 9), ("/home/me/megatron-lm", 71)])
def test_what_a_container_brings_is_not_your_code(scan: Scan, place: str, line: int) -> None:
    """A framework that lies under /opt was installed there; a copy at home is worked on."""
    frames = (
        f'  File "/home/me/tune.py", line 9, in run\n    train()\n  File "{place}/core/loop.py", line 71, in '
        "step\n    go()\n"
    )
    reading = scan(f"Traceback (most recent call last):\n{frames}ValueError: no such mask\n")
    assert reading.events[0].fields["frame"]["line"] == line
