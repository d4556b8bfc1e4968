"""Imports between the parts of the package: no circles, an up-to-date drawing, a core that loads no other part."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def graph() -> Any:
    """docs/import_graph.py as a module."""
    spec = importlib.util.spec_from_file_location("import_graph", ROOT / "docs" / "import_graph.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def written(graph: Any, tmp_path: Path) -> Any:
    """written({path: text}) -> modules and imports of a package `pkg` of these files."""

    def write(files: dict[str, str]) -> Any:
        for name, text in files.items():
            path = tmp_path / "pkg" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / "__init__.py").touch()
            path.write_text(text)
        (tmp_path / "pkg" / "__init__.py").touch()
        known = graph.modules(tmp_path / "pkg")
        return known, graph.imports(known)

    return write


def test_no_circle_between_parts(graph: Any) -> None:
    """In no package do two parts import one another: not inside functions, not for types, not by string."""
    known = graph.modules(ROOT / "postmortem")
    bad = graph.all_circles(known, graph.imports(known))
    assert not bad, "\n".join(bad)


def test_drawing_is_up_to_date(graph: Any) -> None:
    """docs/import_graph.md is what the script draws now: `python docs/import_graph.py` writes it."""
    known = graph.modules(ROOT / "postmortem")
    assert graph.page(known, graph.imports(known)) == graph.PAGE.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "import pkg.b.c",
        "from pkg.b import c",
        "from pkg.b.c import name",
        "from ..b.c import name",
        "def f():\n    import pkg.b.c",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.b.c import T",
        "import importlib\ndef f():\n    importlib.import_module('pkg.b.c')",
        "from importlib import import_module\nTABLE = {'x': 'pkg.b.c:name'}\ndef f(n): return import_module(TABLE[n])",
        "__import__('pkg.b.c')",
    ],
)
def test_every_way_to_import_is_seen(graph: Any, written: Any, text: str) -> None:
    """Two parts that import one another are a circle, however one of them does it; the line of each import is given."""
    known, found = written({"a/x.py": text, "b/c.py": "from pkg.a import x"})
    assert [(i.importer, i.imported) for i in found] == [("pkg.a.x", "pkg.b.c"), ("pkg.b.c", "pkg.a.x")]
    (circle,) = graph.all_circles(known, found)
    assert circle.startswith("circle in pkg: pkg.a, pkg.b\n")
    assert "pkg.a.x:" in circle


def test_parts_on_floors(graph: Any, written: Any) -> None:
    """Without a circle every part stands above what it imports, and arrows that follow from others are not drawn."""
    known, found = written(
        {"a/x.py": "", "b/y.py": "import pkg.a.x", "c.py": "import pkg.a.x, pkg.b.y", "d.py": "'pkg.c'"}
    )
    nodes, edges = graph.inside("pkg", known, found)
    assert graph.all_circles(known, found) == []
    assert graph.floors(nodes) == [["pkg", "pkg.a", "pkg.d"], ["pkg.b"], ["pkg.c"]]
    assert [str(i) for i in edges["pkg.c", "pkg.b"]] == ["pkg.c:1 imports pkg.b.y"]
    text = "\n".join(graph.drawing("pkg", nodes))
    assert "n_c[c] --> n_b[b]" in text
    assert "n_c[c] --> n_a[a]" not in text


def test_core_imports_nothing_by_name() -> None:
    """No file of core calls importlib or __import__, but the two that look for plug-ins."""
    for path in sorted((ROOT / "postmortem" / "core").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = {n.id for n in nodes if isinstance(n, ast.Name)}
        names |= {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module}
        by_name = {n.partition(".")[0] for n in names} & {"importlib", "__import__", "pkgutil", "runpy"}
        assert not by_name or path.name in ("registry.py", "installed.py"), f"{path.name}: {by_name}"
