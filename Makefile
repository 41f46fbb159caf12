# Everything happens inside the checkout: the environment in .venv, caches in .cache, results in out.
#
#   make run      simulate a company's day and leave its log in out/day.db
#   make test     every test, as CI runs them
#   make check    under a minute: format, lint, types, floors, fast tests
#   make bench    the figures, kept as JSON in out/bench
#   make setup    the environment alone (the others do it when it is missing)
#   make lock     write requirements/*.txt anew from pyproject.toml

SHELL := /bin/sh
PY    := .venv/bin/python

# A Python to build .venv with; unset, the first that is new enough is taken.
PYTHON ?=
WORLD  ?= controlplane/simulate/worlds/company-day.yaml
DAY    := out/day.db

# What `make check` leaves out: whatever is slow, starts a server, or measures.
FAST := not slow and not services and not bench
# The rooms whose tests are quick; the others run real commands, servers and traces.
FAST_ROOMS := $(addprefix tests/,house domain policy scheduler audit runtime)

READY := .venv/.ready
# An environment holds its own path: a checkout that was moved needs a new one.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
MOVED := moved
endif

export TIDEGATE_DATA ?= ../shared/data
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.cache/hypothesis
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run test check check-format check-lint check-types check-floors check-tests bench setup lock clean moved
.DEFAULT_GOAL := check

# Its own earlier log goes first; no other log is ever removed.
run: setup
	@mkdir -p out
	@rm -f $(DAY) $(DAY)-wal $(DAY)-shm $(DAY)-journal
	@.venv/bin/tidegate simulate $(WORLD) --log $(DAY)

test: setup
	$(PY) -m pytest -m "not bench" --hypothesis-profile=ci -n 2 --dist loadfile

# Parts of their own, so that `make -k check` names every fault at once.
check: check-format check-lint check-types check-floors check-tests

check-format: setup
	@$(PY) -m ruff format --check --quiet

check-lint: setup
	@$(PY) -m ruff check --quiet

check-types: setup
	@$(PY) -m mypy --no-error-summary

check-floors: setup
	@.venv/bin/lint-imports --no-logo --cache-dir .cache/imports

check-tests: setup
	@$(PY) -m pytest -q -n 2 --dist loadfile -m "$(FAST)" $(FAST_ROOMS) --hypothesis-profile=fast --durations=5 --durations-min=1

bench: setup
	@mkdir -p out/bench
	$(PY) -m pytest tests/benchmarks -m bench -s

setup: $(READY)

$(READY): requirements/dev.txt pyproject.toml $(MOVED)
	@PYTHON="$(PYTHON)" sh requirements/setup.sh

lock: setup
	@for set in "runtime" "dev --group dev"; do \
	  name=$${set%% *}; \
	  $(PY) -m uv pip compile --quiet pyproject.toml $${set#$$name} --output-file requirements/$$name.txt \
	    --generate-hashes --universal --python-version 3.11 --no-emit-index-url --no-annotate \
	    --custom-compile-command "make lock" --cache-dir .cache/uv || exit 3; \
	done

clean:
	rm -rf .venv .cache out
