# make demo   set up everything and run the main job on the embedded default
# make test   set up everything and run the tests
# make check  format, lint, types, direction of imports
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := plots,train,lora,webshop,scienceworld,gym,dev

# torch goes first and alone: a pinned CPU build instead of gigabytes of CUDA packages
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

.PHONY: setup demo test test-slow check format

setup: $(VENV)/installed

demo: setup
	$(BIN)/divopd demo

test: setup
	$(BIN)/python -m pytest

test-slow: setup
	$(BIN)/python -m pytest -m slow

check: setup
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/lint-imports
	$(BIN)/pyright

format: setup
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/ruff check --fix src tests benchmarks examples
