"""Cases of checkpoint formats: a function that saves {name: tensor} below a folder and returns the file or folder it
made."""

from __future__ import annotations

from tests.cases import case

writes = case("writes")
