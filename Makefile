# A fresh machine needs python3 (3.10 or later), pip and make; everything else is installed into .venv.
PYTHON ?= python3
# Any torch that pyproject.toml allows will do; TORCH="torch" takes the newest.
TORCH  ?= torch==2.13.0
BIN    := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup core demo test test-all test-lowest faults mutants check bench report images docs wheel dist hooks format clean

setup: .venv/ready

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "pip>=24" "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

# Enough to index, search and answer: no torch, and a small download. A full set-up serves as well.
core:
	@test -e .venv/ready || test -e .venv/core || { \
	  echo "installing into .venv, once; this takes a minute" && $(PYTHON) -m venv .venv && \
	  $(BIN)/python -m pip install --quiet --editable . && touch .venv/core; }

demo: core
	$(BIN)/decoupled demo

test: setup
	$(BIN)/python -m pytest -n auto --dist loadfile

test-all: setup
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not faults"

# The write path on the lowest versions that pyproject.toml allows of what stores it.
test-lowest: setup
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/lowest pylance==14.0.0 pyarrow==18.0.0 obstore==0.8.0
	PYTHONPATH=build/lowest $(BIN)/python -m pytest -n auto --dist loadfile tests/index

# Changed bytes, kills, full disks, failing object stores, attacks: some minutes on two cores. The figures go to build/faults.
faults: export FAULTS_RESULTS = build/faults
faults: setup
	$(BIN)/python -m pytest -m faults -n 2 --dist loadfile --ignore tests/faults/test_attack.py
	$(BIN)/python -m pytest -m faults tests/faults/test_attack.py

# Small wrong changes: how many of a sample do the tests notice? Half an hour on one quiet core; goes on where it stopped.
mutants: setup
	$(BIN)/python tests/mutants --json build/mutants.json

PAGES := README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md SECURITY.md $(wildcard docs/*.md) docs/methods docs/results
check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/tables --check
	$(BIN)/typos $(PAGES)

bench: setup
	$(BIN)/decoupled lab bench

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

report: setup
	$(BIN)/decoupled lab report $(wildcard benchmarks/results/sweep_* benchmarks/results/layers_* benchmarks/results/bench_*) -o docs/report.html --figures build/report

# Screenshots of the page (Chromium with its driver) and pictures of results, as the product is now;
# MANUALS=manuals.idx, the index of docs/results/manuals.md, adds those of documents.
images: setup
	$(BIN)/python docs/pictures.py
	$(BIN)/python tests/page_images.py
	$(if $(MANUALS),$(BIN)/python tests/page_images.py --manuals $(MANUALS))

# The site, in build/site; a broken link stops it.
docs: setup
	@test -e .venv/docs || { $(BIN)/python -m pip install --quiet --editable ".[docs]" && touch .venv/docs; }
	$(BIN)/mkdocs build

# The wheel, installed into an empty environment outside the checkout, answers a question.
wheel: core
	rm -rf dist build/wheel && $(PYTHON) -m venv build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	build/wheel/bin/python -m pip install --quiet dist/*.whl
	cd build/wheel && bin/python -c 'import decoupled as dc; a = dc.open().ask("What river runs through Warsaw?", k=1); print(a[0].text); assert "Vistula" in a[0].text'

# What a release uploads: built twice from this commit, the same bytes both times, and checked.
dist: core
	$(BIN)/python -m pip install --quiet "build>=1.2" "twine>=6"
	rm -rf dist build/again
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir build/again .
	diff -r dist build/again
	$(BIN)/twine check --strict dist/*

hooks: setup
	$(BIN)/pre-commit install

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
