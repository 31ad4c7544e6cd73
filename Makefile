# Everything a contributor or a pipeline runs. `make demo` and `make test` each do all their own set-up on a fresh clone.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
export PYTHONPATH := $(CURDIR)
# Some images set it; without bytecode every one of hundreds of starts of Python compiles this project anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
SLOWEST := --durations=10 --durations-min=1
# Tests on clusters wait more than they compute: more workers than cores, each with a cluster of its own. A file stays with one worker.
CLUSTERS := 4
ON_CLUSTERS := $(PYTEST) -n $(CLUSTERS) --dist loadfile --no-loadscope-reorder $(SLOWEST)
# What only computes runs beside what waits for a cluster, at lower priority. Each prints when it has ended.
BESIDE := --no-print-directory --keep-going --output-sync=target
LOCK := --generate-hashes --no-emit-index-url --universal --python-version 3.11 --quiet --custom-compile-command "make lock"
CRD := crds/serving.dflash.io_dflashdeployments.yaml

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(STAMP): requirements-dev.lock
	@echo "==> Python environment in $(VENV), once (half a minute to five minutes, by the speed of the network; nothing is printed meanwhile)"
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + " (set PYTHON=...)" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-dev.lock
	@touch $@

.PHONY: binaries
binaries: $(STAMP) ## Build the test bed's Kubernetes, Prometheus and Helm (once, about 8 minutes on 2 cores)
	@$(BIN)/python -m testbed binaries >/dev/null

.PHONY: demo
demo: $(STAMP) binaries ## Serve a model, ask it, roll back a bad drafter, follow the load: 2 minutes (KEEP=1 leaves it running)
	@$(BIN)/python -m testbed.demo $(if $(KEEP),--keep)

.PHONY: playground
playground: $(STAMP) binaries ## Start a cluster with the operator and simulated engines, and leave it running for the tutorials
	@$(BIN)/python -m testbed.playground

.PHONY: demo-rollout
demo-rollout: $(STAMP) binaries ## Change the drafter under traffic: a good one is promoted, a broken one rolled back: 2 minutes
	@$(BIN)/python -m testbed.demo_rollout

.PHONY: demo-tuner
demo-tuner: $(STAMP) binaries ## Let the block size follow the load, by restart and by schedule; switch off a drafter that collapses: 3 minutes
	@$(BIN)/python -m testbed.demo_tuner

.PHONY: demo-down
demo-down: $(STAMP) ## Stop the cluster that `make playground` or `make demo KEEP=1` left running
	@$(BIN)/python -m testbed down --name demo

.PHONY: test
test: binaries ## Lint, types, layers and all fast tests
	@$(MAKE) $(BESIDE) --jobs=3 lint test-unit test-cluster

.PHONY: test-unit
test-unit: $(STAMP) ## The part of `make test` that needs no cluster
	@echo "==> unit"; nice $(PYTEST) -n auto $(SLOWEST) tests/unit tests/chart tests/monitoring

.PHONY: test-cluster
test-cluster: $(STAMP) binaries ## The part of `make test` that needs a cluster
	@echo "==> api, cluster"; $(ON_CLUSTERS) tests/cluster tests/testbed tests/api

