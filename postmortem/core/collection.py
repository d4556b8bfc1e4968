"""Python's collector of cyclic garbage, where it only costs time."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected inside: imports make objects that stay, which it would look through over and over."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
