"""TensorBoard's Event messages: the fields that the reader needs, and the number in a value.

Field numbers from tensorboard/compat/proto/{event,summary,tensor,tensor_shape,types}.proto and
tensorboard/plugins/hparams/plugin_data.proto. Images, audio and graphs stay unparsed bytes; of a histogram
only the first numbers are read: its limits and sums.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from postmortem.readers.shared.protobuf import messages, varint

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CLASSES = messages(
    "postmortem.tensorboard",
    """
    message Event { double wall_time = 1; int64 step = 2; bytes file_version = 3; bytes graph = 4; Summary summary = 5;
                    bytes log_message = 6; bytes session_log = 7; bytes run_metadata = 8; bytes meta_graph = 9; }
    message Summary { repeated Value value = 1; }
    message Value { bytes tag = 1; float simple_value = 2; bytes histogram = 3; bytes image = 4; bytes histo = 5;
                    bytes audio = 6; Tensor tensor = 8; Metadata metadata = 9; }
    message Metadata { PluginData plugin_data = 1; }
    message PluginData { bytes plugin_name = 1; bytes content = 2; }
    message Tensor { int32 dtype = 1; Shape shape = 2; bytes content = 4; repeated float float_val = 5;
                     repeated double double_val = 6;
                     repeated int32 int_val = 7; repeated int64 int64_val = 10; repeated bool bool_val = 11;
                     repeated int32 half_val = 13; repeated uint32 uint32_val = 16; repeated uint64 uint64_val = 17;
                     repeated bytes string_val = 8; }
    message Shape { repeated Dim dim = 2; }
    message Dim { int64 size = 1; }
    """,
)
EVENT = _CLASSES["Event"]

HISTOGRAM = messages(
    "postmortem.histogram",
    "message Histogram { double min = 1; double max = 2; double num = 3; double sum = 4; double sum_squares = 5; }",
)["Histogram"]

HPARAMS = messages(
    "postmortem.hparams",
    """
    message HParams { SessionStart session_start = 3; }
    message SessionStart { repeated Entry hparams = 1; }
    message Entry { string key = 1; Value value = 2; }
    message Value { double number = 2; string text = 3; bool truth = 4; }
    """,
)["HParams"]

_VARINT = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
_BLOB_EVENT = re.compile(
    rb"\x09(.{8})(?:\x10" + _VARINT + rb")?\x2a" + _VARINT + rb"\x0a" + _VARINT + rb"\x0a" + _VARINT, re.S
)
_BLOB = re.compile(rb"([\x1a\x22\x2a\x32])" + _VARINT)
_BLOB_FIELDS = {b"\x1a": "histogram", b"\x22": "image", b"\x2a": "histo", b"\x32": "audio"}
_PREFIX = 512


_LIMITS = re.compile(rb"(?:\x09.{8})?(?:\x11.{8})?(?:\x19.{8})?(?:\x21.{8})?(?:\x29.{8})?", re.S)
_EXPONENT = 0x7FF0


class Blob(NamedTuple):
    """An event of one histogram, image or audio: its wall time and tag, and the name of the field of Value.

    `finite` is False for a histogram of which the minimum, the maximum or a sum is NaN or infinite.
    """

    wall_time: float
    tag: bytes
    field: str
    finite: bool


def blob_event(payload: NDArray[np.uint8]) -> Blob | None:
    """The blob in a payload that holds a wall time, a step and one value of a tag and a blob, without looking into it.

    None for all other events.
    """
    prefix = payload[:_PREFIX].tobytes()
    if (event := _BLOB_EVENT.match(prefix)) is None:
        return None
    tag_stop = event.end() + varint(event[5])
    if (blob := _BLOB.match(prefix, tag_stop)) is None:
        return None
    ends = (event.end(3) + varint(event[3]), event.end(4) + varint(event[4]), blob.end() + varint(blob[2]))
    if any(end != len(payload) for end in ends):
        return None
    (wall_time,) = struct.unpack("<d", event[1])
    field = _BLOB_FIELDS[blob[1]]
    finite = field != "histo" or _is_finite(prefix, blob.end())
    return Blob(wall_time, prefix[event.end() : tag_stop], field, finite)


def _is_finite(prefix: bytes, at: int) -> bool:
    """Whether the numbers at the beginning of a histogram are finite, by their exponents."""
    stop = _LIMITS.match(prefix, at).end()  # type: ignore[union-attr]  # it matches the empty string
    return all(int.from_bytes(prefix[k - 2 : k], "little") & _EXPONENT != _EXPONENT for k in range(at + 9, stop + 1, 9))


BFLOAT16 = 14
DTYPES: dict[int, tuple[str, str]] = {
    1: ("<f4", "float_val"),
    2: ("<f8", "double_val"),
    3: ("<i4", "int_val"),
    4: ("u1", "int_val"),
    5: ("<i2", "int_val"),
    6: ("i1", "int_val"),
    9: ("<i8", "int64_val"),
    10: ("?", "bool_val"),
    BFLOAT16: ("<u2", "half_val"),
    17: ("<u2", "int_val"),
    19: ("<f2", "half_val"),
    22: ("<u4", "uint32_val"),
    23: ("<u8", "uint64_val"),
}
"""Numeric types by their number in types.proto: the numpy type of raw bytes, and the field of the typed list."""


def number(tensor: Any) -> float | None:
    """The number in a tensor with one element of a numeric type, else None."""
    known = DTYPES.get(tensor.dtype)
    if known is None or any(d.size != 1 for d in tensor.shape.dim):
        return None
    numpy_type, field = known
    if tensor.content:
        stored = (
            np.frombuffer(tensor.content, numpy_type) if len(tensor.content) == np.dtype(numpy_type).itemsize else None
        )
    else:
        stored = np.array(list(getattr(tensor, field)) or [0])  # an omitted list stands for zeros
        if field == "half_val":
            stored = (stored & 0xFFFF).astype("<u2").view(numpy_type)
    if stored is None or len(stored) != 1:
        return None
    return float(widen(stored, tensor.dtype)[0])


def widen(stored: Any, dtype: int) -> Any:
    """Stored elements as float64; a bfloat16 is the upper half of a float32."""
    return (
        (stored.astype("<u4") << 16).view("<f4").astype(np.float64) if dtype == BFLOAT16 else stored.astype(np.float64)
    )
