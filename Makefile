# make setup       both environments and the digits (every other target does it by itself);
#                  FRAMEWORK=pytorch: for PyTorch, which you install yourself, in place of MXNet
# make demo        one real job to its target, table and figures at the end; FRAMEWORK=pytorch: the same in PyTorch
# make test        what must pass before anything lands, in 12 minutes on 2 cores; the same cases in every run
# make test-quick  the inner loop: one to three minutes
# make test-packaging  wheels, chart, CRDs, images, releases (needs Go for all of them)
# make test-research  the policies and experiments of the papers: the second package, research/
# make test-slurm  programs as jobs of a real Slurm with three nodes on this machine (needs root and Debian's packages
#                  slurmctld, slurmd, slurm-client, munge)
# make test-root   what needs root and the Debian packages iproute2, util-linux, procps: networks, full disks;
#                  ALL=1: 200 kills while another user attacks, too, half an hour
# make test-web    the page in a real browser (needs Debian's chromium); ALL=1: all of its tests
# make web         the page's bundle, built from web/ with Node.js
# make test-pytorch what needs a Python with PyTorch 1.13 or later
# make test-torch2 the same with PyPI's newest torch and transformers (6 GB), by hand; results/pytorch/torch2.md
# make test-trackers what `coach export --to` writes, read by MLflow, TensorBoard and W&B themselves
# make test-kubernetes  pods on a cluster of three nodes on this machine (needs root and Go), or on yours by KUBECONFIG;
#                  ALL=1: everything that may happen to them, as in make all-tests
# make test-versions   the chart, the controller and a gang on Kubernetes 1.34, 1.36 and 1.37 (needs root and Go)
# make images      .cache/images/coach-{handler,functions,scheduler}.tar, with docker or without (scripts/images.py)
# make all-tests   every test there is, in 100 minutes on 2 cores: goes on where it was stopped; results/all-tests.md
# make soak        RUNS=10: make test in a row beside a busy loop on each core, goes on where it was stopped;
#                  results/test-soak.md
# make chaos       N=100 SEED=1: kill and stop every part at random instants; results/chaos adds up; FRAMEWORK=pytorch,
#                  SERVERS=elastic: elastic parameter servers; PROGRAM=1: of a program of your own, results/programs;
#                  SLURM=1: of one on a real Slurm, and of Slurm itself, results/slurm (as make test-slurm);
#                  SEARCH=1: of the handler of a search, results/search
# make chaos-kubernetes  N=20 SEED=1: faults at random instants on the cluster; results/kubernetes/chaos.md adds up
# make histories   N=1000000: as many histories of the protocol by which workers join, leave and die (simulated), goes on
#                  where it was stopped; then of parameter servers; histories.json in results/pytorch, results/elastic
# make fuzz        SECONDS=60: new random cases for every property, then job files guided by the parser's coverage;
#                  what fails is kept in tests/counterexamples, where every later run begins with it
# make wheel       dist/: installed anywhere, it runs jobs too (docs/guides/service.md)
# make release     VERSION=0.2.0: version, changelog, schemas, journals, wheels, chart, images' digests, a commit and a tag;
#                  WITHOUT="journals images chart" leaves parts out
# make docs        .cache/site: the pages as a site with search and the Python API; COACH_REPOSITORY=https://HOST/OWNER/NAME
#                  for links to files that are no pages
# make helm        .cache/bin/helm, for the tests of deploy/chart, built by Go from its module: 5 minutes the first time
# make object-store .cache/bin/versitygw, the S3 server of the tests, built by Go from its module
# make check       lint, types, import contracts; gofmt, vet and staticcheck where Go is
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# The parts of make test.
TESTS := $(addprefix test-,local handlers processes commands platforms core simulation service rest cli)
.PHONY: help setup setup-mxnet setup-pytorch data demo test test-quick $(TESTS) test-packaging test-research test-gpu test-root test-slurm test-slurm-faults test-slurm-handlers test-slurm-programs test-web web test-pytorch test-torch2 test-trackers kubernetes test-kubernetes test-versions images test-go test-go-race all-tests soak chaos chaos-kubernetes histories fuzz wheel release control-plane helm object-store docs check check-go lint types contracts requirements bench recording clean

