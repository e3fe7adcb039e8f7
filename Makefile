# Tasks for contributors. `make` alone lists the targets.

PYTHON ?= python3
# Many tests wait for processes, so two cores run three at a time.
JOBS   ?= 3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

# FAST=1 skips the tests that need a real Kubernetes.
MARKS  := not long$(if $(FAST), and not kubernetes)

EXAMPLES := $(wildcard examples/pyproject.toml)
EXTRAS   := --extra server --extra etcd --extra service --extra otel --extra dev
COMPILE  := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
            $(if $(UPGRADE),--upgrade)

# Child processes of the tests start faster with compiled modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup e2e image image-lock bench-image up test test-long check reference contract fmt bench bench-windows bench-nodes bench-sync bench-startup bench-api bench-hostile bench-planes bench-tenants bench-vclusters bench-streams conformance conformance-planes kube-assets node-assets client-assets generator-assets queue-assets monitoring-assets conformance-assets kube-assets-if-possible lock clean bench-dns

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/installed ## Create .venv from requirements.lock and install this project into it

up: setup ## Run a world on this machine until Ctrl-C: a virtual cluster that leases nodes of physical ones
	$(BIN)/tapestry up

test: setup $(if $(FAST),,$(VENV)/installed-bench kube-assets-if-possible) ## Run all tests except the long ones, as CI does (FAST=1: without Kubernetes)
	$(BIN)/pytest -n $(JOBS) --dist worksteal --durations 40 --durations-min 5 -m "$(MARKS)"

test-long: setup kube-assets node-assets client-assets generator-assets queue-assets monitoring-assets conformance-assets ## Run the long tests: soak tests, hundreds of kills, conformance
	$(BIN)/python tools/conformance.py --beside
	$(BIN)/python tools/conformance.py --planes
	ALL_PROGRAMS=1 $(BIN)/pytest -m long

e2e: setup node-assets client-assets monitoring-assets ## Run the charts, the image, the monitoring and tenants on real clusters (needs root, 22 minutes)
	ALL_PROGRAMS=1 $(BIN)/pytest -n 0 -m "" tests/integration/test_charts.py tests/integration/test_prepared_clusters.py \
	tests/integration/test_chart_releases.py tests/integration/test_alert_rules.py tests/e2e/test_image.py \
	tests/e2e/test_prometheus.py tests/e2e/test_installed_release.py tests/e2e/test_installed_job.py \
	tests/e2e/test_tenants_on_real_nodes.py tests/e2e/test_tenants_over_two_hops.py tests/e2e/test_charts_in_tenants.py \
	tests/integration/test_manager_on_kubernetes.py::test_syncers_run_in_a_separate_cluster

conformance: setup conformance-assets ## Run the Kubernetes conformance tests that need no containers against Tapestry
	$(BIN)/python tools/conformance.py

conformance-planes: setup conformance-assets ## Run those tests that need a server on a plane among 50 busy planes
	$(BIN)/python tools/conformance.py --planes

check: setup ## Check lint, formatting, types, layers, smells and generated files
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/smells.py
	$(BIN)/python tools/contract.py --check
	$(BIN)/python tools/reference.py --check

reference: setup ## Regenerate docs/reference and manifests/crds from commands, kinds and labels
	$(BIN)/python tools/reference.py

contract: setup ## Generate the stubs of the lifecycle API from proto/
	$(BIN)/python tools/contract.py

fmt: setup ## Format the code and apply automatic lint fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/installed-bench ## Run the benchmarks on an otherwise idle machine
	$(BIN)/python -m benchmarks

bench-windows: setup kube-assets ## Measure how exactly windows open and close: 50 edges in 6 minutes
	$(BIN)/python -m benchmarks.windows

bench-nodes: setup kube-assets ## Measure how fast 1,000 nodes are leased and how much they cost
	$(BIN)/python -m benchmarks.nodes

bench-sync: setup kube-assets ## Measure the cost of syncing pods, compared with a minimal relay
	$(BIN)/python -m benchmarks.sync

bench-startup: setup ## Measure the startup time of commands, compared with their libraries
	$(BIN)/python -m benchmarks.startup

