"""Large packages that only some tests use: every test process imports all test files."""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType


def lazy(name: str) -> ModuleType:
    """Return the module, which is loaded at the first use of one of its attributes."""
    if name in sys.modules:
        return sys.modules[name]
    spec = find_spec(name)
    assert spec is not None and spec.loader is not None, f"{name} is not installed"
    spec.loader = LazyLoader(spec.loader)
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
