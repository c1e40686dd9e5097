"""Import cycles within a package, whether an import is at module level, late, or for typing only."""

import ast
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

Imports = dict[str, set[str]]


def circles(package: Path) -> set[frozenset[str]]:
    """The groups of modules in `package` whose members all import each other, directly or not."""
    graph = imports(package)
    reached = {module: reach(graph, module) for module in graph}
    groups = {frozenset(other for other in reached[module] if module in reached[other]) for module in graph}
    return {group for group in groups if group}


def imports(package: Path) -> Imports:
    """The modules of `package` that each of its modules imports."""
    files = {module_name(package, file): file for file in package.rglob("*.py")}
    return {
        module: {found for name in names_in(file, module) if (found := owner(name, files))} - {module}
        for module, file in files.items()
    }


def module_name(package: Path, file: Path) -> str:
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def names_in(file: Path, module: str) -> Iterator[str]:
    """The full names that a file imports: `a.b` for `from a import b`, whether `b` is a module or a name."""
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for node in import_nodes(file.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = [*above, *([node.module] if node.module else [])]
            yield from (".".join([*origin, alias.name]) for alias in node.names)


@cache
def import_nodes(source: str) -> list[ast.Import | ast.ImportFrom]:
    """The imports anywhere in a file. Several tests read the same files, and parsing all takes a second."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]


def owner(name: str, modules: Collection[str]) -> str | None:
    """The module that contains an imported name. That `a.b` also runs `a/__init__.py` does not count."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def reach(graph: Imports, start: str) -> set[str]:
    """All modules that `start` imports, directly or indirectly."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting.extend(graph[module])
    return found
