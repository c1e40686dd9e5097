"""No two files of the program import each other, by whatever way round: for types alone counts, too."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ALLOWED: Mapping[frozenset[str], str] = {}  # circles, each with the sentence that defends it

Graph = Mapping[str, set[str]]


def modules(root: Path, package: str) -> dict[str, Path]:
    """By their full names; a package is its `__init__`."""
    found = {}
    for file in sorted((root / package).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(source: str, known: Mapping[str, object]) -> Iterator[str]:
    """The modules that are imported, wherever in the file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "the program names what it imports in full"
            for alias in node.names:  # of a package: a module in it, or a name that it defines
                within = f"{node.module}.{alias.name}"
                if within in known or node.module in known:
                    yield within if within in known else str(node.module)


def circles(graph: Graph) -> list[frozenset[str]]:
    """Modules each of which can be reached from all others of its circle."""
    reached = {module: _reached(graph, module) for module in graph}
    found = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in graph
        if module in reached[module]
    }
    return sorted(found, key=sorted)


def _reached(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for module in graph[ahead.pop()] - seen:
            seen.add(module)
            ahead.append(module)
    return seen


def test_the_program_has_none_but_those_that_are_defended(root: Path) -> None:
    known = modules(root, "minichat")
    graph = {module: set(imports(file.read_text(), known)) - {module} for module, file in known.items()}
    assert len(graph) > 150
    assert set(circles(graph)) == set(ALLOWED)
    assert all(len(sentence.split()) > 5 for sentence in ALLOWED.values())


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, ["ab"]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d"}}, ["abc", "de"]),
    ],
)
def test_circles_are_found(graph: Graph, found: list[str]) -> None:
    assert circles(graph) == [frozenset(each) for each in found]


def test_type_only_and_late_imports_count() -> None:
    known = {"p": 0, "p.a": 0, "p.b": 0, "p.c": 0}
    source = (
        "if TYPE_CHECKING:\n    from p import a\ndef late():\n    from p.b import name\nfrom p import other"
    )
    assert set(imports(source, known)) == {"p.a", "p.b", "p"}