PYTHON_VERSION := 3.11
export UV := $(shell command -v uv || echo .cache/uv/bin/uv)
export UV_LINK_MODE := copy
# Python keeps what it has compiled: without it every process that a test starts would compile NumPy, SciPy, MXNet again.
unexport PYTHONDONTWRITEBYTECODE
COACH := .venv/bin/coach
PYTEST := .venv/bin/python -m pytest

help:
	@sed -n '1,/^SHELL/ s/^# \(make\|    \)/\1/p' Makefile

FRAMEWORK := mxnet
setup: .venv/.ready setup-$(FRAMEWORK)

setup-mxnet: .venv-functions/.ready

setup-pytorch: .venv/.ready
	@.venv/bin/python -m coach.platforms.local.pytorch_runtime

# uv comes from the machine, else from PyPI, into a small environment of its own.
.cache/uv/bin/uv:
	@command -v python$(PYTHON_VERSION) >/dev/null || { echo "setup: needs python$(PYTHON_VERSION) with venv (Debian, Ubuntu: apt install python$(PYTHON_VERSION)-venv) or uv" >&2; exit 1; }
	@python$(PYTHON_VERSION) -m venv .cache/uv 2>/dev/null || { echo "setup: python$(PYTHON_VERSION) has no venv (Debian, Ubuntu: apt install python$(PYTHON_VERSION)-venv)" >&2; exit 1; }
	@.cache/uv/bin/python -m pip install --quiet --disable-pip-version-check uv

.venv/.ready: requirements/dev.txt pyproject.toml research/pyproject.toml | $(UV)
	@$(UV) venv --quiet --allow-existing --python $(PYTHON_VERSION) .venv
	@$(UV) pip sync --quiet --python .venv/bin/python --require-hashes requirements/dev.txt
	@$(UV) pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable . --editable research
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
DEMO_JOB := jobs/lenet-digits$(if $(filter pytorch,$(FRAMEWORK)),-pytorch).yaml

demo: setup data
	@$(COACH) run $(DEMO_JOB)
	@echo
	@$(COACH) export --last --dir $(DEMO)
	@$(COACH) plot --last --dir $(DEMO)
ifeq ($(FRAMEWORK),mxnet)
	@echo; echo "The same job on ps-lite at every static choice, measured earlier (make bench measures it here):"; echo
	@sed -n '/^|/p' results/one-machine/static-grid.md
endif
	@echo; echo "Look at it in a browser:  $(COACH) ui $$($(COACH) ps -o json | .venv/bin/python -c 'import json, sys; print(json.load(sys.stdin)[-1]["name"])')"

# The README's recording: the first tutorial's commands in a terminal of 100 x 30, as an animated SVG.
recording: setup
	@COLUMNS=100 $(UV) tool run --from 'termtosvg==1.1.0' --with 'setuptools<81' termtosvg results/demo/recording.svg \
		-g 100x30 -m 200 -M 3000 -c '.venv/bin/python -m scripts.type_page docs/start/first-run.md'

# The tables of results/one-machine, which need this machine for themselves; about half an hour on 2 cores.
bench: setup data
	@.venv/bin/python -m benchmarks.training.one_machine

# Parts at once, each in its own fixed order; a line says which part it is of. Those that start processes, and wait for
# them most of the time, begin first.
test: setup data control-plane
	@$(MAKE) --no-print-directory -k -j6 $(TESTS) test-go
	@echo "Not run here: make test-research (the papers' policies), make test-packaging (wheels, chart), make test-pytorch (needs"
	@echo 'PyTorch), make test-root (needs root and iproute2, util-linux, procps), make test-web (needs chromium), make'
	@echo 'test-kubernetes (needs root and Go), make all-tests (takes longer).'

test-quick: setup data
	@$(PYTEST) -q tests -m 'quick and not root and not kubernetes and not pytorch and not web' | sed -u 's/^/quick | /'

