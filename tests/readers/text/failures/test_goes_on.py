"""Failures that the program, or the search that runs it, survives: said in words, well before the training that follows
shows it."""

from collections.abc import Callable

import pytest

from postmortem.readers.text.failures import EventReading, find_events

Scan = Callable[[str], EventReading]
STEPS = "".join(f"step {n} loss {3 / n:.4f}\n" for n in range(1, 60))
MORE = "".join(f"step {n} loss {3 / n:.4f}\n" for n in range(60, 80))
NEXT = "".join(f"step {n} loss {2.7 / n:.4f}\n" for n in range(1, 30))
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 "
    "GiB of which 1.20 GiB is free.\n"
)
NO_MEMORY = "MemoryError: Unable to allocate 3.00 GiB for an array with shape (100, 4096) and data type float64\n"


def traceback(last: str, function: str = "objective") -> str:
    return f'Traceback (most recent call last):\n  File "/home/me/train.py", line 88, in {function}\n    step()\n{last}'


@pytest.fixture
def scan() -> Scan:
    """Reads a log given as text."""

    def read(text: str) -> EventReading:
        return find_events(enumerate(text.split("\n"), 1), path="train.out", unterminated=not text.endswith("\n"))

    return read


OPTUNA = (
    "[W 2026-01-05 10:00:00,000] Trial 3 failed with parameters: {'lr': 0.1} because of the following error: "
    "ValueError('bad width').\n"
)
FAILED = "[W 2026-01-05 10:00:00,001] Trial 3 failed with value None.\n"


@pytest.mark.parametrize(
    "text",
    [
        OPTUNA + traceback("ValueError: bad width\n") + FAILED + NEXT,
        traceback(OOM) + FAILED + NEXT,
        traceback(NO_MEMORY) + FAILED,
        traceback(
            "ray.exceptions.RayTaskError(ValueError): ray::train() (pid=7)\nValueError: bad width\n", "resolve_future"
        )
        + "Trial train_9f3b_00003 errored after 2 iterations at 2026-01-05 10:00:00.\n"
        + NEXT,
        traceback("ValueError: bad width\n")
        + "wandb: ERROR Run 8d2k errored:\nwandb: Agent Starting Run: 2kd8 with config:\n"
        + NEXT,
        traceback("ValueError: bad width\n", "run_one") + "=== Trial 4/10: width=64 ===\n" + NEXT,
        traceback("ValueError: bad width\n", "<module>") + "Starting experiment with width=64\n" + NEXT,
        OOM + "batch size too large, trying 16\n" + NEXT,
        OOM + "Batch size 64 failed, trying batch size 32\n" + NEXT,
        traceback(OOM, "find_executable_batch_size") + "Decreasing batch size to: 16.\n" + MORE,
        traceback(NO_MEMORY, "load") + "falling back to memory-mapped reading\n" + MORE,
        "could not load part 7, skipping it\n" + traceback("OSError: truncated file\n", "load") + MORE,
        "CUDA out of memory in step 12, skipping this batch\n" + MORE,
        "CUDA out of memory detected. The microbatch size will be decreased from 8 -> 4.\n" + MORE,
    ],
)
def test_what_the_program_goes_on_after_is_no_crash(scan: Scan, text: str) -> None:
    """The next trial, a smaller batch, another way: a warning that says so, and the run has not failed."""
    reading = scan(STEPS + text)
    assert reading.ended is None
    assert {e.severity for e in reading.events} <= {"warning", "info"}
    assert any("goes_on" in e.fields for e in reading.events)


def test_the_last_trial_that_nobody_caught_is_the_crash(scan: Scan) -> None:
    """The failure of a trial that ended the search is an event of its own, at its own line; those before it stay
    warnings."""
    text = (
        STEPS
        + traceback("ValueError: bad width\n")
        + FAILED
        + NEXT
        + traceback("ValueError: bad width\n")
        + FAILED.replace("3", "4")
    )
    reading = scan(text + traceback("ValueError: bad width\n", "<module>"))
    assert reading.ended == "crashed"
    (crash,) = [e for e in reading.events if e.severity == "error"]
    assert crash.line == text.count("\n") + 4
    (warned,) = [e for e in reading.events if e.severity == "warning"]
    assert (warned.line, warned.fields["count"]) == (63, 2)


@pytest.mark.parametrize("words", ["", "Skipping epoch-end evaluation\n", "batch size too large, trying 16\n"])
def test_a_program_that_died_must_have_been_started_again(scan: Scan, words: str) -> None:
    """What the stack shows to be caught by nobody ended the program, whatever is said behind it, unless training
    follows."""
    died = traceback(OOM, "<module>")
    assert scan(STEPS + died + words).ended == "out-of-memory"
    assert scan(STEPS + died + words + MORE).ended == (None if words else "out-of-memory")


@pytest.mark.parametrize(
    "words",
    [
        "Try reducing batch size.",
        "Consider using CPU or skipping the largest samples",
        "You can resume by falling back to fp32",
    ],
)
def test_advice_behind_a_failure_goes_nowhere(scan: Scan, words: str) -> None:
    """What a program tells its user to do is not what it does."""
    assert scan(STEPS + traceback(OOM, "train_step") + words + "\n").ended == "out-of-memory"
    assert scan(STEPS + f"RuntimeError: out of memory. {words}\n").ended == "crashed"


