# One command per job; `make check` is what every commit passes and CI runs.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Many tests wait for processes, so more workers than cores is right.
WORKERS ?= 4
# More arguments for pytest, such as --last-failed.
PYTEST_ARGS ?=
COMPILED_TESTS := tests/modelservice tests/e2e tests/test_compiling.py tests/test_trainer_pages.py
# Without byte code on disk every worker compiles every test, and every process all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test compiled test-compiled test-clients test-export test-torch test-sandboxes soak-service soak-sandbox soak-rollout fuzz bench check lint fmt clean

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready  ## make .venv with everything the demo and the tests need

$(VENV)/.ready: pyproject.toml constraints.txt hatch_build.py $(wildcard rock/sandbox/native/*.[ch])
	@scripts/setup.sh "$(PYTHON)" "$(VENV)"
	@touch $@

demo: setup      ## run the whole loop: agents, ModelService, trainer, grades
	@$(BIN)/rock demo

test: setup      ## run the test suite (under five minutes)
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

compiled: setup  ## a copy of this checkout in build/compiled with ModelService compiled (mypyc)
	@scripts/compiled.sh $(BIN)/python

test-compiled: compiled  ## what drives ModelService, on its compiled form
	@cd build/compiled && PYTHONPATH=$$PWD ROCK_REQUIRE=$${ROCK_REQUIRE:+$$ROCK_REQUIRE,}compiled \
		$(abspath $(BIN))/pytest -n $(WORKERS) --dist worksteal $(COMPILED_TESTS) $(PYTEST_ARGS)

test-export: setup  ## the exports, read by the projects they are for (makes .venv-export, 2 GB)
	scripts/export-envs.sh
	@$(BIN)/pytest -m packages tests/rollout/export

test-torch: setup  ## exported tokens against a real transformer, a real learner (makes .venv-torch, 1 GB)
	scripts/torch-env.sh "$(PYTHON)" .venv-torch
	@$(BIN)/pytest -m torch

test-sandboxes: setup  ## every check of the sandbox contract on every provider
	@$(BIN)/pytest -m "soak or not soak" -n $(WORKERS) --dist worksteal tests/sandbox/test_conformance.py $(PYTEST_ARGS)

soak-sandbox: setup  ## thousands of sandboxes with faults: nothing may be left, memory may not grow
	@$(BIN)/pytest -m soak -s tests/sandbox/test_soak.py tests/sandbox/test_engine_restart.py

soak-service: setup  ## break ModelService for a long time: kills, full disks, hostile content
	@$(BIN)/pytest -m soak -s tests/modelservice

soak-rollout: setup ## all that a run stands on killed in every phase, storms, broken run directories
	@$(BIN)/pytest -m soak tests/rollout tests/cli

fuzz: setup      ## ten thousand hostile bodies per dialect, thousands of hostile frames for the helper
	@$(BIN)/pytest -m fuzz -s tests/modelservice/test_dialect_socket_fuzz.py tests/sandbox/test_helper_fuzz.py

bench: setup     ## measure the loop and sandboxes beside others, against their bars
	@benchmarks/peers.sh
	@$(BIN)/python benchmarks/loop.py --check
	@$(BIN)/python benchmarks/sandbox.py --check
	@$(BIN)/python benchmarks/sandbox_state.py --check

test-clients: setup  ## install real agents (2.5 GB, once) and run them against ModelService
	-@$(BIN)/python -m tests.clients.install
	-@! docker version >/dev/null 2>&1 || tests/images/build.sh test trixie
	@$(BIN)/pytest -m clients -n $(WORKERS) tests/clients $(PYTEST_ARGS)

lint: setup      ## format check, ruff, pyright, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

fmt: setup       ## fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: lint test ## everything a commit must pass

clean:           ## remove what setup made
	rm -rf $(VENV) .venv-export .venv-torch build/compiled build/compiled-wheel rock/sandbox/native/rock-init
