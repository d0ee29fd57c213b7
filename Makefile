# Two commands do everything on a fresh machine: `make demo` and `make test`.
# They need Python >= 3.10, make and a C compiler; what else is needed goes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= 2

# setuptools' own import hook for an editable install of several roots would add pathlib and 20 ms to the
# start of every process in this environment, and hide what a client costs: plain path entries do not.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
ROOTS   := @site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
           rm -f "$$site"/__editable__*ptocache* && \
           printf '%s\n' "$(CURDIR)" "$(CURDIR)/toolchains" "$(CURDIR)/cli" > "$$site/ptocache_roots.pth"

.PHONY: demo test lint format types bench docs soak clean help

help:
	@echo "make demo     compile real kernels through the cache, cold and warm, and check their results"
	@echo "make test     every test (about 6 minutes on 2 cores)"
	@echo "make lint     ruff and mypy --strict"
	@echo "make bench    the benchmarks, as ratios against named rivals of the same run"
	@echo "make docs     check the links and commands of the documentation"
	@echo "make soak     the property and fault tests with a large budget"

$(VENV)/base: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "ptocache needs Python 3.10 or newer; set PYTHON=…"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'setting up $(VENV) …'
	@$(INSTALL) -e .
	$(ROOTS)
	@touch $@

$(VENV)/dev: $(VENV)/base
	@echo 'installing what the tests need …'
	@$(INSTALL) -e '.[dev]'
	$(ROOTS)
	@touch $@

demo: $(VENV)/base
	$(BIN)/ptocache demo

test: $(VENV)/dev
	$(BIN)/python -m pytest -n $(JOBS)

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
	$(BIN)/python -m bench.large_store

docs: $(VENV)/dev
	$(BIN)/python -m pytest -q tests/system/test_docs.py

soak: $(VENV)/dev
	PTOCACHE_MACHINE_EXAMPLES=100 PTOCACHE_MACHINE_STEPS=60 PTOCACHE_FUZZ_EXAMPLES=10000 \
	  PTOCACHE_SEARCH_EXAMPLES=10000 $(BIN)/python -m pytest -n $(JOBS) --timeout 3600 \
	  tests/property tests/faults

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
