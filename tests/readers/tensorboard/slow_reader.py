"""The obvious way to read an event file: record by record, and byte by byte where there is damage. Only for tests."""

from __future__ import annotations

import struct

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.util.tensor_util import make_ndarray

from postmortem.readers.shared.crc32c import masked

Row = tuple[str, int, float, float]


def read_slowly(data: bytes) -> tuple[list[Row], list[tuple[int, int]]]:
    """All scalars as (tag, step, value, wall time), and the damage as (start, stop), both in order of the file."""
    points: list[Row] = []
    damage: list[tuple[int, int]] = []
    at = 0
    while at < len(data):
        length = length_in(data, at)
        stop = at + 16 + (length or 0)
        payload = None if length is None else data[at + 12 : stop - 4]
        whole = length is not None and stop <= len(data)
        if whole and data[stop - 4 : stop] == struct.pack("<I", masked(payload)):
            try:
                points += scalars_in(Event.FromString(payload))
            except DecodeError:
                damage.append((at, stop))
            at = stop
        elif whole and (stop == len(data) or length_in(data, stop) is not None):
            damage.append((at, stop))
            at = stop
        else:
            search = range(at + (1 if length is None else 12), len(data))
            found = next((i for i in search if 0 < (length_in(data, i) or 0) < 1 << 24), len(data))
            damage.append((at, found))
            at = found
    return points, damage


def length_in(data: bytes, at: int) -> int | None:
    """The length in a valid header at `at`."""
    header = data[at : at + 12]
    if len(header) < 12 or header[8:] != struct.pack("<I", masked(header[:8])):
        return None
    return int(struct.unpack("<Q", header[:8])[0])


def scalars_in(event: Event) -> list[Row]:
    """The scalars of an event, of simple values and float tensors."""
    found = []
    for value in event.summary.value:
        if value.HasField("simple_value"):
            found.append((value.tag, event.step, value.simple_value, event.wall_time))
        elif value.HasField("tensor"):
            found.append((value.tag, event.step, float(make_ndarray(value.tensor)), event.wall_time))
    return found
