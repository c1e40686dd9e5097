"""Parts of torch that a start leaves out are there once something needs them. A process for each case."""

import subprocess
import sys

import pytest

START = """
import sys
from engine import early, later
early.import_torch()
import torch
drawn = torch.Generator().manual_seed(7).initial_seed()  # of a class that is in what is left out
print(sorted(later._empty) == sorted(later._LATER), "torch._decomp" in sys.modules, drawn)
"""
NEEDS = {  # what needs it, what that prints, and how many parts are still left out
    "an operator on tensors without data": (
        "print(*later.without_data(lambda: torch.where(torch.ones(3, 4) > 0, torch.ones(4), 0.0)).shape)",
        "3 4",
        0,
    ),
    "something inside": (
        "from torch._meta_registrations import meta_baddbmm\n"
        "print(torch.export.export.__name__, callable(meta_baddbmm), hasattr(torch.export, 'missing'))",
        "export True False",
        1,
    ),
    "the compiler": (
        "import torch._dynamo; print(torch._meta_registrations.aten is torch.ops.aten)",
        "True",
        0,
    ),
    "a module inside, which its package imports": (
        "from torch.export.unflatten import FlatArgsAdapter\n"
        "print(torch.export.FlatArgsAdapter is FlatArgsAdapter)",
        "True",
        2,
    ),
    "whatever may come": ("later.load(); import torch.export; print(torch.export.Dim.__name__)", "Dim", 0),
}


QUICK = "a module inside, which its package imports"


@pytest.mark.soak  # the next test has one of them
@pytest.mark.parametrize("need", NEEDS)
def test_what_a_start_leaves_out_is_loaded_when_it_is_needed(need: str) -> None:
    needs, printed, left = NEEDS[need]
    assert lines(f"{START}{needs}\nprint(len(later._empty))") == ["True False 7", printed, str(left)]


def test_a_start_of_a_model_needs_none_of_it() -> None:
    needs, printed, left = NEEDS[QUICK]
    program = f"""{START}
from engine.api.config import EngineConfig
from engine.start import start
engine = start(EngineConfig(model="pocket", device="cpu"))
engine.snapshot()
print(len(later._empty))
engine.die("over")
engine.close()
{needs}
print(len(later._empty))
"""
    assert lines(program) == ["True False 7", "3", printed, str(left)]


def lines(program: str) -> list[str]:
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return found.stdout.splitlines()
