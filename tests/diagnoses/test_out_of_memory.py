"""The numbers of an out-of-memory message, and its step, show what used the memory; advice that they do not support
does not come first."""

from __future__ import annotations

import numpy as np
import pytest

from postmortem.core.model import Event
from postmortem.diagnoses.out_of_memory import OutOfMemory
from tests.diagnoses.cases import quiet, tells


@tells(
    OutOfMemory,
    name="crash: cuda-oom",
    root="crash",
    step=399,
    ended="out-of-memory",
    event_list=[
        Event(kind="cuda-oom", severity="error", message="CUDA out of memory", file="train.out", line=9, step=399)
    ],
)
def no_room_on_the_gpu(course):
    return course()


@quiet(
    OutOfMemory,
    ended="out-of-memory",
    event_list=[
        Event(
            kind="slurm-oom-kill",
            severity="error",
            message="Detected 1 oom_kill event",
            file="train.err",
            line=1,
            step=399,
        )
    ],
)
def no_room_on_the_host(course):
    """Host memory has another diagnosis than GPU memory."""
    return course()


HEAD = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "


@pytest.mark.parametrize(
    ("message", "fields", "evidence", "advice"),
    [
        (
            HEAD
            + "98.00 MiB. GPU 5 has a total capacity of 15.00 GiB of which 80.00 MiB is free. Process 30 has 11.21 "
            "GiB memory in use. "
            "Process 31 has 3.46 GiB memory in use. Of the allocated memory 10.00 GiB is allocated by PyTorch, and "
            "150.00 MiB is reserved",
            {"requested": 98, "total": 15 << 10, "free": 80, "allocated": 10 << 10, "reserved_unallocated": 150},
            "other processes hold 3.46 GiB of the 15 GiB of GPU 5: process 31 3.46 GiB",
            "free GPU 5",
        ),
        (
            HEAD + "2.00 GiB. GPU 0 has a total capacity of 80.00 GiB. Including non-PyTorch memory, this process has "
            "79.00 GiB memory in use.",
            {
                "requested": 2048,
                "total": 80 << 10,
                "free": 512,
                "in_use": 79 << 10,
                "allocated": 60 << 10,
                "reserved_unallocated": 18 << 10,
            },
            "18 GiB is reserved by PyTorch, but in pieces too small for the requested 2 GiB: fragmentation",
            "PYTORCH_CUDA_ALLOC_CONF",
        ),
        (
            HEAD + "20.00 MiB (GPU 0; 10.00 GiB total capacity; 8.00 GiB already allocated; 9.00 MiB free; 9.00 GiB "
            "reserved in total by PyTorch)",
            {"requested": 20, "total": 10 << 10, "free": 9, "allocated": 8 << 10, "reserved": 9 << 10},
            "1 GiB is reserved by PyTorch, but in pieces too small",
            "PYTORCH_CUDA_ALLOC_CONF",
        ),
        (
            HEAD + "3.00 GiB (GPU 0; 80.00 GiB total capacity; 27.00 GiB already allocated; 0.50 GiB free; 30.00 GiB "
            "reserved in total by PyTorch)",
            {"requested": 3072, "total": 80 << 10, "free": 512, "allocated": 27 << 10, "reserved": 30 << 10},
            "other processes likely hold 49.5 GiB of the 80 GiB of GPU 0: everything except what this process "
            "reserved and what is free",
            "free GPU 0",
        ),
        (
            HEAD + "512.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 70.00 GiB is free.",
            {"requested": 512 << 10, "total": 80 << 10, "free": 70 << 10},
            "one tensor of 512 GiB is larger than all memory of GPU 0 (80 GiB)",
            "check the shapes",
        ),
        (
            HEAD
            + "2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 39.00 GiB is free. Process 30 has 20.00 GiB "
            "memory in use. "
            "Including non-PyTorch memory, this process has 20.00 GiB memory in use. 20.00 GiB allowed;",
            {
                "requested": 2048,
                "total": 80 << 10,
                "free": 39 << 10,
                "in_use": 20 << 10,
                "allowed": 20 << 10,
                "allocated": 19 << 10,
            },
            "this process may use 20 GiB of the 80 GiB of GPU 0 (39 GiB of the GPU is free): it reached its own limit",
            "raise or remove torch.cuda.set_per_process_memory_fraction",
        ),
        (
            HEAD + "2.00 GiB.",
            {"requested": 2048},
            "memory use (memory_gb) stays between 9.9",
            "limit the length of the longest batch",
        ),
    ],
    ids=["shared", "fragmented", "fragmented-older-wording", "shared-older-wording", "too-large", "own-limit", "late"],
)
def test_the_numbers_of_the_message(story, course, message, fields, evidence, advice):
    """The reason that explains the most memory comes first, with its numbers."""
    known = {f"{name}_bytes": size << 20 for name, size in fields.items()}
    gpu = {"gpu": int(message.split("GPU ")[1][0])} if "GPU" in message else {}
    event = Event(
        kind="cuda-oom", severity="error", message=message, file="train.out", line=812, step=399, fields=known | gpu
    )
    found = story(course(), event_list=[event], ended="out-of-memory").diagnosis
    assert found.name == "crash: cuda-oom"
    assert found.evidence_for[0].startswith(evidence)
    assert evidence[1:] in found.summary.split(". The program failed")[0]
    assert found.next[0].startswith(advice)
    assert len(set(found.next)) == len(found.next)


