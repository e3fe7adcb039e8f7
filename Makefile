# Everything a contributor runs.  `make` alone lists the targets.

PYTHON ?= python3
JOBS   ?= 2
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

# FAST=1 leaves real Kubernetes out.
MARKS  := not long$(if $(FAST), and not kubernetes)

EXAMPLES := $(wildcard examples/pyproject.toml)
EXTRAS   := --extra server --extra etcd --extra service --extra otel --extra dev
COMPILE  := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
            $(if $(UPGRADE),--upgrade)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup up test test-long check reference fmt bench bench-windows bench-nodes bench-sync bench-startup bench-api bench-hostile conformance kube-assets node-assets client-assets queue-assets conformance-assets kube-assets-if-possible lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/installed ## Make .venv with what requirements.lock pins, and install this project into it

up: setup ## Run a world on this machine until Ctrl-C: a virtual cluster, and physical ones that it leases
	$(BIN)/tapestry up

test: setup $(if $(FAST),,$(VENV)/installed-bench kube-assets-if-possible) ## Run what CI runs: every test but the long ones (FAST=1: without Kubernetes)
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m "$(MARKS)"

test-long: setup kube-assets client-assets queue-assets conformance-assets ## Run soaks, kills by the hundred and other tests of many minutes
	$(BIN)/python tools/conformance.py --beside
	$(BIN)/pytest -m long

conformance: setup conformance-assets ## Run those of Kubernetes' conformance tests that need no containers against ours
	$(BIN)/python tools/conformance.py

check: setup ## Lint, formatting, types, layers, smells
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/smells.py

reference: setup ## Write again what docs/reference has of commands, kinds and labels
	$(BIN)/python tools/reference.py

fmt: setup ## Format the code and fix what the linter can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/installed-bench ## Measure; have the machine to yourself
	$(BIN)/python -m benchmarks

bench-windows: setup kube-assets ## Measure how exactly windows open and close: 50 edges in 6 minutes
	$(BIN)/python -m benchmarks.windows

bench-nodes: setup kube-assets ## Measure how soon 1,000 nodes are leased and what they cost
	$(BIN)/python -m benchmarks.nodes

bench-sync: setup kube-assets ## Measure what pods cost on their way down and up, against the least there can be
	$(BIN)/python -m benchmarks.sync

bench-startup: setup ## Measure how much longer than its libraries a command takes to start
	$(BIN)/python -m benchmarks.startup

bench-api: setup kube-assets ## Measure our API server against kube-apiserver with etcd
	$(BIN)/python -m benchmarks.api

bench-hostile: setup kube-assets ## Measure whether hostile and large requests keep our API server from answering others
	$(BIN)/python -m benchmarks.hostile

kube-assets: ## Build Kubernetes and etcd into the user's cache folder (needs Go 1.24+)
	@$(PYTHON) tools/kube_assets.py

node-assets: ## Build kubelet and kube-proxy too: the tests with real nodes need them, and root
	@$(PYTHON) tools/kube_assets.py --nodes

conformance-assets: ## Build Kubernetes' own tests: nine minutes, once
	@$(PYTHON) tools/kube_assets.py --conformance

client-assets: ## Build programs that talk to an API server, for the long tests of ours: helm, kwok
	@$(PYTHON) tools/kube_assets.py --clients

queue-assets: ## Build Kueue, for the long test of its guide
	@$(PYTHON) tools/kube_assets.py --queues

# Exit code 3 is "Go is not installed": on a contributor's machine the tests that need Kubernetes are then skipped.
kube-assets-if-possible:
	@$(PYTHON) tools/kube_assets.py || { test $$? = 3 && test "$$CI" != true; }

lock: $(BIN)/uv ## Pin again what pyproject.toml asks for (UPGRADE=1: the newest of it)
	$(COMPILE) $(EXTRAS) pyproject.toml --output-file requirements.lock
	$(COMPILE) --extra bench --constraints requirements.lock pyproject.toml --output-file benchmarks/requirements.lock

clean: ## Remove what the targets above left in this folder
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/installed: requirements.lock pyproject.toml $(EXAMPLES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is %d.%d: set PYTHON=python3.x" % sys.version_info[:2])'
	@echo "Installing what requirements.lock pins into $(VENV): a minute, once."
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e . $(if $(EXAMPLES),-e examples)
	@touch $@

$(VENV)/installed-bench: benchmarks/requirements.lock $(VENV)/installed
	$(PIP) install --require-hashes -r benchmarks/requirements.lock
	@touch $@

$(BIN)/uv: | $(VENV)/installed
	$(PIP) install uv