# What starts no processes, in parts of about two minutes of CPU time each.
LOGIC := not processes and not full and not root and not kubernetes and not pytorch and not web
core := tests/core
simulation := tests/functions tests/journals tests/report tests/simulation
service := tests/handler tests/service --ignore=tests/service/test_openapi.py
cli := tests/cli
rest := tests $(addprefix --ignore=,tests/packaging tests/research $(core) $(simulation) $(filter tests/%,$(service)) $(cli))
test-core test-simulation test-service test-cli test-rest: test-%: setup data
	@$(PYTEST) -q $($*) -m '$(LOGIC)' | sed -u 's/^/$* | /'

# What starts some: the folders that have such tests, as reading all the others takes long.
STARTED := processes and not full and not root and not kubernetes and not pytorch and not web
commands := tests/chaos tests/cli
handlers := tests/service
processes := tests/controller tests/docs tests/functions tests/handler tests/jobfiles
local := tests/platforms/local
platforms := tests/platforms --ignore=tests/platforms/local
test-commands test-handlers test-processes test-local test-platforms: test-%: setup data
	@$(MAKE) --no-print-directory -s control-plane
	@$(PYTEST) -q $($*) -m '$(STARTED)' | sed -u 's/^/$* | /'

test-research: setup data
	@$(PYTEST) -q tests/research -m 'not full and not root and not kubernetes and not pytorch and not web' | sed -u 's/^/research | /'

PACKAGING := tests/packaging
test-packaging: setup data control-plane helm
	@$(PYTEST) -q $(PACKAGING) -m 'not full and not root and not kubernetes and not pytorch and not web' | sed -u 's/^/packaging | /'

test-web: setup data
	@$(PYTEST) -q tests/web -m 'web$(if $(ALL),, and not full)'

# The page's bundle from its sources, with Node.js; what it makes is committed.
web: web/node_modules/.ready
	@npm run --prefix web --silent types >/dev/null
	@npm run --prefix web --silent check
	@npm run --prefix web --silent build

web/node_modules/.ready: web/package-lock.json
	@npm ci --prefix web --silent --no-audit --no-fund --ignore-scripts
	@touch $@

# On a machine with GPUs of NVIDIA's, and a PyTorch for CUDA (COACH_PYTORCH_PYTHON names its Python).
test-gpu: setup data
	@$(PYTEST) -q tests/functions/pytorch/test_gpu.py tests/platforms/local/devices/test_real_gpus.py

test-root: setup data
	@$(PYTEST) -q tests -m 'root and not slurm$(if $(ALL),, and not full)'

# Debian's packages: slurmctld slurmd slurm-client munge.
test-slurm: setup
	@$(MAKE) --no-print-directory -j3 test-slurm-faults test-slurm-handlers test-slurm-programs

# Three parts at once, each with a cluster of its own: most of the time they wait.
SLURM := -m 'slurm$(if $(ALL),, and not full)'
test-slurm-faults:
	@$(PYTEST) -q tests/slurm/test_faults.py $(SLURM) | sed -u 's/^/slurm, faults | /'

test-slurm-handlers:
	@$(PYTEST) -q tests/slurm/test_handlers.py tests/slurm/test_contract.py $(SLURM) | sed -u 's/^/slurm, handlers | /'

test-slurm-programs:
	@$(PYTEST) -q tests/slurm/test_programs.py tests/slurm/test_controller.py $(SLURM) | sed -u 's/^/slurm, programs | /'

test-pytorch: setup setup-pytorch data
	@$(PYTEST) -q tests -m 'pytorch$(if $(ALL),, and not full)' | sed -u 's/^/pytorch | /'

# Strings hash alike in every run: sets have one order.
test-quick $(TESTS) test-packaging test-research test-root test-web test-pytorch test-kubernetes: export PYTHONHASHSEED := 0

# The programs are built and the images made where what they come from has changed.
kubernetes: setup data helm $(if $(ALL),object-store)
	@.venv/bin/python -m tests.kubernetes.cluster check
	@$(MAKE) --no-print-directory -s -C scheduler-plugins controlplane
	@[ -n "$${KUBECONFIG:-}" ] || .venv/bin/python scripts/images.py --with debian

