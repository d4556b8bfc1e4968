"""Every plugin of the package loads, and a broken one is said, not hidden."""

from __future__ import annotations

import pytest

from postmortem.api import broken_plugins
from postmortem.core.registry import Registry
from postmortem.detectors import DETECTORS
from postmortem.diagnoses import CAUSES
from postmortem.readers import READERS
from postmortem.reporters import REPORTERS


@pytest.mark.parametrize("registry", [READERS, DETECTORS, CAUSES, REPORTERS], ids=lambda r: r.package)
def test_all_plugins_load(registry):
    """No module of a plugin package fails to import, and there is something in each."""
    assert list(registry)
    assert registry.broken == []


@pytest.mark.torch
def test_all_fixes_load():
    """The fixes of a replay load where torch is installed."""
    pytest.importorskip("torch")
    from postmortem.replay.fixes import FIXES

    assert list(FIXES)
    assert FIXES.broken == []


def test_a_broken_plugin_is_remembered(tmp_path, monkeypatch):
    """A module that fails to import leaves the others usable and says why."""
    package = tmp_path / "plugins_for_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "good.py").write_text("")
    (package / "torn.py").write_text("import a_module_that_does_not_exist")
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry[type] = Registry("plugins_for_test", key=lambda t: t.__name__)
    assert list(registry) == []
    ((where, why),) = [(b.where, b.why) for b in registry.broken]
    assert where == "plugins_for_test.torn"
    assert "a_module_that_does_not_exist" in why


def test_codes_and_names_are_unique():
    """No two detectors share a code or a name."""
    codes = [d.code for d in DETECTORS]
    names = [d.name for d in DETECTORS]
    assert len(set(codes)) == len(codes)
    assert len(set(names)) == len(names)
    assert broken_plugins() == []