bench-api: setup kube-assets ## Measure the API server, compared with kube-apiserver and etcd
	$(BIN)/python -m benchmarks.api

bench-hostile: setup kube-assets ## Measure response times of the API server under hostile and large requests
	$(BIN)/python -m benchmarks.hostile

bench-planes: setup ## Measure the memory and the times of planes, and how much they delay each other
	$(BIN)/python -m benchmarks.planes

bench-tenants: setup ## Measure the memory and the times of tenants, and how much they delay each other
	$(BIN)/python -m benchmarks.tenants

bench-vclusters: setup ## Measure the lifecycle service: creates, lists, and gets compared with our API server
	$(BIN)/python -m benchmarks.vclusters

bench-dns: setup ## Measure queries to the DNS resolver of a tenant, compared with a bare UDP echo
	$(BIN)/python -m benchmarks.dns

bench-image: image ## Measure the cold start of a syncer in the image, compared with this machine (needs root)
	PYTHONPATH=tools $(BIN)/python -m benchmarks.image_startup

image: setup ## Build the container image for amd64 and arm64 into dist/image and dist/image.tar (needs Debian's apt)
	$(BIN)/python tools/image.py

image-lock: setup ## Pin the newest versions of the image's Debian packages in tools/image/packages.lock
	$(BIN)/python tools/image.py --lock

bench-streams: setup kube-assets node-assets ## Measure exec and logs through the API server, compared with kube-apiserver
	$(BIN)/python -m benchmarks.streams

kube-assets: ## Build Kubernetes and etcd into the user's cache folder (needs Go 1.24+)
	@$(PYTHON) tools/kube_assets.py

node-assets: ## Also build kubelet and kube-proxy, for the tests with real nodes (which need root)
	@$(PYTHON) tools/kube_assets.py --nodes

conformance-assets: ## Build the tests of Kubernetes (nine minutes, once)
	@$(PYTHON) tools/kube_assets.py --conformance

client-assets: ## Build helm, kwok and metrics-server, for long tests
	@$(PYTHON) tools/kube_assets.py --clients

generator-assets: ## Install a generator of API clients, for the long test of the OpenAPI documents; it needs Java
	@folder=$$($(PYTHON) tools/kube_assets.py --print-dir)/openapi-generator && \
	if [ ! -e $$folder/bin/openapi-generator-cli ]; then $(PYTHON) -m venv $$folder && \
	$$folder/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r tools/openapi-generator/requirements.lock; fi

queue-assets: ## Build Kueue, for the long test of its guide
	@$(PYTHON) tools/kube_assets.py --queues

monitoring-assets: ## Build Prometheus and promtool, for the tests of alerting rules
	@$(PYTHON) tools/kube_assets.py --monitoring

# Exit code 3 means that Go is not installed. Outside CI, the tests that need Kubernetes are then skipped.
kube-assets-if-possible:
	@$(PYTHON) tools/kube_assets.py || { test $$? = 3 && test "$$CI" != true; }

lock: $(BIN)/uv ## Update the lock files from pyproject.toml (UPGRADE=1: to the newest versions)
	$(COMPILE) $(EXTRAS) pyproject.toml --output-file requirements.lock
	$(COMPILE) --extra bench --constraints requirements.lock pyproject.toml --output-file benchmarks/requirements.lock
	$(COMPILE) tools/openapi-generator/requirements.in --output-file tools/openapi-generator/requirements.lock

clean: ## Delete all files that the other targets create in this folder
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/installed: requirements.lock pyproject.toml $(EXAMPLES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is required, this is %d.%d: set PYTHON=python3.x" % sys.version_info[:2])'
	@echo "Installing requirements.lock into $(VENV). This takes a minute, once."
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e . $(if $(EXAMPLES),-e examples)
	@touch $@

$(VENV)/installed-bench: benchmarks/requirements.lock $(VENV)/installed
	$(PIP) install --require-hashes -r benchmarks/requirements.lock
	@touch $@

$(BIN)/uv: | $(VENV)/installed
	$(PIP) install uv