# What an API server takes and answers, and gangs in pods of real kubelets, on the other versions of Kubernetes.
VERSIONS := 1.34 1.36 1.37
API_TESTS := tests/packaging/test_chart.py tests/packaging/test_network_policies.py tests/controller tests/platforms/kubernetes/test_platform.py tests/platforms/kubernetes/test_programs.py
test-versions: setup data helm
	@$(MAKE) --no-print-directory -s -C scheduler-plugins $(VERSIONS:%=bin/controlplane-%)
	@.venv/bin/python scripts/images.py --with debian
	@for version in $(VERSIONS); do echo "Kubernetes $$version"; export COACH_KUBERNETES=$$version; \
		$(PYTEST) -q -m 'not full and not mxnet' $(API_TESTS); \
		$(PYTEST) -q tests/kubernetes/test_first_job.py tests/kubernetes/test_schedulers.py::test_with_native_gangs_all_pods_of_a_job_start_or_none; done

docs: .venv-docs/.ready
	@rm -rf .cache/docs .cache/site && cp -r docs .cache/docs && cp scripts/site/api.rst .cache/docs/reference
	@.venv/bin/python -m scripts.generate.pages .cache/docs
	@PYTHONPATH=. .venv-docs/bin/python -m sphinx -q -W --keep-going -j auto -c scripts/site .cache/docs .cache/site
	@grep -q 'Coach [0-9]' .cache/site/index.html && echo .cache/site/index.html

.venv-docs/.ready: requirements/docs.txt | $(UV)
	@$(UV) venv --quiet --allow-existing --python $(PYTHON_VERSION) .venv-docs
	@$(UV) pip sync --quiet --python .venv-docs/bin/python --require-hashes requirements/docs.txt
	@touch $@

test-trackers: .venv-trackers/.ready
	@$(PYTEST) -q tests/report/test_trackers.py

.venv-trackers/.ready: requirements/trackers.txt .venv/.ready
	@$(UV) venv --quiet --allow-existing --python $(PYTHON_VERSION) .venv-trackers
	@$(UV) pip sync --quiet --python .venv-trackers/bin/python --require-hashes requirements/trackers.txt
	@$(UV) pip install --quiet --python .venv-trackers/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

test-torch2: setup data
	@.venv/bin/python scripts/newest_torch.py

test-kubernetes: kubernetes
	@$(PYTEST) -q tests/kubernetes -m 'kubernetes$(if $(ALL),, and not full)'

images: setup
	@.venv/bin/python scripts/images.py

all-tests: setup data control-plane helm object-store
	@.venv/bin/python scripts/test_record.py all

RUNS := 10
soak: setup data control-plane
	@.venv/bin/python scripts/test_record.py soak $(RUNS)

# What tests start, built where Go is: etcd and kube-apiserver in one program, and Helm.
control-plane:
	@! command -v go >/dev/null || $(MAKE) --no-print-directory -C scheduler-plugins bin/controlplane

HELM_VERSION := v4.3.1
helm: .cache/bin/helm-$(HELM_VERSION)

.cache/bin/helm-$(HELM_VERSION):
	@! command -v go >/dev/null || { GOBIN=$(abspath .cache/bin) go install helm.sh/helm/v4/cmd/helm@$(HELM_VERSION) && touch $@; }

# The S3 server of the tests.
VERSITYGW_VERSION := v1.8.0
object-store: .cache/bin/versitygw-$(VERSITYGW_VERSION)

.cache/bin/versitygw-$(VERSITYGW_VERSION):
	@! command -v go >/dev/null || { GOBIN=$(abspath .cache/bin) go install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW_VERSION) && touch $@; }

test-go: control-plane

