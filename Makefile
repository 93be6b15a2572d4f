# Most targets first create the environment .venv, with the versions pinned in constraints.txt.
PYTHON ?= python3
DATASET ?=
ENCODER ?=
ARGS ?=
JOBS ?= auto
BIN := .venv/bin
READY := .venv/.ready
RUNS := $(or $(BYOV_RUNS),runs)
DATASETS := $(or $(BYOV_DATASETS),datasets)

# Otherwise, ./data and ./evaluate would shadow other packages with these names.
export PYTHONSAFEPATH := 1

.PHONY: help setup demo demo-byov demo-timeline extract tables benchmark test check lint types bench chaos clean

help:
	@echo "make demo                       run everything on the demo videos, without downloads; writes a report and annotations"
	@echo "make extract DATASET=pour_milk  extract features from a dataset (options: ENCODER=..., ARGS=...)"
	@echo "make tables DATASET=demo        reproduce the paper's tables and figures on a cached dataset"
	@echo "make benchmark                  compare all methods on six simulated datasets (hours)"
	@echo "make test                       run the fast tests (SLOW=1: also slow ones, LONG=1: all; JOBS=n processes)"
	@echo "make check                      run lint, type checks and tests"
	@echo "make bench                      measure the speed and memory of each stage"
	@echo "make chaos                      damage files and disturb commands, and count which faults are survived"
	@echo "make clean                      remove the environment and build files; keep data and results"

setup: $(READY)

$(READY): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "byov needs Python 3.11 or newer; use make PYTHON=python3.11"; exit 2; }
	@echo "creating .venv; this takes a few minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt setuptools torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable ".[dev]"
	@touch $@

# Two models that are small enough to train in parallel on two cores, with one thread each.
DEMO_BYOV := --recipe bottleneck --size small
DEMO_TIMELINE := --method timeline --steps 240

# $(call demo_run,NAME,OPTIONS) starts the run, or resumes it if it exists.
define demo_run
	if test -e $(RUNS)/$(1)/config.json; then options=--resume; else options="--dataset demo $(2)"; fi; \
	echo "byov-train --run $(1) $$options"; \
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/byov-train --run $(1) $$options
endef

demo: $(READY)
	$(BIN)/byov-extract --dataset demo
	@$(MAKE) --no-print-directory --jobs=2 demo-byov demo-timeline
	$(BIN)/byov-report --run demo-timeline --compare demo-byov
	$(BIN)/byov-annotate --run demo-timeline $(DATASETS)/demo/test --labels $(DATASETS)/demo/one-video.csv \
	    -o $(RUNS)/demo-annotations --overwrite

# Write the output of demo-byov to a file, so that the progress bar of demo-timeline stays readable.
demo-byov: $(READY)
	@mkdir -p $(RUNS)
	@{ $(call demo_run,$@,$(DEMO_BYOV)); } >$(RUNS)/$@.log 2>&1 || { cat $(RUNS)/$@.log; exit 1; }

demo-timeline: $(READY)
	@$(call demo_run,$@,$(DEMO_TIMELINE))

extract: $(READY)
	@test -n "$(DATASET)" || { echo "No dataset given. Use make extract DATASET=demo | pour_milk | pour_liquid | break_eggs | tennis_forehand | charades_ego | metaworld/hammer"; exit 2; }
	$(BIN)/byov-extract --dataset $(DATASET) $(if $(ENCODER),--encoder $(ENCODER)) $(ARGS)

# The demo set uses small models and short training.
tables: $(READY)
	$(if $(filter demo,$(DATASET)),$(BIN)/byov-extract --dataset demo)
	$(BIN)/byov-sweep paper $(if $(DATASET),--dataset $(DATASET)) $(if $(ENCODER),--encoder $(ENCODER)) \
	    $(if $(filter demo,$(DATASET)),--small --seeds 2) --out $(RUNS)/tables $(ARGS)

TASKS := door-open pick-place drawer-open peg-insert-side coffee-pull hammer

# Render and extract the Meta-World datasets, then train and score all methods. You can interrupt and resume it.
benchmark: $(READY)
	$(BIN)/python -c 'import metaworld' 2>/dev/null || $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[metaworld]"
	for task in $(TASKS); do $(BIN)/byov-extract --dataset metaworld/$$task --ratios 0.3,1.0 || exit; done
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/byov-sweep benchmark --out $(RUNS)/benchmark $(ARGS)

# Use one process per core, with one PyTorch thread each. A process runs whole test files; files with slow tests run first.
test: $(READY)
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest $(if $(LONG),,-m "$(if $(SLOW),not long,not slow and not long)") --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: lint types test

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy does not find the editable install, so create links to the folders under their package names.
types: $(READY)
	@mkdir -p build/typing/byov
	@ln -sfn $(foreach file,$(wildcard byov/*),../../../$(file)) build/typing/byov/
	@for folder in apply cache cli sweeps data evaluate extract report train; do ln -sfn ../../../$$folder build/typing/byov/$$folder; done
	$(BIN)/mypy -p byov

bench: $(READY)
	$(BIN)/python benchmarks/extract.py
	$(BIN)/python benchmarks/train.py
	$(BIN)/python benchmarks/evaluate.py

# Thousands of small files are synced, which is fast in memory.
chaos: $(READY)
	CHAOS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/chaos -q -o tmp_path_retention_policy=failed \
	    $(if $(wildcard /dev/shm),--basetemp=/dev/shm/byov-chaos) $(ARGS)

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
