# make demo: build into .venv and train on scikit-learn's digits.  make test: build and run the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := setup.py pyproject.toml $(wildcard convkit/_cpu/*.pyx convkit/_cpu/csrc/*)
LINTED := setup.py convkit tests examples benchmarks

.PHONY: demo test test-slow lint bench dist-check clean

demo: $(VENV)/.demo
	$(BIN)/python examples/digits.py

test: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.test $(VENV)/.lint
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	PATH="$(BIN):$$PATH" cython-lint convkit
	$(BIN)/mypy

bench: $(VENV)/.built
	$(BIN)/python benchmarks/im2col.py
	$(MAKE) -C benchmarks handover

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

$(VENV)/.lint: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --group lint build
	touch $@

clean:
	rm -rf build dist $(VENV) *.egg-info convkit/_cpu/_engine.c convkit/_cpu/*.so
