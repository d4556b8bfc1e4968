"""Every plugin of the package loads, has its cases, and a broken one is reported, not hidden."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import SimpleNamespace
from typing import Any

import pytest

import postmortem
from postmortem.api import broken_plugins, registries
from postmortem.core.registry import Broken, Registry
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
    "postmortem.silent.faults": ("blamed", "quiet"),
    "postmortem.silent.observe.watchers": (),
}
"""The kinds of case that each item of a registry must have in its own test file, see tests/cases.py.

Reporters have their golden files; dialects and stages of the diagnosis are tested by the batteries of their folders,
watchers by the cases of the faults.
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


def test_a_name_is_taken_whatever_the_order():
    """Two items of one name are an error, not two items; equal orders are settled by name."""
    registry: Registry[Any] = Registry("tests", key=lambda c: c.name, order=lambda c: c.order, group="none.at.all")
    registry._loaded = True
    late, early, again = (type(n, (), {"name": n[0], "order": o}) for n, o in (("a", 1000), ("b", 90), ("a2", 5)))
    registry.register(late)
    registry.register(early)
    assert list(registry) == [early, late]
    assert registry["a"] is late
    with pytest.raises(ValueError, match="'a' is registered twice"):
        registry.register(again)


@pytest.mark.parametrize(
    "registry", [r for r in REGISTRIES if not r.package.startswith("postmortem.replay")], ids=lambda r: r.package
)
def test_a_scan_reports_broken_plugins_of_every_kind(registry, monkeypatch):
    """A plugin that a scan goes without is named, whatever its kind; those of a replay need torch."""
    torn = Broken("torn = a_package.torn", "ImportError: no")
    list(registry)
    monkeypatch.setattr(registry, "_broken", [torn])
    assert broken_plugins() == [torn]


def test_a_plugin_that_ends_the_process(tmp_path, monkeypatch):
    """One that exits while it is imported is broken like any other, and the reason is one printable line."""
    package = tmp_path / "exits_for_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("raise SystemExit(3)")
    (package / "b.py").write_text("raise RuntimeError('one\\n\\x1b[31mtwo')")
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry[type] = Registry("exits_for_test", key=lambda t: t.__name__)
    assert [b.why for b in registry.broken] == ["SystemExit: 3", "RuntimeError: one \N{REPLACEMENT CHARACTER}[31mtwo"]


def test_a_key_that_is_no_text():
    """It could not be sorted among the others."""
    registry: Registry[Any] = Registry("postmortem.detectors", key=lambda item: item.code)
    with pytest.raises(TypeError, match="5 is not a str"):
        registry.register(SimpleNamespace(code=5))


def test_threads_wait_for_a_registry(tmp_path, monkeypatch):
    """A thread that asks while another one imports the plugins gets all of them."""
    package = tmp_path / "slow_for_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("import time; time.sleep(0.2); raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry[type] = Registry("slow_for_test", key=lambda t: t.__name__)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: len(registry.broken), range(4))) == [1, 1, 1, 1]


def test_codes_and_names_are_unique():
    """No two detectors share a code or a name."""
    codes = [d.code for d in DETECTORS]
    names = [d.name for d in DETECTORS]
    assert len(set(codes)) == len(codes)
    assert len(set(names)) == len(names)
    assert broken_plugins() == []
