"""What the tests of runs share."""

from __future__ import annotations

import pytest

from postmortem.runs import cache


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache that keeps files however new they are."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_SETTLED", -1.0)
    return tmp_path / "cache"
