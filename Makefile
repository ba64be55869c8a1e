# make demo [SIZE=2GB MEMORY=400MB OUT=demo-out]   the main job, shown
# make test                                        ruff, mypy --strict, the test suite
# make test-all                                    the same with the long campaigns
# make test-postgres                               the service's tests again, on a PostgreSQL of
#                                                  their own (installed by root with apt, if missing);
#                                                  POSTGRES_TESTS=… for some of the files
# make docs                                        the site of docs/ in site/; a broken link fails
# make dist                                        sdist and wheel in dist/, checked and tried
# All create what they need in .venv, and are quick when run again.

SIZE ?= 2GB
MEMORY ?= 400MB
OUT ?= demo-out
# More than cores: many tests of the service wait for other processes.
WORKERS ?= 3
POSTGRES_TESTS ?= $(wildcard tests/server/test_*.py)
VENV := .venv
# Without bytecode, each of the processes that the tests start would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	&& echo $$p && break; done)
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.docs-installed
DIST := $(VENV)/.dist-installed
PIP := $(VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile
# Install an extra, by one process at a time. Where another make has done that meanwhile, its tests
# are running, and the package must not go away under them.
install-extra = flock pyproject.toml sh -c '[ $@ -nt pyproject.toml ] || { \
	$(PIP) --no-build-isolation --editable ".[$(1)]" && touch $@; }'

.PHONY: demo test test-all test-postgres docs dist install clean

demo: install
	$(VENV)/bin/hdgemm demo --size $(SIZE) --host-memory $(MEMORY) --out $(OUT)

test: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	flock $(VENV)/bin/mypy $(VENV)/bin/mypy & types=$$!; \
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(MARKED); tests=$$?; \
	wait $$types && exit $$tests

test-all: MARKED := -m '' --hypothesis-profile drawn
test-all: $(DOCS) test

test-postgres: install
	.ci/debian postgresql
	HDGEMM_TEST_POSTGRES=1 $(VENV)/bin/python -m pytest -rs $(POSTGRES_TESTS)

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

dist: $(DIST)
	.ci/dist $(VENV) $(PYTHON)

install: $(STAMP)

# Anew when the dependencies may have changed. Modules are compiled when they are first imported:
# pip would take half a minute for those that nothing imports, too.
$(STAMP): pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "hdgemm needs Python 3.11 or newer; on Debian: sudo apt install python3 python3-venv" >&2; \
		exit 1; fi
	@[ -x $(VENV)/bin/pip ] || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments; on Debian: sudo apt install python3-venv" >&2; \
		exit 1; }
# A Python's own pip may be old, and takes three times as long to choose the versions. With the build
# backend in the environment, pip does not make another one for it, twice, at each installation.
	@flock pyproject.toml sh -c '[ -x $(VENV)/bin/hatchling ] || { $(PYTHON) -m venv $(VENV) && \
		$(PIP) --upgrade pip hatchling editables; }'
	$(call install-extra,dev)

# What no test needs: the generator of the site is a third of all files.
$(DOCS): $(STAMP)
	$(call install-extra,docs)

$(DIST): $(STAMP)
	$(call install-extra,dist)

clean:
	rm -rf $(VENV) $(OUT) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
