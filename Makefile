# What a developer and the CI run. Needs Python 3.11 or later and make; everything else is installed into .venv.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MINUTES ?= 10
# Hundreds of short processes are started; where this is set, each would compile the whole package again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet --retries 10 --timeout 60

.PHONY: help
help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-15s %s\n", $$1, $$2 }'

# pip comes last into a new venv, so a venv without it is incomplete and is created again.
$(BIN)/pip:
	@echo "Making $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -m venv --clear $(VENV)

# Tried three times, since a download of this size does break; pip keeps what it has fetched. The stamp comes last.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing the development environment into $(VENV) (a few minutes, once)"
	@for try in 1 2 3; do \
	  $(PIP) install --use-pep517 --constraint constraints.txt --editable '.[dev]' && break; \
	  [ $$try = 3 ] && { echo "The installation failed three times; see above." >&2; exit 1; }; \
	  echo "Trying again" >&2; sleep 5; \
	done
	@touch $@

.PHONY: setup
setup: $(STAMP)  ## make .venv with everything in it

.PHONY: demo
demo: $(STAMP)  ## run the main job: a text through two queues, with a worker killed on the way
	@$(BIN)/aiozkqueue demo

# For the dashboard's tests. Where it cannot be had they are skipped, and say so.
.PHONY: browser
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Chromium for the dashboard's tests"; \
	  { apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1 \
	    || echo "Chromium could not be installed: the dashboard's tests in a browser are skipped." >&2; \
	else \
	  echo "No Chromium: the dashboard's tests in a browser are skipped (apt-get install chromium)." >&2; \
	fi

# For the tests of the alert rules, from Debian's archive; nothing of it is installed. Without it they are skipped.
PROMTOOL := $(BIN)/promtool
$(PROMTOOL): | $(STAMP)
	@folder=$$(mktemp -d) && cd "$$folder" && \
	{ { apt-get -qq download prometheus || { apt-get -qq update && apt-get -qq download prometheus; }; } && \
	  dpkg -x prometheus_*.deb . && install -m 755 usr/bin/promtool "$(abspath $@)"; } >/dev/null 2>&1 || \
	echo "promtool could not be fetched: the tests of the alert rules are skipped." >&2; \
	rm -rf "$$folder"

# For the tests with the oldest dependencies that pyproject.toml allows. Without them they are skipped.
OLDEST := $(VENV)/oldest
$(OLDEST): pyproject.toml | $(STAMP)
	@$(BIN)/python -m tests.packaging.oldest $@ && touch $@ || \
	echo "The oldest dependencies could not be installed: the tests with them are skipped." >&2

# A hundred ZooKeeper servers are started; with it each takes half the time. Without it they start as well.
ARCHIVE := $(VENV)/zookeeper.jsa
$(ARCHIVE): $(STAMP)
	@AIOZKQUEUE_JVM_OPTIONS= $(BIN)/python -m tests.archive $@ || touch $@
# Without the digests of all data, and with the requests of a client read by one thread, a server works a third less.
test test-slow: export AIOZKQUEUE_JVM_OPTIONS ?= -XX:SharedArchiveFile=$(abspath $(ARCHIVE)) \
  -Dzookeeper.digest.enabled=false -Dzookeeper.nio.numWorkerThreads=0 -Dzookeeper.nio.numSelectorThreads=1

PYTEST := $(BIN)/python -m pytest --dist loadscope
# Most tests wait more than they work. Beside them runs what is simulated, and fills what they leave of the processor:
# simulated time does not mind waiting. Beside the slow tests runs the soak. What these print comes last.
SIMULATED := $(addprefix tests/simulation/test_,histories.py matrix.py mutations.py order.py repetition.py \
  delays_by_a_model.py figures_by_a_model.py killed_moves.py shared_writes_by_a_model.py)
beside = @status=0; printed=$$(mktemp); \
	$(2) >$$printed 2>&1 & background=$$!; \
	trap 'kill $$background; rm -f $$printed; exit 130' INT TERM; \
	$(1) || status=1; \
	wait $$background || status=1; cat $$printed; rm -f $$printed; \
	exit $$status

.PHONY: test
ifdef PYTEST_ARGS
test: $(ARCHIVE) $(OLDEST) $(PROMTOOL) browser  ## run the tests but those of `make test-slow` (PYTEST_ARGS="tests/unit -x" for some)
	@$(PYTEST) -n 2 $(PYTEST_ARGS)
else
test: $(ARCHIVE) $(OLDEST) $(PROMTOOL) browser
	$(call beside,$(PYTEST) -n 5 -m 'not slow' $(addprefix --ignore=,$(SIMULATED)),\
	  nice -n 10 $(PYTEST) -m 'not slow' --timeout=600 $(SIMULATED))
endif

.PHONY: test-slow
test-slow: $(ARCHIVE) $(OLDEST) $(PROMTOOL) browser  ## run the slow tests: a soak, mutations, faults at each await, killed Spark drivers
	$(call beside,$(PYTEST) -n 3 -m slow --timeout=600 --ignore=tests/soak,$(PYTEST) tests/soak)

