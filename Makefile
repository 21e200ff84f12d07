# Every target sets up what it needs. `make demo` and `make test` are all a newcomer has to know.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# TORCH_INDEX=URL takes torch from another package index, such as PyTorch's own of builds for CPUs: no CUDA packages.
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
WORKERS ?= 2

# apt-get wants root; elsewhere sudo may do it without a password, or nothing does.
ROOT := $(shell test "$$(id -u)" = 0 || echo sudo -n)
CAMERAS := mosquitto faketime python3-gi gir1.2-gst-rtsp-server-1.0 \
  gstreamer1.0-plugins-base gstreamer1.0-plugins-good gstreamer1.0-plugins-bad
SOAK := LESSMORE_SOAK=1 LESSMORE_FUZZ=10000 $(BIN)/python -m pytest -n $(WORKERS) --timeout=36000

.PHONY: demo test test-failed test-services browser lint dist docs lock bench compat soak clean

demo: $(VENV)/.base ## a minute's tour on the embedded default
	$(BIN)/python -m lessmore demo

test: $(VENV)/.dev ## the tests of every change, 8 minutes at most; page tests are skipped without Chromium
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-failed: $(VENV)/.dev ## only what failed the last time, one at a time
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test-services: $(VENV)/.dev ## the tests that start a service on this machine: Ray, PostgreSQL, an S3 server, cameras
	@command -v initdb || ls /usr/lib/postgresql/*/bin/initdb \
	  || { $(ROOT) apt-get update -qq && $(ROOT) apt-get install -y -qq --no-install-recommends postgresql; } \
	  || echo "test-services: no PostgreSQL, and apt-get cannot install it here; its tests are skipped"
	@{ test -x /usr/sbin/mosquitto && test -e /usr/share/doc/gir1.2-gst-rtsp-server-1.0 && command -v faketime; } \
	  || { $(ROOT) apt-get update -qq && $(ROOT) apt-get install -y -qq --no-install-recommends $(CAMERAS); } \
	  || echo "test-services: no RTSP server, MQTT broker and faketime, and apt-get cannot install them; skipped"
	$(BIN)/python -m pytest -m 'services and not soak' tests/fault tests/serve tests/cameras

browser: ## Chromium and axe-core for the page tests; only this and .ci/run install them
	@command -v chromium || command -v chromium-browser || test -n "$$CHROMIUM" \
	  || { $(ROOT) apt-get update -qq && $(ROOT) apt-get install -y -qq --no-install-recommends chromium; } \
	  || { echo "make browser: apt-get cannot install chromium here; install it yourself and set CHROMIUM to its path"; \
	       exit 1; }
	@test -f node_modules/axe-core/axe.min.js || npm install --silent --no-save --no-package-lock axe-core@4.14.1 \
	  || echo "make browser: npm cannot install axe-core here; the test of the live page with it is skipped"

lint: $(VENV)/.dev ## style, types, which room may import which, licences
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/licences.py --check
	$(BIN)/python -m pip check

dist: $(VENV)/.dev ## sdist and wheel in dist/; the wheel is tried where nothing but its base requirements is
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python tools/bare_env.py .venv-dist
	.venv-dist/bin/python -m pip install --quiet --no-index dist/*.whl
	.venv-dist/bin/python -m pip check
	cd dist && ../.venv-dist/bin/lessmore --version && ../.venv-dist/bin/lessmore doctor
	cd dist && ../.venv-dist/bin/python -I -m lessmore demo --images 20 --quiet --output ../.venv-dist/demo.html
	.venv-dist/bin/python -I tools/doctests.py

# Notebooks run offline, without progress bars and their warnings, and find the `lessmore` of this environment.
docs: export PATH := $(abspath $(BIN)):$(PATH)
docs: export HF_HUB_OFFLINE := 1
docs: export HF_HUB_DISABLE_PROGRESS_BARS := 1
docs: export PYTHONWARNINGS := ignore:IProgress not found
docs: $(VENV)/.docs ## run the tutorials and build site/; a failing notebook, a broken link or a missing reference fails
	jupyter-nbconvert --to markdown --execute --log-level WARN docs/tutorials/*.ipynb --template notebook_page \
	  --TemplateExporter.extra_template_basedirs=tools \
	  --MarkdownExporter.preprocessors=nbconvert.preprocessors.CoalesceStreamsPreprocessor
	zensical build --strict --clean
	python tools/site_versions.py $(if $(VERSION),--as $(VERSION))

bench: $(VENV)/.dev ## speed on this machine
	$(BIN)/python -m lessmore bench ViT-B-16

soak: $(VENV)/.dev ## hours: many more draws, mutations and kills, the real model on 1,000 photographs, two Ray nodes
	$(SOAK) tests/property tests/fault $(wildcard tests/fuzz) tests/parity/test_shared_models.py tests/unit/test_export.py
	$(SOAK) -m soak tests

compat: compat-oldest compat-newest ## importers and units on the oldest and newest packages; PYTHON=python3.10 picks one

compat-%:
	$(PYTHON) -m venv --clear .venv-$@
	.venv-$@/bin/python -m pip install --quiet uv
	.venv-$@/bin/uv pip install --quiet --python .venv-$@/bin/python --editable '.[test]' \
	  --resolution $(if $(filter oldest,$*),lowest-direct,highest)
	.venv-$@/bin/python -m lessmore doctor
	.venv-$@/bin/python -m pytest -n $(WORKERS) --dist worksteal tests/parity tests/unit tests/data

lock: $(VENV)/.dev ## write constraints.txt from what is installed; torch and what comes with it stay free
	$(BIN)/python -m pip freeze --exclude-editable --exclude lessmore \
	  | grep -E '^[A-Za-z0-9_.-]+==[0-9A-Za-z.!]+$$' \
	  | grep -viE '^((torch|torchvision|triton|pip|setuptools)==|nvidia-|cuda-)' > constraints.new
	mv constraints.new constraints.txt

clean: ## remove the environments
	rm -rf .venv .venv-compat-oldest .venv-compat-newest .venv-dist dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Where an index is given, torch and torchvision, which fit together only from the same one, come before all else.
$(VENV)/.torch: | $(BIN)/python
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install --quiet --index-url $(TORCH_INDEX) torch torchvision)
	touch $@

$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/.torch
	$(PIP) -e '.'
	touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/.torch
	$(PIP) -e '.[docs]'
	touch $@ $(VENV)/.base

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.torch
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.base
