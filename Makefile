# Two commands on a fresh machine: `make demo` and `make test`. Everything is installed into .venv.
PYTHON ?= python3
# PIP_FLAGS reaches every pip call, e.g. to take the CPU build of torch: make test PIP_FLAGS='--extra-index-url URL'
PIP_FLAGS ?=
# make gpu: SYSTEM_SITE=1 takes $(PYTHON) as it is, with the torch that it has, and installs nothing; CASES is a further folder of cases
SYSTEM_SITE ?=
CASES ?=
# a file stays in one worker, which makes what its tests share once; tests/conftest.py says which files come first
WORKERS = -n 2 --dist loadfile --no-loadscope-reorder
# make test-oldest: old packages warn about newer ones beside them; three tests compare with
# the random numbers of newer torch; old google-crc32c cannot be imported in a deleted working directory
OLDEST = -W ignore::DeprecationWarning -k 'not unlucky_noise and not crashed_before_it_could_log and not that_is_gone and not planted_line and not (quoted_output and replay)'
# the sample run whose own command is replayed; that needs Linux
OWN_COMMAND = sample_runs/nan-empty-mask
# looked for, not imported: that takes seconds
HAS_TORCH = .venv/bin/python -c 'import sys; from importlib.util import find_spec; sys.exit(find_spec("torch") is None)'
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/bin/python:
	$(PYTHON) -m venv .venv

# compiled here, as pip does for a package that is copied: where PYTHONDONTWRITEBYTECODE is set, each command would do it anew
.venv/.package: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) -e .
	.venv/bin/python -m compileall -q postmortem
	touch $@

.venv/.replay: .venv/.package
	$(PIP) -e '.[replay]' || echo 'torch could not be installed: the demo goes on without the replay'
	touch $@

.venv/.dev: .venv/.package
	$(PIP) -e '.[dev]'
	touch $@

.venv-oldest/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints-oldest.txt \
		-e '.[parquet,plot,replay,zstd]' hypothesis jsonschema pytest pytest-timeout pytest-xdist tensorboard
	touch $@

demo: .venv/.replay  ## say what happened in sample_runs/, replay a NaN by its own command, another by its recipe, write report.html
	.venv/bin/postmortem scan sample_runs || test $$? -eq 1
	@! $(HAS_TORCH) || { cd $(OWN_COMMAND) && PATH="$(CURDIR)/.venv/bin:$$PATH" \
		postmortem replay . -- python train.py --steps 180 --lr 3e-3 --resume ckpt_100.pt || test $$? -eq 1 || \
		test "$$(uname)" != Linux; }
	.venv/bin/postmortem report sample_runs -o report.html \
		$$($(HAS_TORCH) && echo --replay)

test: .venv/.dev  ## run every test
	.venv/bin/python -m pytest $(WORKERS)

test-oldest: .venv-oldest/.installed  ## run every test with the oldest versions that pyproject.toml allows
	.venv-oldest/bin/python -m pytest $(WORKERS) $(OLDEST)

wheel: .venv/.dev  ## build the wheel into dist/, install it into an environment of its own and use it there
	rm -rf dist .venv-wheel
	.venv/bin/python -m build --outdir dist .
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt dist/*.whl
	cd .venv-wheel && bin/python -m pip check && bin/postmortem --help >/dev/null && bin/postmortem doctor
	cd .venv-wheel && { bin/postmortem scan ../sample_runs/nan-empty-mask -o scan.txt || test $$? -eq 1; }
	cd .venv-wheel && bin/postmortem report ../sample_runs/nan-empty-mask -o report.html
	grep 'NAN001 nan-onset in loss at step 137' .venv-wheel/scan.txt

gpu: $(if $(SYSTEM_SITE),,.venv/.dev)  ## test and measure replay on a CUDA device
	PYTHONPATH=$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH} $(if $(SYSTEM_SITE),$(PYTHON),.venv/bin/python) \
		benchmarks/gpu.py $(if $(CASES),--cases $(CASES))

lint: .venv/.dev  ## style, types and the layers between packages
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

docs: .venv/.dev  ## write the reference pages of docs/ from the code
	for script in docs/*.py; do .venv/bin/python $$script || exit 1; done

clean:  ## remove what was installed and cached
	rm -rf .venv .venv-oldest .venv-wheel dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

.PHONY: help demo test test-oldest wheel gpu lint docs clean
