# Two commands do everything: `make run` and `make test`. Each makes the environment it needs (.venv) and installs into it.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Two workers share the cores: OpenMP's threads must not spin while they wait. Each begins with one half of the files, whose fixtures
# it sets up once, and takes from the other's when done. Modules are compiled once, not by each process of a test.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: run test test-all test-nightly nightly-files generated lint docs links dist wheel bench clean

run: .venv/experiments
	$(BIN)/msctx run configs/experiments/digits.yaml

# The native core takes minutes to build, which no test's time limit is to count; without a compiler its tests are skipped.
test: .venv/test
	-$(BIN)/msctx build
	$(PYTEST) -m "not full" tests

# What a change must pass beyond, with the libraries that msctx integrates with, which `make test` does without. Hundreds of processes
# start and are ended in it: a test that fails runs once more, and the summary names it.
test-all: test
	$(MAKE) .venv/integrations
	$(PYTEST) --reruns 1 -raR -m "full and not nightly" tests

# What no change waits for: every bound and its adversaries, sanitizers, PyTorch's own samples, ranks, compilation for CUDA, ten times
# the examples of properties, links, other releases of torch.
test-nightly: .venv/integrations links
	-$(BIN)/msctx build
	$(PYTEST) --reruns 1 -raR -m nightly tests
	$(MAKE) wheel TORCHS="$(NIGHTLY_TORCHS)"

NIGHTLY_TORCHS ?= 2.12.1 2.14.1

# The nightly tests of what has changed since BASE, or by the last commit or merge.
nightly-files: .venv/integrations
	files="$$($(BIN)/python tests/tiers.py $(BASE))"; [ -z "$$files" ] || $(PYTEST) --reruns 1 -raR -m nightly $$files

# What is generated from the sources: the schema, golden files, tables of the pages, lists that only shrink. Read the diff.
generated: .venv/test
	-$(BIN)/msctx build
	$(BIN)/msctx schema > build/schema.json && mv build/schema.json configs/schema.json
	UPDATE_GOLDEN=1 UPDATE_DOCS=1 UPDATE_MAP=1 UPDATE_LANGUAGE=1 $(BIN)/python -m pytest -q -m "not full" tests/test_plans.py \
		tests/test_mistakes.py tests/test_docs.py tests/test_map.py tests/test_language.py tests/options tests/migrate \
		tests/kernels/test_dispatch.py

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Warnings are errors.
docs: .venv/docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs/html

# docs/conf.py says which.
links: .venv/docs
	$(BIN)/python -m sphinx -q -W --keep-going -b linkcheck docs build/docs/linkcheck

# The sdist and the wheel, which brings the native core for the installed torch; TORCHS="2.12.1 2.14.1" adds others.
dist: .venv/dist .venv/experiments
	$(BIN)/python .ci/dist.py $(TORCHS)

# The same, then installed where there is no checkout, no compiler and no network, and used there.
wheel: dist
	$(BIN)/python .ci/wheel.py

bench: .venv/test
	$(BIN)/python bench/costs.py

# A stamp says which extra is installed; a change of what is to be installed makes it anew.
.venv/%: pyproject.toml constraints.txt | .venv/made
	$(PIP) -e ".[$*]"
	@touch $@

.venv/made:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv .venv
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info
