"""Draws which part of the package imports which, from the code itself, into import_graph.md.

    python docs/import_graph.py [--check]

Every import counts: at the top of a file, inside a function, under TYPE_CHECKING, and by a string where the file calls
import_module or __import__. A graph is made for each package. Its nodes are the modules and the sub-packages, each as
a whole; the node with the package's own name is its `__init__.py`. Circles are printed with the imports to remove.
Exit code: 1 if there is a circle or, with --check, if import_graph.md is out of date.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parent.parent
PAGE = Path(__file__).with_suffix(".md")
DRAWN = ("postmortem", "postmortem.readers", "postmortem.readers.text", "postmortem.checkpoints", "postmortem.replay")
Graph = dict[str, set[str]]
"""Node -> the nodes that it imports."""


@dataclass(frozen=True, order=True)
class Import:
    """A module imports another one, at a line of its file."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def modules(package: Path) -> dict[str, Path]:
    """Dotted name -> file of a package's modules; a package's name stands for its `__init__.py`."""
    out = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        out[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return out


def imports(known: Mapping[str, Path]) -> list[Import]:
    """Every import of one of these modules by another, in order."""
    found = {
        Import(name, target, line)
        for name, path in known.items()
        for target, line in _imports_of(name, path, known)
        if target != name
    }
    return sorted(found)


def _imports_of(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[tuple[str, int]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                if full in known or base in known:
                    yield full if full in known else base, node.lineno
    if any(isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__") for node in ast.walk(tree)):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                target = node.value.partition(":")[0]
                if target in known:
                    yield target, node.lineno


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def packages(known: Mapping[str, Path]) -> list[str]:
    """The names that stand for folders."""
    return [name for name, path in known.items() if path.name == "__init__.py"]


def child(module: str, package: str) -> str | None:
    """The node of `package` that holds a module: a sub-package, a module or the package's name; None outside."""
    if module == package:
        return module
    if not module.startswith(f"{package}."):
        return None
    return f"{package}.{module[len(package) + 1 :].partition('.')[0]}"


def inside(
    package: str, known: Mapping[str, Path], found: list[Import]
) -> tuple[Graph, dict[tuple[str, str], list[Import]]]:
    """The graph between the nodes of a package, and the imports that make each of its edges."""
    graph: Graph = {node: set() for module in known if (node := child(module, package))}
    edges = defaultdict(list)
    for one in found:
        a, b = child(one.importer, package), child(one.imported, package)
        if a and b and a != b:
            graph[a].add(b)
            edges[a, b].append(one)
    return graph, edges


def reachable(graph: Graph) -> Graph:
    """Node -> every node that it imports, directly or not."""
    out: Graph = {}
    for node in graph:
        seen: set[str] = set()
        todo = list(graph[node])
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo += graph[at]
        out[node] = seen
    return out


def circles(graph: Graph) -> list[list[str]]:
    """The groups of nodes that import one another, directly or not."""
    reach = reachable(graph)
    groups = {tuple(sorted(n for n in reach[node] if node in reach[n])) for node in graph if node in reach[node]}
    return [list(group) for group in sorted(groups)]


def floors(graph: Graph) -> list[list[str]]:
    """The nodes by height: those of a floor import only nodes of the floors below. No circle may be in the graph."""
    out: list[list[str]] = []
    left = dict(graph)
    while left:
        lowest = sorted(node for node, below in left.items() if not below & left.keys())
        if not lowest:
            raise ValueError(f"a circle: {circles(graph)}")
        out.append(lowest)
        left = {node: below for node, below in left.items() if node not in lowest}
    return out


def reduced(graph: Graph) -> Graph:
    """The graph without the edges that follow from others."""
    reach = reachable(graph)
    return {node: {b for b in below if not any(b in reach[c] for c in below)} for node, below in graph.items()}


def shortest_circle(graph: Graph) -> list[tuple[str, str]]:
    """The edges of a shortest circle; none where there is no circle."""
    best: list[tuple[str, str]] = []
    for start in sorted(graph):
        came: dict[str, str] = {}
        todo = deque([start])
        while todo and start not in came:
            at = todo.popleft()
            for below in sorted(graph[at] - came.keys()):
                came[below] = at
                todo.append(below)
        if start in came:
            path, at = [], start
            while not path or at != start:
                path.append((came[at], at))
                at = came[at]
            best = min(best or path, path, key=len)
    return best


def all_circles(known: Mapping[str, Path], found: list[Import]) -> list[str]:
    """For each circle in any package, its nodes and the imports to remove: the thinnest edge of each circle."""
    out = []
    for package in packages(known):
        graph, edges = inside(package, known, found)
        groups, odd = circles(graph), list[tuple[str, str]]()
        while circle := shortest_circle(graph):
            odd.append(min(circle, key=lambda edge: (len(edges[edge]), edge)))
            graph[odd[-1][0]].discard(odd[-1][1])
        for group in groups:
            lines = [str(one) for edge in odd if edge[0] in group for one in edges[edge]]
            out.append("\n  ".join([f"circle in {package}: {', '.join(group)}", *lines]))
    return out


def drawing(package: str, graph: Graph) -> Iterator[str]:
    """The section of a package: its floors, lowest first, and a diagram of the edges that do not follow from others."""
    short = {node: node.removeprefix(f"{package}.") if node != package else "__init__" for node in graph}
    yield f"## {package}\n"
    try:
        levels = floors(graph)
    except ValueError:
        yield "There is a circle: `python docs/import_graph.py` lists its imports.\n"
    else:
        for number, level in enumerate(levels, 1):
            yield f"{number}. {', '.join(short[node] for node in level)}"
    yield "\n```mermaid\ngraph TD"
    slim = reduced(graph)
    for node in sorted(graph):
        below = sorted(slim[node])
        yield from (f"  {_id(short[node])}[{short[node]}] --> {_id(short[b])}[{short[b]}]" for b in below)
    yield "```\n"


def _id(name: str) -> str:
    return f"n_{name.strip('_')}"  # `graph`, `end` and the like are words of mermaid


def page(known: Mapping[str, Path], found: list[Import]) -> str:
    """The text of import_graph.md."""
    lines = [
        "# What imports what",
        "",
        "Written by `python docs/import_graph.py` from the code. A test fails if it is out of date or if there is a",
        "circle. The floors of each package are numbered from below: a part imports only parts of lower floors. In",
        "the diagrams, arrows that follow from others are left out.",
        "",
    ]
    for package in DRAWN:
        if package in known:
            lines += drawing(package, inside(package, known, found)[0])
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Writes the page, or checks it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    known = modules(ROOT / "postmortem")
    found = imports(known)
    text = page(known, found)
    bad = all_circles(known, found)
    print(*bad, sep="\n")
    if not options.check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        bad.append("stale")
        print(f"{PAGE.name} is out of date: run python docs/import_graph.py")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
