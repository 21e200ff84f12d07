# Every target sets up what it needs. `make demo` and `make test` are all a newcomer has to know.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
WORKERS ?= 2

# apt-get wants root; elsewhere sudo may do it without a password, or nothing does.
ROOT := $(shell test "$$(id -u)" = 0 || echo sudo -n)
CAMERAS := mosquitto faketime python3-gi gir1.2-gst-rtsp-server-1.0 \
  gstreamer1.0-plugins-base gstreamer1.0-plugins-good gstreamer1.0-plugins-bad
SOAK := LESSMORE_SOAK=1 LESSMORE_FUZZ=10000 $(BIN)/python -m pytest -n $(WORKERS) --timeout=36000

.PHONY: demo test test-failed test-services browser lint docs lock bench compat soak clean

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

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[docs]'
	touch $@ $(VENV)/.base

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.base
