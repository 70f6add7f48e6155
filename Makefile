# Everything starts from a bare machine: each target makes the environment it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two states of the environment: what tacit needs to run, and the development tools besides.
RUNS := $(VENV)/.ready-demo
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# One torch thread per process: several test workers with two threads each slow each other down.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

# What computes with floats: tests/unit and tests/stat whole, and the end-to-end tests that train.
NUMERIC := tests/unit tests/stat $(patsubst %,tests/e2e/test_%.py,gafm train real_tables \
	labels_and_budget party_bitwise several_parties)
# Processors that torch and numba can be held to on any x86-64 machine.
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
PLAIN := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES=

.PHONY: help setup demo test test-all test-cpus check format lint types doctest dist bench results audits chaos fuzz clean

help:
	@echo "make demo    train a small split model and see what leaks, with and without protection"
	@echo "make test    run the tests, without the slow ones"
	@echo "make check   format, lint, types, all tests, doctests"
	@echo "make test-cpus  run the numeric tests again as on processors with fewer instructions"
	@echo "make bench   print the benchmark table"
	@echo "make results train on real tables and write docs/results.md"
	@echo "make audits  record and audit trainings on real tables and write docs/audits.md"
	@echo "make chaos   kill, cut off and slow down two parties, and compare with an undisturbed run"
	@echo "make fuzz    send damaged messages to a party for a while"
	@echo "make dist    build the wheel and the source archive into dist/"
	@echo "make clean   remove the virtual environment"

setup: $(READY)

# torch first and exactly as pinned, so that nothing pulls another build of it.
$(RUNS): pyproject.toml constraints.txt
	@echo "installing tacit and what it needs into $(VENV): the first time this takes minutes" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@$(PIP) -e .
	@touch $@

$(READY): $(RUNS)
	@echo "installing the development tools into $(VENV)" >&2
	@$(PIP) -e '.[dev]'
	@touch $@

demo: $(RUNS)
	$(BIN)/tacit demo

# From an empty folder: no file of an earlier version is packed.
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	@ls -l dist

test: $(READY)
	$(TEST_ENV) $(PYTEST) -m "not slow"

test-all: $(READY)
	$(TEST_ENV) $(PYTEST)

test-cpus: $(READY)
	$(TEST_ENV) $(AVX2) $(PYTEST) -q -m "not slow" $(NUMERIC)
	$(TEST_ENV) $(PLAIN) $(PYTEST) -q -m "not slow" $(NUMERIC)

doctest: $(READY)
	$(TEST_ENV) $(BIN)/python -m pytest --doctest-modules src/tacit -q

format: $(READY)
	$(BIN)/ruff format --check .

lint: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

check: format lint types test-all doctest

bench: $(READY)
	$(BIN)/python benchmarks/core.py

results: $(READY)
	$(BIN)/python benchmarks/results.py

audits: $(READY)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python benchmarks/audits.py

chaos: $(READY)
	$(TEST_ENV) PYTHONPATH=tests/support $(BIN)/python benchmarks/chaos.py

fuzz: $(READY)
	$(TEST_ENV) $(BIN)/python benchmarks/fuzz.py

clean:
	rm -rf $(VENV)