def test_in_the_first_steps(story):
    """What fails before anything was trained does not fit."""
    event = Event(kind="cuda-oom", severity="error", message="CUDA out of memory", file="train.out", line=9, step=1)
    found = story(
        {"loss": (np.array([0, 1]), np.array([2.0, 1.9]))}, event_list=[event], ended="out-of-memory"
    ).diagnosis
    assert found.summary.startswith("It failed in the first steps")
    assert found.next[0].startswith("Smaller micro-batch")


@pytest.mark.parametrize(
    ("memory", "evidence", "advice"),
    [
        (
            lambda x: 41.2 + np.arange(len(x)) / 100,
            "memory use (memory_gb) rises steadily from 41.2 at step 0 to 45.19 at step 399, in each fifth of the 400 "
            "logged values: a leak is a possible cause, growing batches are another",
            "store loss.item()",
        ),
        (
            lambda x: np.full(len(x), 61.5),
            "memory use (memory_gb) stays at 61.5 in all 400 values up to the failure: ",
            "limit the length of the longest batch",
        ),
        (
            lambda x: np.where(np.arange(len(x)) % 100 < 50, 30.0, 33.0),
            "memory use (memory_gb) goes from 30 at step 0 to 33 at step 399, not steadily: ",
            "limit the length of the longest batch",
        ),
    ],
    ids=["a rise", "a level", "up and down"],
)
def test_the_course_of_memory(story, course, memory, evidence, advice):
    """The logged memory is evidence, with values that stand at the steps named; a rise is only a possible leak."""
    event = Event(kind="cuda-oom", severity="error", message="CUDA out of memory", file="train.out", line=9, step=399)
    found = story(course(memory_gb=memory), event_list=[event], ended="out-of-memory").diagnosis
    assert found.evidence_for[0].startswith(evidence)
    assert found.next[0].startswith(advice)
    assert not [text for text in found.next if "The course of memory use" in text]


def test_a_bare_message_keeps_the_general_advice(story):
    """Without numbers and without steps nothing is excluded."""
    event = Event(kind="cuda-oom", severity="error", message="CUDA out of memory", file="train.out", line=9)
    found = story({}, event_list=[event], ended="out-of-memory").diagnosis
    assert [text for text in found.next if "expandable_segments" in text]
    assert [text for text in found.next if "nvidia-smi" in text]