# Go parts run where Go is; COACH_REQUIRE_ALL=1 makes their absence a failure. What passed with these files, this Go and
# this processor is kept by its hash outside of the checkout, and not run again: AGAIN=1 runs it.
GO_FILES := scheduler-plugins deploy tests/conformance docs/advanced/scheduler.md
GO_PASSED := $${XDG_CACHE_HOME:-$$HOME/.cache}/coach-tests
test-go: GO_TARGETS := test integration
test-go-race: GO_TARGETS := race
check-go: GO_TARGETS := check
test-go test-go-race check-go:
	@if command -v go >/dev/null; then \
		passed="$(GO_PASSED)/$@-$$({ go version; uname -m; git ls-files -z --cached --others --exclude-standard $(GO_FILES) | sort -z | xargs -0 sha256sum; } | sha256sum | cut -c1-32)"; \
		if [ -z "$(AGAIN)" ] && [ -e "$$passed" ]; then echo "$@: passed before with the same files (AGAIN=1 runs it again)"; \
		else $(MAKE) --no-print-directory -C scheduler-plugins $(GO_TARGETS) && mkdir -p "$(GO_PASSED)" && touch "$$passed"; fi; \
	elif [ "$${COACH_REQUIRE_ALL:-}" = 1 ]; then echo "$@: no Go on this machine" >&2; exit 1; \
	else echo "$@: skipped, no Go on this machine"; fi

# Runs add up by seed in results/chaos; those that were made before are not repeated.
N := 100
SEED := 1
SERVERS := ps-lite
chaos: setup
	@.venv/bin/python -m benchmarks.service.chaos$(if $(GPUS),_gpus $(N) $(SEED) --gpus $(GPUS),$(if $(SEARCH),_search $(N) $(SEED),$(if $(PROGRAM)$(SLURM),_programs $(N) $(SEED)$(if $(SLURM), --slurm), $(N) $(SEED) --framework $(FRAMEWORK) --servers $(SERVERS))))

chaos-kubernetes: N := 20
chaos-kubernetes: kubernetes
	@.venv/bin/python -m benchmarks.service.chaos_kubernetes $(N) $(SEED)

histories: N := 1000000
histories: setup
	@.venv/bin/python -m tests.functions.membership.histories $(N)
	@.venv/bin/python -m tests.functions.servers.histories $(N)

SECONDS := 60
fuzz: setup
	@$(UV) pip install --quiet --python .venv/bin/python atheris==3.0.0
	@mkdir -p .cache/fuzz && cp jobs/*.yaml .cache/fuzz
	@status=0; \
	$(PYTEST) -q tests -m 'hypothesis and not root and not kubernetes and not pytorch and not web' --hypothesis-profile=fuzz -p tests.fuzz --fuzz-seconds $(SECONDS) || status=$$?; \
	.venv/bin/python -m tests.jobfiles.coverage_guided .cache/fuzz -max_total_time=$(SECONDS) -max_len=4096 || status=$$?; \
	exit $$status

wheel: setup
	@.venv/bin/python -m hatchling build -t wheel -d dist
	@cd research && ../.venv/bin/python -m hatchling build -t wheel -d ../dist

release: setup
	@.venv/bin/python scripts/release.py $(VERSION) --without $(WITHOUT)

# All parts run, also after one that failed.
check:
	@$(MAKE) --no-print-directory --keep-going lint types contracts check-go

lint: setup
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --quiet --check .

types: setup
	@.venv/bin/mypy --no-error-summary coach research/coach_research scripts/generate

contracts: setup
	@PYTHONPATH=functions .venv/bin/lint-imports --no-cache

# Versions are locked with hashes and without addresses.
requirements: | $(UV)
	@$(UV) pip compile --quiet --upgrade --python-version $(PYTHON_VERSION) --generate-hashes --no-header requirements/functions.in -o requirements/functions.txt
	@$(UV) pip compile --quiet --upgrade --python-version $(PYTHON_VERSION) --generate-hashes --no-header requirements/coach.in -o requirements/coach.txt
	@$(UV) pip compile --quiet --upgrade --python-version $(PYTHON_VERSION) --generate-hashes --no-header -c requirements/coach.txt requirements/dev.in -o requirements/dev.txt
	@$(UV) pip compile --quiet --upgrade --python-version $(PYTHON_VERSION) --generate-hashes --no-header -c requirements/coach.txt requirements/trackers.in -o requirements/trackers.txt
	@$(UV) pip compile --quiet --upgrade --python-version $(PYTHON_VERSION) --generate-hashes --no-header -c requirements/coach.txt requirements/docs.in -o requirements/docs.txt

clean:
	@rm -rf .venv .venv-functions .venv-trackers .venv-docs .cache .data
