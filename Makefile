# Two commands on a fresh machine: `make demo` and `make test`. Everything is installed into .venv.
PYTHON ?= python3
# PIP_FLAGS reaches every pip call, e.g. to take the CPU build of torch: make test PIP_FLAGS='--extra-index-url URL'
PIP_FLAGS ?=
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.package: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e .
	touch $@

.venv/.replay: .venv/.package
	$(PIP) -e '.[replay]' || echo 'torch could not be installed: the demo goes on without the replay'
	touch $@

.venv/.dev: .venv/.package
	$(PIP) -e '.[dev]'
	touch $@

demo: .venv/.replay  ## say what happened in sample_runs/, write report.html, replay the NaN
	.venv/bin/postmortem scan sample_runs || test $$? -eq 1
	.venv/bin/postmortem report sample_runs -o report.html
	@! .venv/bin/python -c 'import torch' 2>/dev/null || .venv/bin/postmortem replay sample_runs/nan-log-of-zero || test $$? -eq 1

test: .venv/.dev  ## run every test
	.venv/bin/python -m pytest -n 2

lint: .venv/.dev  ## style, types and the layers between packages
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

docs: .venv/.dev  ## write the reference pages of docs/ from the code
	for script in docs/*.py; do .venv/bin/python $$script || exit 1; done

clean:  ## remove what was installed and cached
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

.PHONY: help demo test lint docs clean
