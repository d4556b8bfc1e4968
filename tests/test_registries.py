"""Every plugin of the package loads, has its cases, and a broken one is reported, not hidden."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest

import postmortem
from postmortem.api import broken_plugins, registries
from postmortem.core.registry import Registry
from postmortem.detectors import DETECTORS
from postmortem.signatures import CATALOGUE
from tests.cases import ROOT, cases_in, cases_of, file_of

NEEDED = {
    "postmortem.checkpoints.formats": ("writes",),
    "postmortem.detectors": ("fires", "quiet"),
    "postmortem.diagnoses": ("tells", "quiet"),
    "postmortem.readers": ("usual_name",),
    "postmortem.readers.text.dialects": (),
    "postmortem.replay.culprit.stages": (),
    "postmortem.replay.fixes": ("cures", "leaves"),
    "postmortem.reporters": (),
}
"""The kinds of case that each item of a registry must have in its own test file, see tests/cases.py.

Reporters have their golden files; dialects and stages of the diagnosis are tested by the batteries of their folders.
"""


REGISTRIES = list(registries().values())


def test_every_registry_is_known():
    """`api.registries`, from which `doctor` and `broken_plugins` take them, lists every registry in the package."""
    found: dict[int, Registry[Any]] = {}
    for module in walk_packages(postmortem.__path__, "postmortem."):
        if module.ispkg:
            with suppress(ImportError):
                found |= {
                    id(value): value
                    for value in vars(import_module(module.name)).values()
                    if isinstance(value, Registry)
                }
    assert {r.package for r in found.values()} == {r.package for r in REGISTRIES}


def test_every_registry_says_which_cases_it_needs():
    """A new registry is entered in NEEDED."""
    assert {registry.package for registry in REGISTRIES} <= set(NEEDED)


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda r: r.package)
def test_all_plugins_load(registry):
    """No module of a plugin package fails to import, and there is something in each."""
    assert list(registry)
    assert registry.broken == []


@pytest.mark.parametrize(
    ("item", "kind"),
    [(item, kind) for registry in REGISTRIES for kind in NEEDED.get(registry.package, ()) for item in registry],
    ids=lambda x: x if isinstance(x, str) else x.__module__.removeprefix("postmortem."),
)
def test_every_registered_item_has_its_cases(item, kind):
    """The test file of each item declares a case of every kind that its registry needs."""
    assert (ROOT / file_of(item)).exists(), (
        f"{item.__name__} of {item.__module__} has no test file: write {file_of(item)}"
    )
    kinds = {case.kind for case in cases_of(item)}
    assert kind in kinds, f"{file_of(item)} declares no case with @{kind}({item.__name__})"


@pytest.mark.parametrize("registry", [r for r in REGISTRIES if NEEDED.get(r.package)], ids=lambda r: r.package)
def test_every_case_stands_in_the_file_of_its_item(registry):
    """A case in another file, or of something that is not registered, would never run."""
    folder = Path("tests", *registry.package.split(".")[1:])
    files = [file.relative_to(ROOT) for file in (ROOT / folder).glob("test_*.py")]
    declared = [(file, case) for file in files for case in cases_in(file)]
    assert [str(case) for file, case in declared if file != file_of(case.of) or case.of not in list(registry)] == []


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
