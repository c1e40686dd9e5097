"""The engine is layered into floors: a file imports only from its floor or below. The lowest two use no
torch.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.ground.circles import import_nodes

ROOT = Path(__file__).resolve().parents[2]
FLOORS: dict[str, int] = {
    "api": 0,
    **dict.fromkeys(
        (
            "generated",
            "gguf",
            "kv",
            "grammar",
            "interrupts",
            "main_memory",
            "scheduling",
            "speculation",
            "sqlite",
            "text",
            "timeline",
        ),
        1,
    ),
    **dict.fromkeys(
        ("models", "attention", "quant", "sampling", "kernels", "pocket", "devices", "early", "later"), 2
    ),
    "execution": 3,
    "serving": 4,
    **dict.fromkeys(("host", "fleet", "distributed", "assembly", "cache_plan", "dry", "start", "quality"), 5),
    "server": 6,
}
TENSORS_ON_FLOOR_1 = "engine.kv.store"
HEAVY = ("torch", "transformers")


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor(module: str) -> int:
    """The floor of an engine module. The package itself is on the lowest, since every import runs it."""
    parts = module.split(".")
    if len(parts) == 1:
        return 0
    assert parts[1] in FLOORS, f"engine.{parts[1]} has no floor: add it here and in the docs"
    return FLOORS[parts[1]]


def imports(source: str, module: str, is_package: bool = False) -> Iterator[str]:
    """The full name of every module that the source imports, anywhere in the file."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in import_nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            # `from engine import params` names a module; `from engine.params import Params`, a name in a
            # module.
            yield from (f"{origin}.{alias.name}" for alias in node.names) if origin == "engine" else (origin,)


def complaints(module: str, source: str, is_package: bool = False) -> list[str]:
    """The violations among the module's imports, as sentences."""
    own = floor(module)
    broken = []
    for imported in imports(source, module, is_package):
        top = imported.split(".")[0]
        if top == "minichat":
            broken.append(f"{module} imports {imported}: the engine knows nothing of the program")
        elif top == "engine" and floor(imported) > own:
            broken.append(f"{module} on floor {own} imports {imported} on floor {floor(imported)}")
        elif top in HEAVY and own <= 1 and module != TENSORS_ON_FLOOR_1:
            broken.append(f"{module} on floor {own} imports {top}")
    return broken


def engine_files() -> list[Path]:
    return sorted((ROOT / "engine").rglob("*.py"))


def part(file: Path) -> str:
    return file.relative_to(ROOT / "engine").parts[0]


@pytest.mark.parametrize("name", sorted({part(file) for file in engine_files()}))
def test_imports_go_down(name: str) -> None:
    """Not a test for each file: 500 tests cost more than what they check."""
    files = [file for file in engine_files() if part(file) == name]
    found = (complaints(module_name(file), file.read_text(), file.name == "__init__.py") for file in files)
    assert list(chain.from_iterable(found)) == []


@pytest.mark.parametrize("api", ["openai", "anthropic", "ollama"])
def test_only_the_application_imports_the_routes_of_an_api(api: str) -> None:
    """It adds them to the others. What two APIs share is no part of either."""
    own = f"engine.server.{api}"
    found = {
        module_name(file)
        for file in (ROOT / "engine" / "server").rglob("*.py")
        for imported in imports(file.read_text(), module_name(file))
        if imported.startswith(own)
    }
    assert {module for module in found if not module.startswith(own)} == {"engine.server.app"}


def test_low_floors_and_the_engine_itself_do_not_import_torch() -> None:
    """This includes some higher modules: a server without weights works without torch, and a wrong name fails
    early.
    """
    modules = map(module_name, engine_files())
    low = [module for module in modules if floor(module) <= 1 and module != TENSORS_ON_FLOOR_1]
    low += [
        "engine.dry",
        "engine.host.child",
        "engine.host.child_engine",
        "engine.serving.engine",
        "engine.start",
        "engine.attention.registry",
        "engine.quant.registry",
    ]
    program = (
        f"import sys\nimport {', '.join(low)}\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


@pytest.mark.parametrize(
    ("module", "source", "word"),
    [
        ("engine.api.params", "from engine.kv.pool import BlockPool", "floor 1"),
        ("engine.api.params", "from engine import serving", "floor 4"),
        ("engine.api.params", "from .. import host", "floor 5"),
        ("engine.kv.pool", "from ..execution.cuda.graphs import Graph", "floor 3"),
        ("engine.kv.pool", "def late():\n    import torch.nn", "torch"),
        ("engine.scheduling.queue", "from transformers import AutoModel", "transformers"),
        ("engine.server.app", "import minichat.settings", "program"),
    ],
)
def test_a_wrong_import_is_detected(module: str, source: str, word: str) -> None:
    assert [word in complaint for complaint in complaints(module, source)] == [True]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("engine.kv.store", "import torch"),
        ("engine.kv.pool", "from .prefix import Chain\nfrom engine.api.params import SamplingParams"),
        ("engine.host.thread", "from engine.serving.engine import Engine\nimport asyncio"),
    ],
)
def test_a_right_import_passes(module: str, source: str) -> None:
    assert complaints(module, source) == []
