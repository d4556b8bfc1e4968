"""The trees that Aim stores in its databases: a key is a path of names and numbers, a value one that is no container.

Each part of a path ends with 0xFE, which no UTF-8 holds; a number is 0xFE and eight bytes, highest first. The
first byte of a value is its type. Format: aim/storage/encoding/encoding.pyx.
"""

from __future__ import annotations

import struct
from typing import Any

_END = 0xFE
_NONE, _BOOL, _INT, _FLOAT, _STRING, _BYTES, _ARRAY, _OBJECT, _CUSTOM = 0, 1, 2, 3, 4, 5, 6, 7, 15
_SIZES = {_BOOL: 1, _INT: 8, _FLOAT: 8}
_INT64, _FLOAT64 = struct.Struct("<q"), struct.Struct("<d")
Path = tuple[str | int, ...]


class Container:
    """The value of a path that others go on from: a list, a mapping or an object of Aim, by its name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


_CONTAINERS = {_ARRAY: Container("list"), _OBJECT: Container("mapping")}


def path_of(key: bytes) -> Path | None:
    """The parts of a path; None of a key that is none."""
    parts: list[str | int] = []
    at = 0
    while at < len(key):
        if key[at] == _END:
            end = at + 9
            parts.append(int.from_bytes(key[at + 1 : end], "big", signed=True))
        else:
            end = key.find(b"\xfe", at)
            parts.append(key[at:end].decode("utf-8", "replace"))
        if end < 0 or end >= len(key) or key[end] != _END:
            return None
        at = end + 1
    return tuple(parts)


def value_of(data: bytes) -> Any:
    """A value; a `Container` for one that is stored in parts. ValueError of bytes that are none."""
    kind = data[0] if data else _NONE
    if kind in _SIZES and len(data) != 1 + _SIZES[kind]:
        raise ValueError("a value of the wrong size")
    if kind == _FLOAT:
        return _FLOAT64.unpack_from(data, 1)[0]
    if kind == _INT:
        return _INT64.unpack_from(data, 1)[0]
    if kind == _BOOL:
        return data[1] != 0
    if kind == _STRING:
        return data[1:].decode("utf-8", "replace")
    if kind == _CUSTOM:
        return Container(data[1:].decode("utf-8", "replace"))
    if kind == _BYTES:
        return data[1:]
    if kind == _NONE:
        return None
    if kind in _CONTAINERS:
        return _CONTAINERS[kind]
    raise ValueError(f"a value of type {kind}, which is not known")


def nested(tree: dict[Path, Any]) -> Any:
    """The lists and mappings that the paths of a tree stand for; bytes and objects of Aim are left out."""
    result: dict[str | int, Any] = {}
    lists: list[Path] = []
    for path, value in tree.items():
        if isinstance(value, Container) and value.kind == "list":
            lists.append(path)
        if (
            not path
            or isinstance(value, bytes)
            or (isinstance(value, Container) and value.kind not in ("list", "mapping"))
        ):
            continue
        *above, last = path
        at = result
        for part in above:
            below = at.setdefault(part, {})
            if not isinstance(below, dict):  # a value and a container at one place, as no writer stores
                break
            at = below
        else:
            at.setdefault(last, {} if isinstance(value, Container) else value)
    for path in sorted(lists, key=len, reverse=True):
        _make_list(result, path)
    return result


def _make_list(tree: dict[str | int, Any], path: Path) -> None:
    """Puts a list in the place of the mapping of its numbers."""
    if not path:
        return
    at: Any = tree
    for part in path[:-1]:
        at = at.get(part) if isinstance(at, dict) else None
    if isinstance(at, dict) and isinstance(found := at.get(path[-1]), dict):
        at[path[-1]] = [found[place] for place in sorted(place for place in found if isinstance(place, int))]
