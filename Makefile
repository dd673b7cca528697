# Every target makes .venv by itself. `make dev` installs what running needs and nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TARGET ?= examples/orders/orders.py
JOBS ?= auto

SEEDS ?= 1000
CASES ?= 2000
REQUESTS ?= 20000

.PHONY: fuzz-api screenshots dev test check lint types layers bench simulate mutants network-faults fuzz conformance tour clean help

help:
	@echo 'make dev     dashboard, server and worker on an example; q stops them (plain log without a terminal)'
	@echo 'make test    the tests'
	@echo 'make check   what CI runs: format, lint, layers, types, tests'
	@echo 'make bench   measure; prints ratios and figures'
	@echo 'make simulate SEEDS=1000   simulated lives of server and workers, from seeds'
	@echo 'make network-faults CASES=2000   a network that cuts, delays, repeats and goes silent, over both transports'
	@echo 'make mutants               planted mistakes, each of which a simulated life must catch'
	@echo 'make fuzz                  a million damaged documents, and 100,000 values in each of two time zones'
	@echo 'make fuzz-api REQUESTS=20000   requests made up from the OpenAPI document, against a running server'
	@echo 'make tour    type what README.md and docs/unknown.md show, and write what comes out'
	@echo 'make screenshots           every web page, wide and narrow, light and dark, into screenshots/; the dashboard into docs/'
	@echo 'make clean   remove .venv, caches and the local database'

dev: $(VENV)/.runtime
	@exec $(BIN)/ryusen dev $(TARGET) --tui

# An SDK passes the conformance suites before anything else is tried with it.
conformance: $(VENV)/.development
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup tests/protocol tests/conformance

test: conformance
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --ignore=tests/protocol --ignore=tests/conformance

check: lint layers types test

lint: $(VENV)/.development
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

layers: $(VENV)/.development
	$(BIN)/lint-imports

types: $(VENV)/.development
	$(BIN)/pyright

bench: $(VENV)/.development
	$(BIN)/python -m benchmarks

simulate: $(VENV)/.development
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

mutants: $(VENV)/.development
	$(BIN)/python -m tests.simulation.mutants

fuzz: $(VENV)/.development
	$(BIN)/python -m tests.protocol.fuzz_codec --count 1000000
	TZ=Asia/Tokyo $(BIN)/python -m tests.sdk.value_rounds --count 100000
	TZ=America/St_Johns $(BIN)/python -m tests.sdk.value_rounds --count 100000

fuzz-api: $(VENV)/.development
	$(BIN)/python -m tests.api.fuzz_api --requests $(REQUESTS)

network-faults: $(VENV)/.development
	$(BIN)/python -m tests.network --cases $(CASES)

tour: $(VENV)/.development
	$(BIN)/python -m tests.acceptance.tour

screenshots: $(VENV)/.development
	$(BIN)/python -m tests.web pictures screenshots
	$(BIN)/python -m tests.tui docs/dashboard.svg

clean:
	rm -rf $(VENV) .ryusen .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Ryusen needs Python 3.11 or newer. Name one: make $(MAKECMDGOALS) PYTHON=python3.12' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo 'This Python has no venv. On Debian: apt-get install python3-venv; then run make again.' >&2; exit 1; }

$(VENV)/.runtime: pyproject.toml constraints/runtime.txt | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints/runtime.txt --editable .
	@touch $@

$(VENV)/.development: pyproject.toml constraints/runtime.txt constraints/dev.txt constraints/tools.txt | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints/dev.txt --editable . --requirement constraints/tools.txt
	@touch $@ $(VENV)/.runtime
