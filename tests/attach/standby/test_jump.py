"""Which samples may be said to carry a jump."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from postmortem.attach.standby import jump

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("size", "found", "named"), [(20, 5, True), (20, 6, False), (4, 2, True), (3, 2, False)])
def test_most_of_a_batch_are_no_outliers(monkeypatch, size: int, found: int, named: bool) -> None:
    """Over a quarter of the samples, but for two of four, are what the weights do to them."""
    monkeypatch.setattr(jump, "find_samples", lambda *_: (list(range(found)), "found"))
    monkeypatch.setattr(jump._Jump, "value", lambda self, make=None: 1.0 if make else 50.0)
    session = SimpleNamespace(samples=SimpleNamespace(size=size), failure="")
    culprit = jump.jumped(SimpleNamespace(kind="jump"), 10.0, [1.0] * 30, session, fixes=True)
    assert (culprit.cause == "outlier-sample") is named
    assert culprit.samples == (tuple(range(found)) if named else None)
