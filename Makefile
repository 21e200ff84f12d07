# Every target sets up what it needs. `make demo` and `make test` are all a newcomer has to know.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
WORKERS ?= 2

.PHONY: demo test lint lock bench compat soak clean

demo: $(VENV)/.base ## a minute's tour on the embedded default
	$(BIN)/python -m lessmore demo

test: $(VENV)/.dev ## the whole test suite
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(VENV)/.dev ## style, types, and which room may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.dev ## speed on this machine
	$(BIN)/python -m lessmore bench ViT-B-16

soak: $(VENV)/.dev ## the long way: many more random draws and kills, the real model on 1,000 photographs
	LESSMORE_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS) --timeout=3600 tests/property tests/parity/test_shared_models.py tests/fault

compat: ## importers and units on the oldest supported transformers
	test -x .venv-compat/bin/python || $(PYTHON) -m venv .venv-compat
	.venv-compat/bin/python -m pip install --quiet torch torchvision
	.venv-compat/bin/python -m pip install --quiet -e '.[test]' 'transformers>=4.57,<4.58'
	.venv-compat/bin/python -m pytest -n $(WORKERS) --dist worksteal tests/parity tests/unit

lock: $(VENV)/.dev ## write constraints.txt from what is installed; torch and what comes with it stay free
	$(BIN)/python -m pip freeze --exclude-editable --exclude lessmore \
	  | grep -E '^[A-Za-z0-9_.-]+==[0-9A-Za-z.!]+$$' \
	  | grep -viE '^((torch|torchvision|triton|pip|setuptools)==|nvidia-|cuda-)' > constraints.new
	mv constraints.new constraints.txt

clean: ## remove the environments
	rm -rf .venv .venv-compat

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.base
