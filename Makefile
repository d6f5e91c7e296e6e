# make demo: build into .venv and train on scikit-learn's digits.  make test: build and run the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PLANNING_VENV ?= .venv-gpu-planning
PLANNING := $(PLANNING_VENV)/bin
SOURCES := setup.py pyproject.toml $(wildcard convkit/*.pyx convkit/_cpu/*.pyx convkit/_cpu/csrc/*)
LINTED := setup.py convkit tests tools examples benchmarks

.PHONY: demo test test-slow test-gpu-planning lint bench bench-quick bench-peers bench-foundation dist-check clean

demo: $(VENV)/.demo
	$(BIN)/python examples/digits.py

test: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow and not gpu"

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

# cuDNN's own planner, on a machine without a GPU: 2 GB of packages in an environment of their own, then some minutes.
# Keeps in a file of the repository that the sources as they are have passed.
test-gpu-planning: $(PLANNING_VENV)/.ready
	$(PLANNING)/python -m pytest -q tests/gpu_planning
	$(PLANNING)/python tests/gpu_planning/passed.py write

lint: $(VENV)/.test $(VENV)/.lint
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	PATH="$(BIN):$$PATH" cython-lint convkit
	$(BIN)/mypy

# Against the peers that are installed: `make bench-peers` installs all of them, or BENCH="--python PATH" names an
# interpreter that has them.  The full list takes hours; BENCH="--lists resnet50" takes a part of it.
BENCH ?=
BENCH_OUT ?= build/bench

bench: $(VENV)/.built
	mkdir -p $(BENCH_OUT)
	$(BIN)/python benchmarks/compare.py --json $(BENCH_OUT)/compare.json --plot $(BENCH_OUT)/compare.png $(BENCH)

bench-quick: $(VENV)/.built
	$(BIN)/python benchmarks/compare.py --quick $(BENCH)

bench-peers: $(VENV)/.built
	$(BIN)/python -m pip install --quiet --group bench

bench-foundation: $(VENV)/.built
	$(BIN)/python benchmarks/im2col.py
	$(BIN)/python benchmarks/threads.py

# A wheel from an sdist, in an empty directory, imported from there.
dist-check: $(VENV)/.lint
	PYTHON=$(BIN)/python sh tools/dist_check.sh

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

# Editable, so that the package in the tree is what runs; built again when a compiled source changes.
$(VENV)/.built: $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.demo: $(VENV)/.built
	$(BIN)/python -m pip install --quiet --group demo
	touch $@

$(VENV)/.test: $(VENV)/.built
	$(BIN)/python -m pip install --quiet --group test
	touch $@

$(PLANNING_VENV)/.ready: $(SOURCES)
	$(PYTHON) -m venv $(PLANNING_VENV)
	$(PLANNING)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(PLANNING)/python -m pip install --quiet --group gpu-planning --editable .
	touch $@

$(VENV)/.lint: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --group lint build
	touch $@

clean:
	rm -rf build dist $(VENV) $(PLANNING_VENV) *.egg-info convkit/_cpu/_engine.c convkit/_repeated.c convkit/*.so convkit/_cpu/*.so
