# Everything starts from a bare machine: each target makes the environment it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# One torch thread per process: several test workers with two threads each slow each other down.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help setup demo test check format lint types doctest bench results audits chaos clean

help:
	@echo "make demo    train a small split model and see what leaks, with and without protection"
	@echo "make test    run the tests"
	@echo "make check   format, lint, types, tests, doctests"
	@echo "make bench   print the benchmark table"
	@echo "make results train on real tables and write docs/results.md"
	@echo "make audits  record and audit trainings on real tables and write docs/audits.md"
	@echo "make chaos   kill, cut off and slow down two parties, and compare with an undisturbed run"
	@echo "make clean   remove the virtual environment"

setup: $(READY)

# torch first and exactly as pinned, so that nothing pulls another build of it.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/tacit demo

test: $(READY)
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist worksteal

doctest: $(READY)
	$(TEST_ENV) $(BIN)/python -m pytest --doctest-modules src/tacit -q

format: $(READY)
	$(BIN)/ruff format --check .

lint: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

check: format lint types test doctest

bench: $(READY)
	$(BIN)/python benchmarks/core.py

results: $(READY)
	$(BIN)/python benchmarks/results.py

audits: $(READY)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python benchmarks/audits.py

chaos: $(READY)
	$(TEST_ENV) PYTHONPATH=tests/core $(BIN)/python benchmarks/chaos.py

clean:
	rm -rf $(VENV)

.PHONY: fuzz
fuzz: $(READY)
	$(TEST_ENV) $(BIN)/python benchmarks/fuzz.py
