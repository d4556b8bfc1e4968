"""Cases of checkpoint formats: a test that writes a file of the format and reads it back."""

from __future__ import annotations

from tests.cases import case

reads = case("reads")
