"""Makes protobuf message classes from a few lines of .proto text with only the fields that a reader needs.

Importing the generated modules of TensorBoard or W&B takes up to half a second, and clashes with theirs where they are
loaded too; here each schema has its own pool. The parser skips fields that a schema leaves out, and a nested message
declared as ``bytes`` stays unparsed.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

__all__ = ["DecodeError", "messages", "varint"]

_MESSAGE = re.compile(r"message (\w+) \{(.*?)\}", re.S)
_FIELD = re.compile(r"(repeated )?(\w+) (\w+) = (\d+);")


def messages(package: str, schema: str) -> dict[str, Any]:
    """Message classes by name for `schema`, flat ``message`` blocks of ``[repeated] type name = number;``.

    Every field that is not repeated has presence (``HasField``). Declare text as ``bytes``: in damaged files it is not
    always UTF-8.
    """
    proto = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for name, body in _MESSAGE.findall(schema):
        message = proto.message_type.add(name=name)
        for repeated, kind, field_name, number in _FIELD.findall(body):
            field = message.field.add(name=field_name, number=int(number))
            field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if hasattr(field, f"TYPE_{kind.upper()}"):
                field.type = getattr(field, f"TYPE_{kind.upper()}")
            else:
                field.type, field.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    return {
        m.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{m.name}"))
        for m in proto.message_type
    }


def varint(digits: bytes) -> int:
    """The number in the bytes of a varint."""
    number = 0
    for byte in reversed(digits):
        number = number << 7 | byte & 0x7F
    return number
