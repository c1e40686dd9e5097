"""The keys of kernels, by which Triton finds them compiled.

Triton's key of a function has the constants that its callees use only if these have their keys already. So
the keys of two kernels with a callee in common would depend on which of them is first, and threads decide
that: a later process would compile them again.
"""

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
