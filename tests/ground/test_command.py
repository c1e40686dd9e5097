"""`minichat --help` is fast because it imports nothing heavy."""

import subprocess
import sys
from pathlib import Path

HELP = """
import sys
sys.argv = ["minichat", "--help"]
from minichat.cli import main
try:
    code = main()
except SystemExit as end:
    code = end.code
heavy = {"torch", "transformers", "textual", "numpy", "tokenizers", "httpx", "huggingface_hub"}
print("loaded:", *sorted(heavy & set(sys.modules)))
sys.exit(code)
"""


def test_help_imports_nothing_heavy(root: Path) -> None:
    result = subprocess.run([sys.executable, "-c", HELP], cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    *text, loaded = result.stdout.splitlines()
    assert "minichat" in "\n".join(text)
    assert loaded == "loaded:"
