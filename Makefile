# Every target does its own set-up. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ok
EXTRAS := dev,docs,torch,pictures,video,dask
READING := tests/run tests/store tests/checks tests/analysis tests/views tests/cli tests/kernel
SOURCES_OF_THE_KERNEL := $(wildcard src/gradwatch/kernel/native/*.[ch])

.DEFAULT_GOAL := help
.PHONY: help demo test test-frameworks test-long test-security soak test-faults lint format docs bench bench-peers bench-zoo zoo-long wheel lines test-without-torch golden clean browser page page-fresh site gallery

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Two installs: the first takes torch from the constraints file before anything can ask for a newer one.
$(STAMP): pyproject.toml setup.py constraints.txt $(SOURCES_OF_THE_KERNEL)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	rm -rf build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

demo: $(STAMP) ## train a sick network under the watcher, diagnose it, write the report
	$(BIN)/python -m examples.demo

test: $(STAMP) ## run the tests (two processes side by side)
	$(BIN)/python -m tests.side_by_side

test-long: $(STAMP) ## the tests that are too long or too bound to a clock for `make test`
	$(BIN)/python -m pytest -m "long or timing" tests

test-security: $(STAMP) ## the long parts of the security tests, two processes side by side (15 minutes)
	$(BIN)/python -m tests.side_by_side security

SOAK_MINUTES ?= 60
soak: $(STAMP) ## a recorded training with its page open and 50 visitors, for SOAK_MINUTES (two cores)
	SOAK_MINUTES=$(SOAK_MINUTES) $(BIN)/python -m benchmarks.soak

KILLS ?= 500
test-faults: $(STAMP) ## the fault suites whole (KILLS=500), and the kernel under sanitizers
	KILLS=$(KILLS) $(BIN)/python -m pytest tests/faults tests/kernel tests/checkpoints

# The frameworks bring many packages: an environment of their own, made only when asked for.
FRAMEWORKS := .venv-frameworks
$(FRAMEWORKS)/.ok: frameworks.txt pyproject.toml setup.py constraints.txt $(SOURCES_OF_THE_KERNEL)
	test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-r frameworks.txt pytest pytest-timeout -e .
	touch $@

test-frameworks: $(FRAMEWORKS)/.ok ## real trainings by Trainer, Lightning, Accelerate; real services offline
	$(FRAMEWORKS)/bin/python -m pytest tests/frameworks

golden: $(STAMP) ## write the golden outputs of every command anew
	OPENBLAS_CORETYPE=Haswell OPENBLAS_L2_SIZE=512 $(BIN)/python -m tests.golden_output
# Reading needs no torch: an environment that cannot have it.
WITHOUT := .venv-without-torch
test-without-torch: ## run, store, checks, analyses and views where torch cannot be imported
	test -x $(WITHOUT)/bin/python || $(PYTHON) -m venv $(WITHOUT)
	$(WITHOUT)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		pytest pytest-timeout hypothesis httpx safetensors pillow pandas polars duckdb fsspec 'moto[server]' -e .
	$(WITHOUT)/bin/python -m pytest -m "not long and not timing and not security" $(READING)

lint: $(STAMP) ## ruff, mypy, and the limits of code lines per package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tools.lines --check

format: $(STAMP) ## let ruff format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## the benchmarks; prints their tables
	$(BIN)/python -m benchmarks

# Other watchers and diagnosers, pinned, in an environment of their own.
PEERS := .venv-peers
$(PEERS)/.ok: benchmarks/peers.txt pyproject.toml setup.py constraints.txt $(SOURCES_OF_THE_KERNEL)
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-r benchmarks/peers.txt -e .
	touch $@

bench-peers: $(PEERS)/.ok ## what other watchers cost, in the same run as ours
	$(PEERS)/bin/python -m benchmarks.peers cost

bench-zoo: $(PEERS)/.ok ## what other diagnosers find in the labelled trainings, beside ours
	$(PEERS)/bin/python -m benchmarks.peers zoo

# Killed, it goes on where it was: rows of finished trainings are kept in the file.
ZOO_ROWS ?= zoo-long.jsonl
ZOO_HALF ?= calibrate
zoo-long: $(STAMP) ## the wider zoo's long trainings (5,000 steps; hours, can be resumed)
	$(BIN)/gradwatch zoo score --of wider --half $(ZOO_HALF) --length long --rows $(ZOO_ROWS) --jobs 2

wheel: $(STAMP) ## build sdist and wheel; try the wheel in an empty environment without a compiler
	$(BIN)/python -m tools.wheel

lines: ## code lines per package beside their limits
	@$(PYTHON) -m tools.lines

browser: ## install Chromium for the browser tests (Debian; needs root)
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; }

page: ## build the report's and the live page's bundle (needs node; users do not)
	cd frontend && npm ci --silent && ./build.sh

page-fresh: ## check that the committed bundle is what its sources build to
	cd frontend && npm ci --silent && ./build.sh --check

docs: $(STAMP) ## write the generated pages anew
	$(BIN)/python -m tools.numbers_page > docs/numbers.md
	$(BIN)/python -m tools.what_is_recorded > docs/what-is-recorded.md
	$(BIN)/python -m tools.checks_page > docs/checks.md
	$(BIN)/python -m tools.from_trustformers > docs/from-trustformers.md

site: $(STAMP) ## the documentation as a site: open site/index.html
	rm -rf site
	$(BIN)/python -m sphinx -q -W --keep-going -E -d build/doctrees docs site

gallery: $(STAMP) ## run every program of the gallery of faults, sick and mended, and write its pages anew
	$(BIN)/python -m tools.gallery

clean: ## remove everything that make made
	rm -rf $(VENV) build dist demo site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.so' -delete
