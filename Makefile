# The README's commands. `make test` begins with nothing but a Python: it makes .venv, looks after servers, checks and tests.

PYTHON := .venv/bin/python
RUN := .venv/bin
INSTALLED := .venv/installed
EXTRAS := test,lint,types
DEMO_INSTALLED := .venv/installed-demo
DEMO_EXTRAS := demo,postgresql,mysql
# not from the environment: a URL that is there for another purpose is no wish to run the demo on it
DEMO_URL = $(if $(filter command,$(origin DATABASE_URL)),'$(DATABASE_URL)')
CANDIDATES := python3.13 python3.12 python3.11 python3
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTEST_OPTIONS ?= -n 3 --dist worksteal
STYLE := $(RUN)/ruff check .
FORMAT := $(RUN)/ruff format --check .
FLOORS := $(RUN)/lint-imports
TYPES := $(RUN)/mypy

.PHONY: help setup test clusters faults soak bench bench-full lint types floors demo tox clean

help:  ## Say what there is to make
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST)

# names on PATH may be there and not run, as version managers' shims are: each candidate is tried
$(PYTHON):
	@found=; for name in $(CANDIDATES); do \
		if $$name -c '$(NEW_ENOUGH)' 2>/dev/null; then found=$$name; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "no Python >= 3.11 found; install one of: $(CANDIDATES)" >&2; exit 1; fi; \
	echo "making .venv with $$found"; \
	$$found -m venv .venv || { rm -rf .venv; echo "its venv module does not work; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(INSTALLED): pyproject.toml | $(PYTHON)
	@echo "installing the project and its tools into .venv"
	@$(PYTHON) -m pip install -qq --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@ $(DEMO_INSTALLED)

$(DEMO_INSTALLED): pyproject.toml | $(PYTHON)
	@echo "installing the demo into .venv"
	@$(PYTHON) -m pip install -qq --disable-pip-version-check --editable '.[$(DEMO_EXTRAS)]'
	@touch $@

setup: $(INSTALLED)  ## Make .venv and put database servers on this machine
	@$(PYTHON) tests/setup

# tests run and report even when a check has failed, and come last; it is a failure if either failed
test: setup  ## Check and test everything
	@failed=; \
	$(STYLE) || failed=1; $(FORMAT) || failed=1; $(FLOORS) || failed=1; $(TYPES) || failed=1; \
	if [ -n "$$failed" ]; then echo "a check failed, see above; the tests run all the same" >&2; fi; \
	$(RUN)/pytest $(PYTEST_OPTIONS) && [ -z "$$failed" ]

# a few minutes; a program that is missing is an error that names its package
clusters: $(INSTALLED)  ## Kill a node of each kind of cluster while workers are busy
	@PROLETARIAN_TEST_DATABASES=sqlite $(RUN)/pytest -q tests/clusters

# all databases, and the table in docs/faults.md from what was measured; DURATIONS=real: outages of minutes, no shortened pause
faults: setup  ## Inject each fault into real workers and servers; DURATIONS=real takes an hour
	@folder=$$(mktemp -d); failed=; \
	CI=true PROLETARIAN_FAULT_RESULTS=$$folder PROLETARIAN_FAULTS=$(DURATIONS) $(RUN)/pytest $(PYTEST_OPTIONS) tests/faults || failed=1; \
	$(PYTHON) -m tests.faults.results $$folder; rm -r $$folder; [ -z "$$failed" ]

soak: setup  ## Let everything die at random for 30 minutes; MINUTES=5, SEED=42, DATABASE=mysql
	@$(PYTHON) -m tests.faults.soak --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED)) $(if $(DATABASE),--database $(DATABASE))

# peers are installed from the package index, each into an environment of its own, the first time; that takes a few minutes more
bench: setup  ## Measure beside others, in under ten minutes
	@$(PYTHON) -m benchmarks quick

bench-full: setup  ## Measure beside others, thoroughly; takes hours
	@$(PYTHON) -m benchmarks full

lint: $(INSTALLED)  ## Check the code's style
	@$(STYLE)
	@$(FORMAT)

floors: $(INSTALLED)  ## Check that imports go downwards only
	@$(FLOORS)

types: $(INSTALLED)  ## Check the types
	@$(TYPES)

demo: $(DEMO_INSTALLED)  ## Run the demo on an SQLite file, or with DATABASE_URL=… there
	@$(PYTHON) -m examples.demo.run $(DEMO_URL)

tox: $(INSTALLED)  ## Run every combination of Python, SQLAlchemy and database
	@$(PYTHON) -m pip install -qq --disable-pip-version-check 'tox>=4'
	@$(RUN)/tox run

clean:  ## Remove what was made, the fetched servers too
	rm -rf .venv .cache .tox .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
