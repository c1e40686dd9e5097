"""The keys of kernels, by which Triton finds them compiled.

Triton's key of a function has the constants that its callees use only if these have their keys already. So
the keys of two kernels with a callee in common would depend on which of them is first, and threads decide
that: a later process would compile them again.

It takes a tenth of a second to compute all of them. So a start with the code of an earlier one takes its
keys, if the global values that they depend on are the same.
"""

import json
import sys
from copy import deepcopy
from typing import Any

from triton.runtime.jit import JITFunction

_keyed: dict[int, JITFunction[Any]] = {}  # functions whose callees have keys, by their ids


def key_of(function: JITFunction[Any]) -> str:
    give_key(function)
    return str(function.cache_key)


def give_key(function: JITFunction[Any]) -> None:
    """Have Triton compute the key of a function, after those of its callees."""
    if id(function) in _keyed:
        return
    names, found = function.fn.__code__.co_names, function.fn.__globals__
    for callee in (found.get(name) for name in names):
        if isinstance(callee, JITFunction) and callee is not function:
            give_key(callee)
    function.cache_key  # noqa: B018  Triton keeps it
    _keyed[id(function)] = function


def globals_of(function: JITFunction[Any]) -> str:
    """The global values that a key depends on, as text. "": they are not in modules."""
    found = []
    for (name, _), (value, scope) in function.used_global_vals.items():
        module = str(scope.get("__name__"))
        if _scope(module) is not scope:
            return ""
        found.append((name, module, repr(value)))
    return json.dumps(found)


def take_key(function: JITFunction[Any], key: str, used: str) -> None:
    """Give a function the key of an earlier process with the same code. `used`: its `globals_of`."""
    if not used or function.fn.__closure__ or function.hash is not None:
        return
    values = dict[tuple[str, int], tuple[Any, dict[str, Any]]]()
    for name, module, text in json.loads(used):
        scope = _scope(module)
        if repr(value := scope.get(name)) != text:
            return
        values[name, id(scope)] = deepcopy(value), scope  # Triton looks before a launch if one has changed
    function.used_global_vals = values
    function.hash = key
    _keyed[id(function)] = function


def _scope(module: str) -> dict[str, Any]:
    return vars(sys.modules[module]) if module in sys.modules else {}
