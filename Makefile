# Every target that needs it makes the environment first: .venv, from the pinned versions in constraints.txt.
PYTHON ?= python3
DATASET ?=
ENCODER ?=
ARGS ?=
BIN := .venv/bin
READY := .venv/.ready

# Run from the root, Python would take ./data or ./evaluate for other packages of those names.
export PYTHONSAFEPATH := 1

.PHONY: help setup demo extract test check lint types bench clean

help:
	@echo "make demo                       try everything on rendered videos, no download; ends with a report to open"
	@echo "make extract DATASET=pour_milk  run the vision model over a dataset (also ENCODER=..., ARGS=...)"
	@echo "make test                       run the tests; SLOW=1 for all of them"
	@echo "make check                      lint, types and tests"
	@echo "make bench                      measure speed and memory"
	@echo "make clean                      remove the environment and build files, keep data and results"

setup: $(READY)

$(READY): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "byov needs Python 3.11 or newer; use make PYTHON=python3.11"; exit 2; }
	@echo "setting up .venv, once; this takes a few minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt setuptools torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable ".[dev]"
	@touch $@

# A model small enough for two cores; --select both looks at whole videos and at sub-clips of the val split. One thread: so
# small a model gains a fifth by a second one, and where others use the cores too it loses two thirds.
DEMO := --dataset demo --latent 128 --depth 4 --decoder-depth 2 --heads 8 --epochs 120 --batch-size 4 --lr 3e-4 --select both
RUNS := $(or $(BYOV_RUNS),runs)

demo: $(READY)
	$(BIN)/byov-extract --dataset demo
	@for recipe in paper cycle; do \
		if test -e $(RUNS)/demo-$$recipe/config.json; then begun=--resume; else begun="$(DEMO) --recipe $$recipe"; fi; \
		echo "byov-train --run demo-$$recipe $$begun"; \
		OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/byov-train --run demo-$$recipe $$begun || exit; \
	done
	$(BIN)/byov-eval --run demo-paper --run demo-cycle --task all --out $(RUNS)/demo-results
	$(BIN)/byov-report --run demo-cycle --compare demo-paper

extract: $(READY)
	@test -n "$(DATASET)" || { echo "which dataset? make extract DATASET=demo | pour_milk | pour_liquid | break_eggs | tennis_forehand | charades_ego"; exit 2; }
	$(BIN)/byov-extract --dataset $(DATASET) $(if $(ENCODER),--encoder $(ENCODER)) $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest $(if $(SLOW),,-m "not slow") $(ARGS)

check: lint types test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy does not see an editable install: it checks the same folders through links under their installed name.
types: $(READY)
	@mkdir -p build/typing/byov
	@ln -sfn $(foreach file,$(wildcard byov/*),../../../$(file)) build/typing/byov/
	@for folder in apply cache cli data evaluate extract report train; do ln -sfn ../../../$$folder build/typing/byov/$$folder; done
	$(BIN)/mypy -p byov

bench: $(READY)
	$(BIN)/python benchmarks/extract.py
	$(BIN)/python benchmarks/train.py
	$(BIN)/python benchmarks/evaluate.py
	$(BIN)/python benchmarks/report.py

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
