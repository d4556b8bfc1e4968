"""Rows that are read many at a time give what each row gives alone."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import postmortem.readers.wandb.transaction_log as reader
from postmortem.core.reading import Reading
from postmortem.readers.wandb.plain_rows import PlainRows, plain_rows
from postmortem.readers.wandb.transaction_log import HISTORY, RECORD
from tests.readers.wandb.test_wandb import read

MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
KEYS = [
    "loss",
    "lr",
    "train/grad_norm",
    "_step",
    "_timestamp",
    "_runtime",
    "_wandb",
    "img",
    "img._type",
    "ß",
    "k" * 140,
    "",
]
TEXTS = [
    "1",
    "-0.5e-7",
    "0",
    "007",
    "1e999",
    "9" * 31,
    "1-2",
    "+1",
    "1_0",
    "NaN",
    "Infinity",
    "null",
    "true",
    '"table"',
    "{}",
]
TEXTS += ['{"a": 1}', "[1]", "", " 1", "1\0", "0.1" + "0" * 40, "e5", "."]


@st.composite
def rows(draw: st.DrawFn) -> list[bytes]:
    """Records of history and summary, mostly of plain numbers, some with anything else that an item may hold."""
    keys = draw(st.lists(st.sampled_from(KEYS[:6]), max_size=5, unique=True))
    found = []
    for step in range(draw(st.integers(1, 12))):
        record = RECORD()
        for target in draw(st.sampled_from(["history", "summary", "both"])).replace("both", "history summary").split():
            items = [(key, draw(st.floats().map(repr))) for key in draw(st.permutations(keys))]
            if draw(st.integers(0, 3)) == 0:
                items += draw(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(TEXTS)), max_size=2))
            body = record.history.item if target == "history" else record.summary.update
            for key, text in items:
                path = [key.encode()] + [b"x"] * (draw(st.integers(0, 9)) == 0)
                body.add(
                    **({"nested_key": path} if len(path) > 1 or step % 2 else {"key": path[0]}),
                    value_json=text.encode(),
                )
            if target == "summary" and draw(st.integers(0, 5)) == 0:
                record.summary.remove.add(key=b"loss")
        if record.HasField("history") and draw(st.booleans()):
            record.history.step.num = draw(st.sampled_from([step, 200, 70_000, 2**40, -1]))
        found.append(draw(st.sampled_from([b"", b"\x08\x05", b"\x08\x85\x01"])) + record.SerializeToString())
    return found


def found_in(reading: Reading) -> list[object]:
    points = reading.points
    cells = zip(points.code, points.step, points.value, points.wall_time, strict=True)
    return [
        [(points.tags[c], int(s), float(v), float(w)) for c, s, v, w in cells],
        reading.summary,
        reading.skipped,
        reading.step_axis,
        [problem.what for problem in reading.problems],
    ]


@MANY
@given(payloads=rows(), block=st.sampled_from([4096, 3, 1]))
def test_many_rows_are_read_as_each_alone(tmp_path: Path, payloads: list[bytes], block: int) -> None:
    """Points, summary and what is skipped are the same with and without reading rows at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_BLOCK", block)
        at_once = found_in(read(tmp_path / "a.wandb", payloads))
        patch.setattr(reader, "plain_rows", nothing_plain)
        alone = found_in(read(tmp_path / "a.wandb", payloads))
    assert repr(at_once) == repr(alone)


def nothing_plain(bodies: list[bytes]) -> PlainRows:
    found = plain_rows(bodies)
    found.plain[:] = False
    return found


@MANY
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5))
def test_any_bytes(bodies: list[bytes]) -> None:
    """Bytes of any kind are followed without an error, and a row that counts as plain is one for protobuf as well."""
    found = plain_rows(bodies)
    found.numbers()
    for i in np.flatnonzero(found.plain):
        HISTORY.FromString(bodies[i])


def test_numbers_are_those_of_python() -> None:
    """Numbers are rounded as `float` does."""
    texts = [repr(x) for x in np.random.default_rng(0).lognormal(sigma=9, size=500).tolist()] + [
        "5e-324",
        "1e308",
        "0.1",
    ]
    bodies = [
        HISTORY(item=[{"key": b"x", "value_json": text.encode()}], step={"num": i}).SerializeToString()
        for i, text in enumerate(texts)
    ]
    found = plain_rows(bodies)
    assert found.numbers().tolist() == [float(text) for text in texts]
    assert found.plain.all()
    assert found.step.tolist() == list(range(len(texts)))
    assert math.isfinite(found.numbers()[0])
