# Every target that needs it makes the environment first: .venv, from the pinned versions in constraints.txt.
PYTHON ?= python3
DATASET ?=
ENCODER ?=
ARGS ?=
BIN := .venv/bin
READY := .venv/.ready

# Run from the root, Python would take ./data or ./evaluate for other packages of those names.
export PYTHONSAFEPATH := 1

.PHONY: help setup demo extract tables test check lint types bench chaos clean

help:
	@echo "make demo                       try everything on rendered videos, no download; ends with a report to open"
	@echo "make extract DATASET=pour_milk  run the vision model over a dataset (also ENCODER=..., ARGS=...)"
	@echo "make tables DATASET=demo        the paper's tables and figures on a dataset in the cache; the demo's with small models"
	@echo "make test                       run the tests, JOBS at once; SLOW=1 for those that take longer, LONG=1 for all"
	@echo "make check                      lint, types and tests"
	@echo "make bench                      measure speed and memory"
	@echo "make chaos                      damage files of every kind, kill processes, and count what goes unnoticed"
	@echo "make clean                      remove the environment and build files, keep data and results"

setup: $(READY)

$(READY): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "byov needs Python 3.11 or newer; use make PYTHON=python3.11"; exit 2; }
	@echo "setting up .venv, once; this takes a few minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt setuptools torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable ".[dev]"
	@touch $@

# The paper's model, small enough for two cores, and the timeline as it is; --select both looks at whole videos and at sub-clips
# of the val split. One thread: so small a model gains little by a second one, and where others use the cores too it loses.
DEMO_PAPER := --latent 128 --depth 4 --decoder-depth 2 --heads 8 --epochs 60 --batch-size 4 --lr 3e-4 --select both
DEMO_TIMELINE := --method timeline
RUNS := $(or $(BYOV_RUNS),runs)

# $(call demo_run,NAME,OPTIONS): begun, or gone on with
define demo_run
	@if test -e $(RUNS)/$(1)/config.json; then begun=--resume; else begun="--dataset demo $(2)"; fi; \
	echo "byov-train --run $(1) $$begun"; \
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/byov-train --run $(1) $$begun
endef

demo: $(READY)
	$(BIN)/byov-extract --dataset demo
	$(call demo_run,demo-paper,$(DEMO_PAPER))
	$(call demo_run,demo-timeline,$(DEMO_TIMELINE))
	$(BIN)/byov-eval --run demo-paper --run demo-timeline --task all --out $(RUNS)/demo-results
	$(BIN)/byov-report --run demo-timeline --compare demo-paper

extract: $(READY)
	@test -n "$(DATASET)" || { echo "which dataset? make extract DATASET=demo | pour_milk | pour_liquid | break_eggs | tennis_forehand | charades_ego"; exit 2; }
	$(BIN)/byov-extract --dataset $(DATASET) $(if $(ENCODER),--encoder $(ENCODER)) $(ARGS)

# Of the demo with models and trainings that two cores can do while one waits; of others as the paper has them.
tables: $(READY)
	$(if $(filter demo,$(DATASET)),$(BIN)/byov-extract --dataset demo)
	$(BIN)/byov-sweep paper $(if $(DATASET),--dataset $(DATASET)) $(if $(ENCODER),--encoder $(ENCODER)) \
	    $(if $(filter demo,$(DATASET)),--small --seeds 2) --out $(RUNS)/tables $(ARGS)

# As many processes as cores, a file of tests each, those with slow tests first; PyTorch takes one thread in each, or they would
# wait for one another.
JOBS ?= auto

test: $(READY)
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest $(if $(LONG),,-m "$(if $(SLOW),not long,not slow and not long)") --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: lint types test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy does not see an editable install: it checks the same folders through links under their installed name.
types: $(READY)
	@mkdir -p build/typing/byov
	@ln -sfn $(foreach file,$(wildcard byov/*),../../../$(file)) build/typing/byov/
	@for folder in apply cache cli cluster data evaluate extract report train; do ln -sfn ../../../$$folder build/typing/byov/$$folder; done
	$(BIN)/mypy -p byov

bench: $(READY)
	$(BIN)/python benchmarks/extract.py
	$(BIN)/python benchmarks/train.py
	$(BIN)/python benchmarks/evaluate.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/report_page.py
	$(BIN)/python benchmarks/sweep.py

chaos: $(READY)
	$(BIN)/python tests/chaos/table.py

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
