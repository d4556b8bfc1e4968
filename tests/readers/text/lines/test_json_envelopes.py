"""Log lines inside of JSON objects."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postmortem.readers.text import read_text
from postmortem.readers.text.lines.blocks import Lines
from postmortem.readers.text.lines.json_envelopes import content_key, unwrapped

TRAINING = [f"step {n} loss {3 / n:.4f}" for n in range(1, 40)]
CRASH = [
    "Traceback (most recent call last):",
    '  File "/home/me/train.py", line 8, in <module>',
    "    step()",
    "ValueError: bad sample at index 17",
]


def wrap(lines: list[str], **beside: object) -> str:
    return "".join(json.dumps({"log": line + "\n", "stream": "stderr", **beside}) + "\n" for line in lines)


def test_values_and_failures_are_those_of_the_lines_inside(tmp_path: Path) -> None:
    """Docker's files read like the output that they hold, line for line, with the time beside it."""
    path = tmp_path / "abc-json.log"
    path.write_text(wrap(TRAINING + CRASH, time="2026-11-20T12:00:01.5Z"))
    reading = read_text(path)
    assert reading.points.tags == ["loss"]
    assert reading.points.step[-1] == 39
    (event,) = reading.events
    assert (event.kind, event.line, event.step) == ("generic-exception", len(TRAINING) + 4, 39)
    assert event.wall_time == 1795176001.5
    assert any("JSON object" in note for note in reading.notes)


def test_a_traceback_in_one_object_is_one_event(tmp_path: Path) -> None:
    """A message of several lines stands in one line of the file."""
    path = tmp_path / "train.log"
    path.write_text(wrap(TRAINING) + json.dumps({"log": "\n".join(CRASH), "stream": "stderr"}) + "\n")
    (event,) = read_text(path).events
    assert (event.kind, event.line) == ("generic-exception", len(TRAINING) + 1)
    assert event.fields["frame"]["line"] == 8


def test_a_rank_beside_the_line_is_its_rank(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(wrap(TRAINING, rank=3))
    assert set(read_text(path).points.rank.tolist()) == {3}


@pytest.mark.parametrize(
    "line",
    [
        '{"message": "train", "loss": 0.5}',
        '{"msg": "train", "loss": "0.5"}',
        '{"message": "a", "text": "b"}',
        '{"loss": 0.5, "step": 3}',
        '{"log": 3}',
        "[1, 2]",
        "{'log': 'a'}",
    ],
)
def test_objects_with_numbers_of_their_own_are_no_envelopes(line: str) -> None:
    """A structured log is read by what its members say."""
    assert content_key(f"{line}\n".encode() * 5) is None


@given(st.binary(max_size=300), st.integers(1, 40))
def test_lines_keep_their_number(data: bytes, size: int) -> None:
    """Any bytes in any pieces: as many lines come out as went in, and no exception."""
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    out = b"".join(unwrapped(iter(pieces), "log", 1 << 20))
    assert out.count(b"\n") == data.count(b"\n")


def test_a_line_without_an_end_stays_in_bounds(tmp_path: Path) -> None:
    """What is longer than a line may be is passed on as it comes."""
    out = list(unwrapped(iter([b"x" * 50] * 10), "log", 100))
    assert b"".join(out) == b"x" * 500
    assert max(map(len, out)) <= 150
    path = tmp_path / "cut.log"
    path.write_text(wrap(TRAINING)[:-20])
    assert sum(len(block.end) for block in Lines(path)) == len(TRAINING)
