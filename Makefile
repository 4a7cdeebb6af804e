# Every target makes .venv by itself; a Python of 3.11 or newer and make are all that is needed.
# make PYTHON=/path/to/python demo    takes that interpreter. make demo ARGS="--when later"    passes arguments on.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := .venv-peers
PEERS_READY := $(PEERS)/.ready
PEERS_PYTHON ?= $(BIN)/python
GYM := .venv-gym
GYM_READY := $(GYM)/.ready
ARGS ?=
RUNS ?= 20
SEED ?= 0
PROFILE ?= deep
MINUTES ?=
SHELL := /bin/bash
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A tool that is run from here must see this tree and nothing that the caller's shell puts before it.
unexport PYTHONPATH
unexport PYTHONHOME

.PHONY: help demo test conform gym-demo bench-gym test-gym gym-deep kill crash-points simulate models stateful mutations mutate-cells lint format bench bench-checking wheel-check docs clean

help:
	@echo "make demo         rollouts on real servers: checkpointed, killed with kill -9, brought back (ARGS=\"--when later\")"
	@echo "make test         all tests, with the time of each suite"
	@echo "make conform      servers of every kind, on real sockets, asked whether they keep the protocol (ARGS=\"lease blockers\")"
	@echo "make gym-demo     the demo on real NeMo Gym servers (ARGS=\"--kill counter\")"
	@echo "make bench-gym    what checkpoints cost on them"
	@echo "make test-gym     the embedding, on real NeMo Gym servers (needs Python 3.12 or newer; 600 MB in .venv-gym)"
	@echo "make gym-deep     each Gym environment, each kind of its servers, each moment, hit by SIGKILL; 20 kills of a collection (hours)"
	@echo "make kill         jobs on real processes, hit by SIGKILL, SIGSTOP and SIGCONT as a seed says (RUNS=500, SEED=17)"
	@echo "make crash-points each file operation and each message of a checkpoint and a restore, gone wrong in every way (minutes)"
	@echo "make simulate     whole jobs in virtual time, under every fault that a seed draws (SEEDS=200, MINUTES=5, SEED=17 as a story)"
	@echo "make models       the large models too, explored to the end (minutes)"
	@echo "make stateful     random operations on the running code (PROFILE=ci; MINUTES=60, SEED=17: one seed alone)"
	@echo "make mutations    breaks the code in each place that is listed, and asks whether a test notices (minutes)"
	@echo "make mutate-cells breaks every cell of every table, and asks which suite notices (minutes)"
	@echo "make lint         ruff, mypy --strict, import-linter"
	@echo "make format       lets ruff order the imports and mend what it can"
	@echo "make bench        all that is measured (ARGS=--short for a quick look)"
	@echo "make bench-checking  ours beside other checkers, which it installs (PEERS_PYTHON=python3.12: musil needs that)"
	@echo "make docs         writes the generated pages of docs/ anew"
	@echo "make wheel-check  builds the wheel and runs the demo from it, in a venv and a directory of its own"
	@echo "make clean        removes .venv and everything else that was made here"

demo: $(READY)
	@$(BIN)/statecore demo $(ARGS)

test: $(READY)
	@$(BIN)/python .ci/suites.py $(ARGS)

conform: $(READY)
	@$(BIN)/python -m tests.conform_served $(ARGS)

gym-demo: $(GYM_READY)
	@$(GYM)/bin/statecore gym demo $(ARGS)

bench-gym: $(GYM_READY)
	@$(GYM)/bin/python -m gym_tests.bench $(ARGS)

test-gym: $(GYM_READY)
	@$(GYM)/bin/python -m pytest gym_tests -q -p no:asyncio --durations=5 $(ARGS)

# make test-gym makes the first ten of these runs.
gym-deep: $(GYM_READY)
	@$(GYM)/bin/python -m gym_tests.kill_runs --runs 0 $(ARGS)
	@$(GYM)/bin/python -m gym_tests.collect_kills --kills 20 --tasks 200

