"""Cases of readers: the name that a file of the source usually has, under which the battery writes its odd bytes."""

from __future__ import annotations

from tests.cases import case

usual_name = case("usual_name")
usual_content = case("usual_content")
"""The bytes of such a file, where none of those of the battery are of a kind that the reader takes."""
