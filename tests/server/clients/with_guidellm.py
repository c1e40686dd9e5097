"""guidellm against the built-in model's server of `python -m tests.server.clients`. Needs only guidellm."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

POCKET, _, KEY = sys.argv[1:]
TOKENIZER = Path(__file__).parents[3] / "engine" / "pocket"
REQUESTS, TOKENS = 24, 8
ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
PROFILES = ("kind=concurrent,streams=8", "kind=poisson,rate=8")


def run(route: str, profile: str, report: Path) -> str:
    """Return what went wrong, or "" if all requests were answered in full."""
    backend = f"kind=openai_http,target={POCKET},model=test-model,api_key={KEY},request_format={route}"
    options = {
        "backend": backend,
        "profile": profile,
        "constraint": f"kind=max_requests,count={REQUESTS}",
        "tokenizer": f"kind=huggingface_auto,model={TOKENIZER}",
        "data": f"kind=synthetic_text,prompt_tokens=32,output_tokens={TOKENS}",
        "output": f"kind=json,path={report}",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "guidellm", "run", *words, "--disable-console"]
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(command, env=offline, capture_output=True, text=True, check=False)
    if ran.returncode:
        return ran.stderr[-600:]
    [measured] = json.loads(report.read_text())["benchmarks"]
    made = measured["metrics"]["request_totals"]
    if made["successful"] != made["total"] or made["total"] < REQUESTS - 1:  # it may leave out the last one
        return str(made)
    counts = {each["output_tokens"] for each in measured["requests"]["successful"]}
    return "" if counts == {TOKENS} else f"replies have {counts} tokens"


failed = 0
print("guidellm", version("guidellm"))
with TemporaryDirectory() as folder:
    for route, profile in [*((each, PROFILES[0]) for each in ROUTES), (ROUTES[0], PROFILES[1])]:
        problem = run(route, profile, Path(folder) / "report.json")
        failed += bool(problem)
        print(f"failed  {route}, {profile}: {problem}" if problem else f"ok      {route}, {profile}")
sys.exit(bool(failed))