# A run is a number: make kill SEED=17 RUNS=1 does again what run 17 of a long series did.
kill: $(READY)
	@$(BIN)/python -m tests.kill_runs --seed $(SEED) --runs $(RUNS) $(ARGS)

# make crash-points ARGS="--point TORN 60" looks at one.
crash-points: $(READY)
	@$(BIN)/python -m tests.crash_points $(ARGS)

# SEED is also the kill runs': here it counts only if somebody gives it.
simulate: $(READY)
ifneq ($(origin SEED),file)
	@$(BIN)/statecore simulate --seed $(SEED) $(ARGS)
else
	@$(BIN)/statecore simulate $(if $(MINUTES),--minutes $(MINUTES) $(if $(SEEDS),--seeds $(SEEDS)),--seeds $(or $(SEEDS),200)) $(ARGS)
endif

# Those marked slow are deselected everywhere else, which pytest's last line says.
models: $(READY)
	$(BIN)/python -m pytest models -m "slow or not slow" --durations=10 $(ARGS)

mutations: $(READY)
	@$(BIN)/python -m tests.mutants $(ARGS)

# What fails names its seed: make stateful PROFILE=ci SEED=17 looks at that one alone.
stateful: $(READY)
	@HYPOTHESIS_PROFILE=$(PROFILE) MINUTES=$(MINUTES) SEED=$(if $(filter command environment,$(firstword $(origin SEED))),$(SEED)) \
		$(BIN)/python -m pytest stateful_tests -q --durations=5 $(ARGS)

# make mutate-cells ARGS="gate handoff" takes some of the tables.
mutate-cells: $(READY)
	@$(BIN)/python -m tests.cell_mutations $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .

bench: $(READY)
	@$(BIN)/python -m benchmarks $(ARGS)

# Spin is a Debian package; without it (or without musil, on an older Python) the rows say so and the others are measured.
bench-checking: $(READY) $(PEERS_READY)
	@{ command -v spin && command -v gcc; } >/dev/null || echo "for the rows of Spin: apt-get install spin gcc"
	@$(BIN)/python -m benchmarks --only checking $(ARGS)

docs: $(READY)
	$(BIN)/python docs/generate.py

wheel-check: $(READY)
	@bash .ci/wheel_check.sh $(BIN)/python

clean:
	rm -rf $(VENV) $(PEERS) $(GYM) dist build .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .test-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml .ci/find_python.sh
	@set -e; python=$$(PYTHON="$(PYTHON)" bash .ci/find_python.sh); \
	echo "making $(VENV) with $$python ($$($$python --version))"; \
	rm -rf $(VENV); $$python -m venv $(VENV); \
	$(BIN)/python -m pip install --quiet --editable ".[dev]"; \
	touch $(READY)

# Whoever names an interpreter wants that one.
ifeq ($(origin PEERS_PYTHON),command line)
.PHONY: $(PEERS_READY)
endif

$(PEERS_READY): benchmarks/checkers/requirements.txt | $(READY)
	@set -e; echo "making $(PEERS) with $(PEERS_PYTHON) ($$($(PEERS_PYTHON) --version))"; \
	rm -rf $(PEERS); $(PEERS_PYTHON) -m venv $(PEERS); \
	$(PEERS)/bin/python -m pip install --quiet --requirement benchmarks/checkers/requirements.txt; \
	touch $(PEERS_READY)

# Servers of NeMo Gym want a newer Python than ours do, and libraries that nothing else here needs.
$(GYM_READY): gym_tests/requirements.txt .ci/gym_env.sh .ci/find_python.sh pyproject.toml
	@set -e; python=$$(LEAST=12 PYTHON="$(PYTHON)" bash .ci/find_python.sh); \
	echo "making $(GYM) with $$python ($$($$python --version))"; \
	bash .ci/gym_env.sh $(GYM) $$python; \
	touch $(GYM_READY)
