# Two commands do everything on a fresh machine: `make demo` and `make test`.
# They need Python >= 3.10, make and a C compiler; what else is needed goes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= 3

# setuptools' own import hook for an editable install of several roots would add pathlib and 20 ms to the
# start of every process in this environment, and hide what a client costs: plain path entries do not.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
ROOTS   := @site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
           rm -f "$$site"/__editable__*ptocache* && \
           printf '%s\n' "$(CURDIR)" "$(CURDIR)/toolchains" "$(CURDIR)/cli" > "$$site/ptocache_roots.pth"

.PHONY: demo test test-frameworks lint format types bench docs soak mutants clean help

help:
	@echo "make demo     compile real kernels through the cache, cold and warm, and check their results"
	@echo "make test     every test (about 6 minutes on 2 cores)"
	@echo "make test-frameworks   the same with the real TileLang and Triton, in an environment of its own"
	@echo "make lint     ruff and mypy --strict"
	@echo "make bench    the benchmarks, as ratios against named rivals of the same run"
	@echo "make docs     check the links and commands of the documentation"
	@echo "make soak     the property and fault tests with a large budget, then 100,000 requests amid faults"
	@echo "make mutants  versions with a known fault, each of which a test must catch"

$(VENV)/base: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "ptocache needs Python 3.10 or newer; set PYTHON=…"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'setting up $(VENV) …'
	@$(INSTALL) -e .
	$(ROOTS)
	@touch $@

# Real device images to test with, as a file: it is never installed, and fits any host.
WHEEL := $(VENV)/wheels/pto_kernels-0.1.7-cp311-cp311-manylinux_2_34_x86_64.whl

$(WHEEL): | $(VENV)/base
	@echo 'downloading the images that the tests judge …'
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
	  --python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_34_x86_64 \
	  --dest $(@D) pto-kernels==0.1.7
	@touch $@

$(VENV)/dev: $(VENV)/base | $(WHEEL)
	@echo 'installing what the tests need …'
	@$(INSTALL) -e '.[dev]'
	$(ROOTS)
	@touch $@

demo: $(VENV)/base
	$(BIN)/ptocache demo

test: $(VENV)/dev
	$(BIN)/python -m pytest -n $(JOBS)

# The real frameworks want gigabytes, and Pythons for which they have wheels: an environment of their own.
FRAMEWORKS        := .venv-frameworks
FRAMEWORKS_PYTHON ?= $(PYTHON)

$(FRAMEWORKS)/ready: tests/frameworks/set_up.sh pyproject.toml
	@tests/frameworks/set_up.sh $(FRAMEWORKS_PYTHON) $(FRAMEWORKS)
	@touch $@

test-frameworks: $(FRAMEWORKS)/ready
	$(FRAMEWORKS)/bin/python -m pytest -n 2 tests/frameworks

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/base
	$(BIN)/python -m bench.client_import
	$(BIN)/python -m bench.hit_latency
	$(BIN)/python -m bench.identity
	$(BIN)/python -m bench.large_store
	$(BIN)/python -m bench.neighbours
	$(BIN)/python -m bench.storm
	$(BIN)/python -m bench.wrap

docs: $(VENV)/dev
	$(BIN)/python -m pytest -q tests/system/test_docs.py

# Everything long; the last line is the account of the soak proper, as JSON.
soak: $(VENV)/dev
	PTOCACHE_MACHINE_EXAMPLES=100 PTOCACHE_MACHINE_STEPS=60 PTOCACHE_FUZZ_EXAMPLES=10000 \
	  PTOCACHE_FUZZ_MUTANTS=240000 PTOCACHE_SEARCH_EXAMPLES=10000 \
	  PTOCACHE_DEATH_POINTS=all PTOCACHE_FLIPS=3000 \
	  PTOCACHE_FLOOD_CONNECTIONS=10000 PTOCACHE_FUZZ_FRAMES=20000 PTOCACHE_LARGEST_MIB=300 \
	  PTOCACHE_START_ROUNDS=50 PTOCACHE_KILL_ROUNDS=40 PTOCACHE_RANDOM=1 \
	  $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --timeout 3600 \
	  tests/property tests/faults tests/system/test_large_outputs.py
	$(BIN)/python -m tests.soak.run

mutants: $(VENV)/dev
	$(BIN)/python -m tests.mutants.run

clean:
	rm -rf $(VENV) $(FRAMEWORKS) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
