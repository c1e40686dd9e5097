# `make chat` and `make test` set up everything; `make help` lists all targets.
PYTHON ?= python3
VENV ?= .venv
# A test process more than there are cores: a quarter of the time, a test waits for another process.
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 8 ? cores + 1 : 8)))
ARGS ?=

BIN = $(VENV)/bin
INSTALL = command -v "$(PYTHON)" >/dev/null || { \
	echo "minichat needs Python 3.11 or newer, but $(PYTHON) was not found: install it, or set yours with 'make PYTHON=...'" >&2; \
	exit 2; }; "$(PYTHON)" install.py --venv "$(VENV)"
RECIPE_OF_ENVIRONMENT = pyproject.toml constraints.txt install.py

# Each test process and each program that a test starts would compile every file again without bytecode.
PYTEST = PYTHONDONTWRITEBYTECODE= "$(BIN)/python" -m pytest

.PHONY: help chat test soak cuda lint style types tests format bench results again shots pictures clean

help:  ## list these targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

chat: $(VENV)/.for-chat  ## install what is missing and start a chat; ARGS="--model ..." is passed to minichat
	@"$(BIN)/python" -m minichat $(ARGS)

test: style  ## install what is missing, then run lint, types and tests; ARGS is passed to pytest
	@$(MAKE) --no-print-directory -j2 types tests

tests: $(VENV)/.for-test
	@$(PYTEST) -n $(WORKERS) --dist worksteal $(ARGS)

soak: $(VENV)/.for-test  ## run the long tests that `make test` skips, and more random examples
	@$(PYTEST) -n $(WORKERS) --dist worksteal -m soak --timeout 600 $(ARGS)
	@EXAMPLES=40 $(PYTEST) -n $(WORKERS) --dist worksteal -m "hypothesis and not soak" --timeout 600 $(ARGS)

cuda: $(VENV)/.for-test  ## run only the tests that need an NVIDIA GPU
	@"$(BIN)/python" -m pytest -n 12 -m cuda --timeout 280 $(ARGS)

lint: style types  ## run ruff and mypy

style: $(VENV)/.for-test
	@"$(BIN)/ruff" check .
	@"$(BIN)/ruff" format --check .

types: $(VENV)/.for-test
	@"$(BIN)/mypy"

format: $(VENV)/.for-test  ## fix and format the code with ruff
	@"$(BIN)/ruff" check --fix-only .
	@"$(BIN)/ruff" format .

bench: $(VENV)/.for-chat  ## list the benchmarks; ARGS="NAME ..." runs one
	@"$(BIN)/python" -m benchmarks $(ARGS)

# Each sitting asks all questions before the next one begins, so that sittings of a case are minutes apart.
SITTINGS = 1 2 3
ASK = for sittings in $(SITTINGS); do \
	for question in latency throughput memory ablations "energy --price 0.1" \
		"peers --shape 335M --prompt 32 --reply 24 --requests 8 $(ARGS)"; do \
		"$(BIN)/python" -m minichat bench $$question --sittings $$sittings --json $(1) || exit; done; done

results: $(VENV)/.for-chat  ## measure the tables of docs/results.md on this machine; ARGS="--peer NAME=PYTHON" adds peers
	@$(call ASK,benchmarks/results/bench.jsonl)
	@"$(BIN)/python" -m minichat bench quick --json minichat/bench/reference.jsonl
	@"$(BIN)/python" -m docs.results

again: $(VENV)/.for-chat  ## measure these tables a second time, on another day, and say which figures agree
	@$(call ASK,again.jsonl)
	@"$(BIN)/python" -m docs.second benchmarks/results/bench.jsonl again.jsonl

shots: $(VENV)/.for-chat  ## update the documentation's screenshots from the real program
	@"$(BIN)/python" -m docs.shots

pictures: $(VENV)/.for-test  ## update the reference pictures of the screen tests; the diff shows what changed
	@UPDATE_PICTURES=1 "$(BIN)/python" -m pytest tests/pictures -q $(ARGS)

clean:  ## remove the environment, caches and build outputs
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.for-chat: $(RECIPE_OF_ENVIRONMENT)
	@$(INSTALL)
	@touch "$@"

$(VENV)/.for-test: $(RECIPE_OF_ENVIRONMENT)
	@$(INSTALL) --extra test
	@touch "$(VENV)/.for-chat" "$@"