def test_another_rank_that_goes_on_saves_nobody(scan: Scan) -> None:
    """Words of one rank say nothing about the failure of another."""
    text = "".join(f"[rank{n % 2}]: {line}\n" for n, line in enumerate(STEPS.splitlines()))
    reading = scan(text + "[rank1]: ValueError: bad width\n[rank0]: retrying the connection to rank 1\n")
    assert [(e.kind, e.severity, e.rank) for e in reading.events] == [("generic-exception", "error", 1)]
    assert reading.ended == "crashed"


def test_words_of_another_do_not_hide_why_a_process_died(scan: Scan) -> None:
    """Where a launcher reports a death and no training follows, the failure before it is the cause, whatever somebody
    said of going on."""
    text = STEPS + traceback("ValueError: bad width\n") + "retrying the connection\n"
    report = "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.\n"
    assert [(e.kind, e.severity) for e in scan(text + report).events] == [
        ("generic-exception", "error"),
        ("child-exit", "info"),
    ]
    assert scan(text + MORE + report).events[0].severity == "warning"


def test_words_without_a_failure_are_no_event(scan: Scan) -> None:
    assert scan(STEPS + "Skipping this sample\nTrial 3 failed with value None.\nretrying\n" + MORE).events == []


def test_numbers_of_two_ranks_are_never_mixed(scan: Scan) -> None:
    """An out-of-memory of several ranks is one event with the numbers of the first; what only another one says is not
    among them."""
    longer = (
        OOM.replace("1.20", "1.40").replace("GPU 0", "GPU 1").rstrip()
        + " Of the allocated memory 60.00 GiB is allocated by PyTorch.\n"
    )
    for first, second in (("[rank0]: ", "[rank1]: "), ("", "")):
        (event,) = scan(STEPS + first + OOM + second + longer).events
        assert (event.fields["gpu"], event.fields["free_gib"]) == (0, 1.2)
        assert "allocated_gib" not in event.fields


@pytest.mark.parametrize(
    "line",
    [
        "NOTE: if you see CUDA out of memory errors, reduce --batch_size",
        "Reduce the batch size to avoid CUDA out of memory.",
        "If the process is hanging, set NCCL_DEBUG=INFO",
        "Mixed settings may cause the error CUDA error: an illegal memory access was encountered",
        '    "OOMKilled": false,',
        "Found 0 duplicate images",
        "Found 0 files to delete",
        "Loading 0 of 5 shards",
        "cudnn version check: CUDNN_STATUS_SUCCESS",
        "INFO: the input must be on GPU for the fast path",
        "max_restarts=3: the agent will restart worker group on failure",
        "Segmentation fault handler installed",
        "0 CUDA memory allocation retries.",
        "straggler detection on rank 0 enabled",
        "FlightRecorder enabled with a buffer of 2000",
        "n1:17:17 [0] NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'",
    ],
)
def test_what_may_happen_or_did_not_is_no_event(scan: Scan, line: str) -> None:
    """Advice before the fact, counters at 0 and settings are not what they speak of."""
    assert scan(STEPS + line + "\n" + MORE).events == []


def test_advice_that_quotes_what_happened_is_a_report(scan: Scan) -> None:
    """A number in the message is of something that happened, whatever words stand before it."""
    line = (
        "ERROR: training failed. If this comes again, use fewer samples: CUDA out of memory. Tried to allocate "
        "2.00 GiB\n"
    )
    (event,) = scan(STEPS + line).events
    assert (event.kind, event.severity) == ("cuda-oom", "error")


def test_a_missing_gpu_that_the_program_does_without(scan: Scan) -> None:
    (event,) = scan("No CUDA GPUs are available, using CPU\n" + STEPS).events
    assert event.severity == "warning"


def test_an_environment_that_was_not_activated(scan: Scan) -> None:
    """conda's own words look like an exception, but the script goes on: they explain the failure that follows."""
    said = "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.\n"
    assert [(e.kind, e.severity) for e in scan(said + STEPS).events] == [("conda-activate", "warning")]
    reading = scan(said + traceback("ModuleNotFoundError: No module named 'torch'\n", "<module>"))
    assert [(e.kind, e.severity) for e in reading.events] == [
        ("conda-activate", "warning"),
        ("module-missing", "error"),
    ]


@pytest.mark.parametrize(
    "note",
    [
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
        "ValueError: bad sample 17, skipping it",
    ],
)
def test_a_flood_does_not_hide_the_crash_behind_it(scan: Scan, note: str) -> None:
    """However often a note came, each is counted, and what ended the run is kept."""
    reading = scan("".join(f"step {n} loss 1.5\n{note}\n" for n in range(21_000)) + traceback(OOM, "<module>"))
    assert reading.ended == "out-of-memory"
    assert (reading.events[-1].kind, reading.events[-1].line) == ("cuda-oom", 42_004)
    assert sum(event.fields["count"] for event in reading.events[:-1]) == 21_000