# Each in an environment of its own. pyenv has a shim also for versions that are not active, so each candidate is run.
VERSIONS ?= 3.11 3.12 3.13 3.14
.PHONY: test-versions
test-versions:  ## run `make test` with each Python of VERSIONS="3.11 3.12 3.13 3.14" that is installed; name the missing ones
	@status=0; summary=; \
	for version in $(VERSIONS); do \
	  python=; \
	  for candidate in python$$version $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python; do \
	    "$$candidate" -c '' 2>/dev/null && { python=$$candidate; break; }; \
	  done; \
	  if [ -z "$$python" ]; then result="not installed, so not tested"; \
	  elif $(MAKE) --no-print-directory test VENV=.venv-$$version PYTHON="$$python"; then result=passed; \
	  else result=failed; status=1; fi; \
	  summary="$${summary}Python $$version: $$result\n"; \
	done; \
	printf "$$summary"; exit $$status

.PHONY: leaks
leaks: $(STAMP)  ## ten times the work of the leak tests: 200,000 messages, 1,000 reconnections and cancellations
	@AIOZKQUEUE_LEAKS=1 $(BIN)/python -m pytest tests/leaks $(PYTEST_ARGS)

FUZZ ?= 1000
.PHONY: fuzz
fuzz: $(STAMP)  ## hostile bytes for every decoder, new ones each time, and hostile znodes in queues (FUZZ=examples a test)
	@AIOZKQUEUE_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/security/test_hostile_bytes.py \
	  tests/security/test_hostile_replies.py tests/integration/queue/test_hostile_znodes.py $(PYTEST_ARGS)

SECONDS ?= 60
.PHONY: guided
guided: $(STAMP)  ## the same guided by coverage, SECONDS=60 a decoder; needs atheris (.venv/bin/pip install atheris)
	@for decoder in envelope config lock attempts job move bus history tags token event names replies; do \
	  $(BIN)/python -m tests.security.guided $$decoder -max_total_time=$(SECONDS) || exit 1; \
	done

HISTORIES ?= 1000000
FIRST ?= 0
.PHONY: simulate
simulate: $(STAMP)  ## simulated histories by chance, with faults (HISTORIES=n, FIRST=n for another part; SEED=n for a single one)
	@HISTORIES=$(HISTORIES) FIRST=$(FIRST) $(BIN)/python -m pytest -n 2 --dist load tests/simulation/test_histories.py \
	  -k guarantee $(PYTEST_ARGS)

.PHONY: soak
soak: $(STAMP)  ## break a real ensemble and its clients for MINUTES=10, and check the account (SOAK_ARGS="--seed 1 --json")
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) $(SOAK_ARGS)

.PHONY: bench
bench: $(STAMP)  ## measure ours and the peers on one real server (BENCH_ARGS="--quick", "--only put", ...)
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs
.PHONY: docs
docs: $(STAMP)  ## build the documentation into site/; a link that leads nowhere is an error
	@$(MKDOCS) build --strict

.PHONY: docs-serve
docs-serve: $(STAMP)  ## show the documentation on 127.0.0.1:8000 and reload it on each change
	@$(MKDOCS) serve --watch aiozkqueue --watch docsite --watch README.md

.PHONY: check
check: $(STAMP)  ## lint, format, types by mypy and pyright, word list, and audit; all run, whichever fails
	@status=0; \
	$(BIN)/ruff check --quiet || status=1; \
	$(BIN)/ruff format --check --quiet || { $(BIN)/ruff format --check; status=1; }; \
	$(BIN)/mypy || status=1; \
	$(BIN)/pyright --warnings || status=1; \
	$(BIN)/python -m tests.docs.prose || status=1; \
	$(BIN)/python -m tests.packaging.audit constraints.txt || status=1; \
	exit $$status

.PHONY: audit
audit: $(STAMP)  ## look for known vulnerabilities of the pinned dependencies
	@$(BIN)/python -m tests.packaging.audit constraints.txt

.PHONY: format
format: $(STAMP)  ## put the code into form
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format --quiet

.PHONY: constraints
constraints: | $(BIN)/pip  ## renew constraints.txt: the newest versions that pyproject.toml allows
	@$(PIP) install --upgrade uv
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --no-header \
	  --no-annotate --no-emit-package aiozkqueue --no-emit-package pip --output-file constraints.txt pyproject.toml

.PHONY: build
build: $(STAMP)  ## make the wheel and the source archive in dist/
	@$(PIP) install --upgrade build
	@$(BIN)/python -m build --outdir dist . >/dev/null
	@ls dist

.PHONY: zookeeper-wheel
zookeeper-wheel: $(STAMP)  ## make the wheel with ZooKeeper's jars in dist/
	@$(BIN)/python -m zookeeper_wheel.build dist

.PHONY: clean
clean:  ## remove .venv and every cache
	@rm -rf $(VENV) .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
