# make setup   both environments and the digits (every other target does it by itself)
# make demo    one real job to its target, table and figures at the end
# make test    everything that can be tested on this machine
# make chaos   N=100 SEED=1: kill and stop every part at random instants; results/chaos adds up
# make fuzz    SECONDS=60: job files against the parser, guided by its coverage
# make wheel   dist/: installed anywhere, it runs jobs too (docs/how-to/run-a-service.md)
# make check   lint, types, import contracts; gofmt, vet and staticcheck where Go is
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup data demo test test-python test-go chaos fuzz wheel check check-go lint types contracts requirements bench recording clean

PYTHON_VERSION := 3.11
export UV := $(shell command -v uv || echo .cache/uv/bin/uv)
export UV_LINK_MODE := copy
COACH := .venv/bin/coach
PYTEST := .venv/bin/python -m pytest

help:
	@sed -n 's/^# make/make/p' Makefile

setup: .venv/.ready .venv-functions/.ready

# uv comes from the machine, else from PyPI, into a small environment of its own.
.cache/uv/bin/uv:
	@command -v python$(PYTHON_VERSION) >/dev/null || { echo "setup: needs python$(PYTHON_VERSION) with venv (Debian, Ubuntu: apt install python$(PYTHON_VERSION)-venv) or uv" >&2; exit 1; }
	@python$(PYTHON_VERSION) -m venv .cache/uv 2>/dev/null || { echo "setup: python$(PYTHON_VERSION) has no venv (Debian, Ubuntu: apt install python$(PYTHON_VERSION)-venv)" >&2; exit 1; }
	@.cache/uv/bin/python -m pip install --quiet --disable-pip-version-check uv

.venv/.ready: requirements/dev.txt pyproject.toml | $(UV)
	@$(UV) venv --quiet --allow-existing --python $(PYTHON_VERSION) .venv
	@$(UV) pip sync --quiet --python .venv/bin/python --require-hashes requirements/dev.txt
	@$(UV) pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

.venv-functions/.ready: requirements/functions.txt | $(UV)
	@$(UV) venv --quiet --allow-existing --python $(PYTHON_VERSION) .venv-functions
	@$(UV) pip sync --quiet --python .venv-functions/bin/python --require-hashes requirements/functions.txt
	@.venv-functions/bin/python -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null || { echo "setup: MXNet needs libgomp (Debian, Ubuntu: apt install libgomp1)" >&2; exit 1; }
	@touch $@

data: .data/mnist-digits/9.json

.data/mnist-digits/9.json: | .venv/.ready
	@.venv/bin/python scripts/digits.py .data/mnist-digits

# `make demo DEMO=results/demo` wrote what the README shows.
DEMO := demo

demo: setup data
	@$(COACH) run jobs/lenet-digits.yaml
	@echo
	@$(COACH) export --last --dir $(DEMO)
	@$(COACH) plot --last --dir $(DEMO)
	@echo; echo "The same job at every static choice, measured earlier (make bench measures it here):"; echo
	@sed -n '/^|/p' results/one-machine/static-grid.md

# The README's recording: a real run in a terminal of 100 x 24, as an animated SVG.
recording: setup data
	@COLUMNS=100 $(UV) tool run --from 'termtosvg==1.1.0' --with 'setuptools<81' termtosvg results/demo/recording.svg \
		-g 100x24 -m 400 -M 1500 -c '$(COACH) run jobs/lenet-digits.yaml'

# The tables of results/one-machine, which need this machine for themselves; about half an hour on 2 cores.
bench: setup data
	@.venv/bin/python -m benchmarks.training.one_machine

test: test-python test-go

test-python: setup data
	@$(PYTEST) tests

# Go parts run where Go is; COACH_REQUIRE_ALL=1 makes their absence a failure.
test-go: GO_TARGETS := test integration
check-go: GO_TARGETS := check
test-go check-go:
	@if command -v go >/dev/null; then $(MAKE) --no-print-directory -C scheduler-plugins $(GO_TARGETS); \
	elif [ "$${COACH_REQUIRE_ALL:-}" = 1 ]; then echo "$@: no Go on this machine" >&2; exit 1; \
	else echo "$@: skipped, no Go on this machine"; fi

# Lives add up by seed in results/chaos; those that were lived before are not lived again.
N := 100
SEED := 1
chaos: setup
	@.venv/bin/python -m benchmarks.service.chaos $(N) $(SEED)

SECONDS := 60
fuzz: setup
	@$(UV) pip install --quiet --python .venv/bin/python atheris==3.1.0
	@mkdir -p .cache/fuzz && cp jobs/*.yaml .cache/fuzz
	@.venv/bin/python -m tests.jobfiles.coverage_guided .cache/fuzz -max_total_time=$(SECONDS) -max_len=4096 -artifact_prefix=.cache/fuzz-

wheel: setup
	@.venv/bin/python -m hatchling build -t wheel -d dist

check: lint types contracts check-go

lint: setup
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --quiet --check .

types: setup
	@.venv/bin/mypy --no-error-summary coach

contracts: setup
	@PYTHONPATH=functions .venv/bin/lint-imports --no-cache

# Versions are locked with hashes and without addresses.
requirements: | $(UV)
	@$(UV) pip compile --quiet --upgrade --python-version $(PYTHON_VERSION) --generate-hashes --no-header requirements/functions.in -o requirements/functions.txt
	@$(UV) pip compile --quiet --upgrade --python-version $(PYTHON_VERSION) --generate-hashes --no-header requirements/coach.in -o requirements/coach.txt
	@$(UV) pip compile --quiet --upgrade --python-version $(PYTHON_VERSION) --generate-hashes --no-header -c requirements/coach.txt requirements/dev.in -o requirements/dev.txt

clean:
	@rm -rf .venv .venv-functions .cache .data
