"""Check every architecture, and write the table into docs/models.md: `python -m tests.matrix`.

With names, `python -m tests.matrix llama qwen3`, only these are checked; the others keep their rows.
"""

import sys
from collections import Counter
from pathlib import Path

from tests.matrix.check import Result, check
from tests.matrix.small import MODEL_TYPES

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"


def table(results: list[Result]) -> str:
    counts = Counter(result.status for result in results)
    lines = [", ".join(f"{count} {status}" for status, count in counts.most_common()) + ".", ""]
    lines += ["| `model_type` | run by | why not |", "|---|---|---|"]
    lines += [f"| `{each.model_type}` | {each.status} | {each.why.replace('|', '/')} |" for each in results]
    return "\n".join(lines)


def recorded(page: str) -> dict[str, str]:
    """Return the status of each architecture in the page's table."""
    return {each.model_type: each.status for each in results_on(page)}


def results_on(page: str) -> list[Result]:
    rows = page.split(BEGIN)[1].split(END)[0].splitlines()
    cells = [row.split(" | ") for row in rows if row.startswith("| `") and "`model_type`" not in row]
    return [Result(name.strip("| `"), status, why.removesuffix(" |").strip()) for name, status, why in cells]


def main(names: list[str]) -> None:
    if unknown := set(names) - set(MODEL_TYPES):
        raise SystemExit(f"no architecture of transformers: {', '.join(sorted(unknown))}")
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    kept = {each.model_type: each for each in results_on(page)} if names else {}
    changed = set(names or MODEL_TYPES)
    found = table([check(name) if name in changed else kept[name] for name in MODEL_TYPES])
    PAGE.write_text(f"{before}{BEGIN}\n{found}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
