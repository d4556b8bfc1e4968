"""Cases of fixes: tests that say which step a fix cures, and which one it leaves as broken as it was."""

from __future__ import annotations

from tests.cases import case

cures = case("cures")
leaves = case("leaves")
