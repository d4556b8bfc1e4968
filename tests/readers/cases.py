"""Cases of readers: the name that a file of the source usually has, under which the battery writes its odd bytes."""

from __future__ import annotations

from tests.cases import case

usual_name = case("usual_name")
