# `make chat` and `make test` do everything; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
ARGS ?=

BIN = $(VENV)/bin
INSTALL = command -v "$(PYTHON)" >/dev/null || { \
	echo "minichat needs Python 3.11 or newer, and there is no $(PYTHON): install it, or name yours with 'make PYTHON=...'" >&2; \
	exit 2; }; "$(PYTHON)" install.py --venv "$(VENV)"
RECIPE_OF_ENVIRONMENT = pyproject.toml constraints.txt install.py

.PHONY: help chat test soak cuda lint format bench shots pictures clean

help:  ## list these commands
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

chat: $(VENV)/.for-chat  ## install what is missing and chat; ARGS="--model ..." goes to minichat
	@"$(BIN)/python" -m minichat $(ARGS)

test: lint  ## install what is missing, then lint, types and tests; ARGS goes to pytest
	@"$(BIN)/python" -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

soak: $(VENV)/.for-test  ## the long tests that `make test` leaves out, and no others
	@"$(BIN)/python" -m pytest -n $(WORKERS) --dist worksteal -m soak --timeout 600 $(ARGS)

cuda: $(VENV)/.for-test  ## the tests that need an NVIDIA GPU, and no others
	@"$(BIN)/python" -m pytest -n 12 -m cuda --timeout 280 $(ARGS)

lint: $(VENV)/.for-test  ## ruff and mypy
	@"$(BIN)/ruff" check .
	@"$(BIN)/ruff" format --check .
	@"$(BIN)/mypy"

format: $(VENV)/.for-test  ## rewrite the code as ruff wants it
	@"$(BIN)/ruff" check --fix-only .
	@"$(BIN)/ruff" format .

bench: $(VENV)/.for-chat  ## list the benchmarks; ARGS="NAME ..." runs one
	@"$(BIN)/python" -m benchmarks $(ARGS)

shots: $(VENV)/.for-chat  ## take the pictures of the documentation from the real program
	@"$(BIN)/python" -m docs.shots

pictures: $(VENV)/.for-test  ## take anew what the screens are compared with; the diff shows what changed
	@UPDATE_PICTURES=1 "$(BIN)/python" -m pytest tests/pictures -q $(ARGS)

clean:  ## remove the environment, the caches and what was built
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.for-chat: $(RECIPE_OF_ENVIRONMENT)
	@$(INSTALL)
	@touch "$@"

$(VENV)/.for-test: $(RECIPE_OF_ENVIRONMENT)
	@$(INSTALL) --extra test
	@touch "$(VENV)/.for-chat" "$@"