.PHONY: lint
lint: $(STAMP) ## Style, types, layering
	@echo "==> style";  $(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@echo "==> types";  $(BIN)/mypy
	@echo "==> layers"; $(BIN)/lint-imports --no-logo 2>/dev/null | tail -4 || $(BIN)/lint-imports

.PHONY: crd
crd: $(STAMP) ## Generate the CustomResourceDefinition from the types
	@$(BIN)/python -m hack.crd $(CRD) charts/dflash-operator/files/crd.yaml

.PHONY: docs
docs: $(STAMP) ## Regenerate the tables of docs/
	@$(BIN)/python -m hack.docs_tables $$(grep -rl --include='*.md' '<!-- generated: ' docs)

.PHONY: site
site: $(STAMP) ## Build the documentation site in build/site; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict

.PHONY: site-serve
site-serve: $(STAMP) ## Show the documentation site while you write it, on http://127.0.0.1:8000
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --open

.PHONY: chart
chart: $(STAMP) ## Regenerate the schemas and tables of the charts' values
	@$(BIN)/python -m hack.chart_reference charts/dflash-operator
	@$(BIN)/python -m hack.models_chart

.PHONY: dashboards
dashboards: $(STAMP) ## Regenerate dashboards, recording rules and alerts in the chart
	@$(BIN)/python -m hack.dashboards

.PHONY: contract
contract: $(STAMP) ## Feed every command line to the real parsers of SGLang and vLLM (3.6 GB, once)
	@$(BIN)/python -m testbed.contract

.PHONY: e2e
e2e: binaries ## The slow level: kill points, a model of the planner, outages, traffic, 50 rollouts at once, a settled fleet, every example
	@status=0; export DFLASH_MODEL_SEQUENCES=$${DFLASH_MODEL_SEQUENCES:-500}; \
	$(MAKE) $(BESIDE) --jobs=2 e2e-simulated e2e-cluster || status=$$?; \
	$(MAKE) --no-print-directory e2e-settled || status=$$?; exit $$status

.PHONY: e2e-all
e2e-all: ## The same with every kill point and more random event sequences; `make e2e` samples both
	@DFLASH_KILL_POINTS=all DFLASH_MODEL_SEQUENCES=2000 $(MAKE) --no-print-directory e2e

.PHONY: e2e-simulated
e2e-simulated: $(STAMP) binaries # The part of `make e2e` that needs no cluster: the planner against a model, the tuner for days, rules by cluster
	@echo "==> model of the planner, simulations"; nice $(PYTEST) -n auto $(SLOWEST) tests/unit/planning/test_model.py tests/simulated

.PHONY: e2e-cluster
e2e-cluster: $(STAMP) binaries # The part of `make e2e` on clusters
	@echo "==> e2e"; $(ON_CLUSTERS) --ignore=tests/e2e/test_settled_fleet.py tests/e2e

.PHONY: e2e-lws
e2e-lws: $(STAMP) binaries ## Replicas over several nodes with the real LeaderWorkerSet controller: 3 minutes (LWS=PATH takes another build of it)
	@export DFLASH_REAL_LWS=1 $(if $(LWS),DFLASH_TESTBED_LWS_MANAGER=$(LWS)) $(if $(LWS_CONFIG),DFLASH_TESTBED_LWS_CONFIG=$(LWS_CONFIG)); \
	$(BIN)/python -m testbed binaries lws-manager >/dev/null; \
	echo "==> LeaderWorkerSet"; $(PYTEST) -s tests/testbed/test_leader_worker_sets.py tests/e2e/test_several_nodes.py

.PHONY: e2e-settled
e2e-settled: $(STAMP) binaries # The part of `make e2e` that nothing may run beside: it would show in what the fleet measures
	@echo "==> settled fleet"; $(PYTEST) tests/e2e/test_settled_fleet.py

.PHONY: images
images: $(STAMP) ## Build the operator's image with docker, podman or buildah (BASE_IMAGE=debian: no registry needed; SIMULATOR=1: the simulator too; ENGINE=sglang|vllm DIGEST=sha256:… [UPSTREAM=MIRROR]: an engine instead)
	@$(BIN)/python -m testbed.images $(if $(BASE_IMAGE),--base=$(BASE_IMAGE)) $(if $(REPOSITORY),--repository=$(REPOSITORY)) \
	  $(if $(BUILDER),--builder=$(BUILDER)) $(if $(SIMULATOR),--simulator) \
	  $(if $(ENGINE),--engine=$(ENGINE)) $(if $(ENGINE_RELEASE),--release=$(ENGINE_RELEASE)) $(if $(DIGEST),--digest=$(DIGEST)) \
	  $(if $(UPSTREAM),--upstream=$(UPSTREAM))

# A kubeconfig on the command line, not the one of the environment: a cluster is chosen on purpose.
ifeq ($(origin KUBECONFIG),command line)
.PHONY: e2e-node
e2e-node: $(STAMP)
	@$(BIN)/python -m testbed binaries kubectl helm >/dev/null
	@$(BIN)/python -m testbed.user_cluster --kubeconfig="$(KUBECONFIG)" --operator-image="$(OPERATOR_IMAGE)" --engine-image="$(ENGINE_IMAGE)"
	@echo "==> your cluster"; DFLASH_CHECKED_KUBECONFIG=$(KUBECONFIG) OPERATOR_IMAGE=$(OPERATOR_IMAGE) ENGINE_IMAGE=$(ENGINE_IMAGE) \
	  GPU_PRODUCT=$(GPU_PRODUCT) $(PYTEST) -s tests/user_cluster
else
.PHONY: e2e-node
e2e-node: $(STAMP) binaries ## Real pods on real nodes, 8 minutes; KUBECONFIG=… OPERATOR_IMAGE=… ENGINE_IMAGE=…: on your cluster, in one namespace
	@$(BIN)/python -m testbed.real_node check
	@$(BIN)/python -m testbed binaries kubelet kube-proxy coredns prometheus kube-router lws-manager >/dev/null
	@echo "==> images"; $(BIN)/python -m testbed.real_node images
	@echo "==> isolation"; $(PYTEST) tests/node/test_isolation.py
	@DFLASH_NODE_IMAGES=$$($(BIN)/python -m testbed.real_node images --quiet) $(MAKE) $(BESIDE) --jobs=2 e2e-node-life e2e-node-groups
endif

LIFE := tests/node/test_real_node.py tests/node/test_uninstall.py
# Each part has namespaces and a cluster of its own, and waits more than it computes. `make e2e-node` gives them the images.
ON_NODES := $(BIN)/python -m testbed.real_node run -- $(abspath $(BIN))/python -m pytest -s $(SLOWEST)

.PHONY: e2e-node-life
e2e-node-life: $(STAMP) # The part of `make e2e-node` from the installation to its end
	@echo "==> install, change, drain, reboot, uninstall"; $(ON_NODES) $(LIFE)

.PHONY: e2e-node-groups
e2e-node-groups: $(STAMP) # The part of `make e2e-node` with replicas over two nodes, and who may reach what
	@echo "==> access, replicas over two nodes"; \
	  $(if $(LWS),DFLASH_TESTBED_LWS_MANAGER=$(LWS)) $(if $(LWS_CONFIG),DFLASH_TESTBED_LWS_CONFIG=$(LWS_CONFIG)) \
	  $(ON_NODES) $(filter-out $(LIFE) %/test_isolation.py,$(sort $(wildcard tests/node/test_*.py)))

RELEASE := build/release
RELEASED := $(RELEASE)/.installed
$(RELEASED): requirements-release.lock
	@echo "==> Python environment in $(RELEASE), once (half a minute to five minutes)"
	@$(PYTHON) -m venv $(RELEASE)
	@$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-release.lock
	@touch $@

.PHONY: krew
krew: $(STAMP) $(RELEASED) ## Build kubectl dflash for krew in dist/, and install it with krew to try it: 4 minutes (URI=… HOMEPAGE=… ALSO=… of a release)
	@echo "==> archive and manifest"; $(RELEASE)/bin/python -m hack.krew $(if $(URI),--uri=$(URI)) $(if $(HOMEPAGE),--homepage=$(HOMEPAGE)) \
	  $(if $(ALSO),--also $(ALSO))
	@$(BIN)/python -m testbed binaries kubectl krew >/dev/null
	@echo "==> installed by krew"; $(PYTEST) tests/krew

.PHONY: bench
bench: $(STAMP) binaries ## Measure the operator on a fleet; one JSON object per line
	@$(BIN)/python -m benchmarks.fleet

.PHONY: bench-rollout
bench-rollout: $(STAMP) ## Measure false promotions and rollbacks by simulation; one JSON line
	@$(BIN)/python -m benchmarks.rollout

.PHONY: bench-traces
bench-traces: $(STAMP) ## Let the tuner follow simulated weeks of load, compared with fixed block sizes, a threshold and an oracle (10 minutes)
	@$(BIN)/python -m benchmarks.traces

.PHONY: bench-tuner
bench-tuner: $(STAMP) ## Measure the choice of block sizes on published tables; one JSON object per line
	@$(BIN)/python -m benchmarks.tuner

.PHONY: gpu
gpu: $(STAMP) ## The whole loop on a real engine and an NVIDIA GPU: ENGINE=vllm|sglang MODEL=dense|hybrid|moe|NAME PYTHON=… (SIMULATOR=1: no GPU)
	@$(BIN)/python -m testbed.gpu_loop run --engine=$(or $(ENGINE),vllm) --model=$(or $(MODEL),dense) \
	  $(if $(SIMULATOR),--simulator,--python=$(PYTHON)) $(if $(DRAFTER),--drafter=$(DRAFTER)) $(GPU_OPTIONS)

.PHONY: lock
lock: $(STAMP) ## Renew both lock files from pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip compile pyproject.toml --extra dev --extra docs $(LOCK) --upgrade --output-file requirements-dev.lock
	@grep -oE '^[a-z0-9_.-]+==[^\\]+' requirements-dev.lock >$(VENV)/constraints.txt
	@$(BIN)/uv pip compile pyproject.toml $(LOCK) --constraints $(VENV)/constraints.txt --output-file requirements.lock
	@$(BIN)/uv pip compile pyproject.toml --extra cli --extra release $(LOCK) --constraints $(VENV)/constraints.txt \
	  --output-file requirements-release.lock

.PHONY: clean
clean: ## Remove the environment and caches of this clone (the test bed's binaries stay in the user cache)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
