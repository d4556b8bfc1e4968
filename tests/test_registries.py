"""Every plugin of the package loads, has its cases, and a broken one is reported, not hidden."""

from __future__ import annotations

import pytest

from postmortem.api import broken_plugins
from postmortem.core.registry import Registry
from postmortem.detectors import DETECTORS
from postmortem.diagnoses import CAUSES
from postmortem.readers import READERS
from postmortem.reporters import REPORTERS
from postmortem.signatures import CATALOGUE
from tests.cases import ROOT, cases_of, file_of

NEEDED = {DETECTORS: ("fires", "quiet"), CAUSES: ("tells", "quiet")}
"""The kinds of case that each item of a registry must have in its own test file (see tests/cases.py)."""


@pytest.mark.parametrize("registry", [READERS, DETECTORS, CAUSES, REPORTERS], ids=lambda r: r.package)
def test_all_plugins_load(registry):
    """No module of a plugin package fails to import, and there is something in each."""
    assert list(registry)
    assert registry.broken == []


@pytest.mark.parametrize(
    ("item", "kind"),
    [(item, kind) for registry, kinds in NEEDED.items() for item in registry for kind in kinds],
    ids=lambda x: x if isinstance(x, str) else x.__module__.removeprefix("postmortem."),
)
def test_every_registered_item_has_its_cases(item, kind):
    """The test file of each item declares a case of every kind that its registry needs."""
    assert (ROOT / file_of(item)).exists(), f"{item.__name__} of {item.__module__} has no test file: write {file_of(item)}"
    kinds = {case.kind for case in cases_of(item)}
    assert kind in kinds, f"{file_of(item)} declares no case with @{kind}({item.__name__})"


@pytest.mark.parametrize("signature", CATALOGUE.values(), ids=lambda s: s.id)
def test_every_signature_has_an_example(signature):
    """The data file names a real line; tests/signatures runs it through the whole catalogue."""
    assert all(example.strip() for example in signature.examples)
    assert signature.examples


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
