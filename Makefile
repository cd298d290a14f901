# Needs Python >= 3.11 and make; everything else comes into .venv/. Another interpreter: make setup PY=/path/to/python
PY ?= python3 python3.11 python3.12 python3.13 python3.14 python
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -q
UV := $(BIN)/uv pip install -q --python $(BIN)/python

.PHONY: setup study test test-long bench lab format lock environment

setup: .venv/.stamp

# The first interpreter that runs, is new enough and can make environments; uv if pip can get it, else pip alone.
.venv/.stamp: requirements.lock pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	    for py in $(PY); do \
	        $$py -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	        echo "making .venv with $$py"; exec $$py -m venv --clear .venv; \
	    done; \
	    echo "None of these is a Python >= 3.11 that has venv and ensurepip: $(PY)."; \
	    echo "The toolkit cannot make its environment without one."; \
	    echo "Install one (Debian: apt install python3-venv) or name it: make setup PY=/path/to/python"; exit 1; } >&2
	@$(PIP) uv || echo "uv cannot be had here; pip does the work" >&2
	$(UV) --require-hashes -r requirements.lock || $(PIP) --require-hashes -r requirements.lock
	$(UV) --no-deps -e . || $(PIP) --no-deps -e .
	@touch $@

# Results are never overwritten: each call makes the next numbered folder.
study: setup
	@n=1; while [ -e results/first_run-$$n ]; do n=$$((n + 1)); done; folder=$(CURDIR)/results/first_run-$$n; \
	mkdir -p results && mkdir "$$folder" && \
	$(BIN)/papermill notebooks/00_first_run.ipynb "$$folder/notebook.ipynb" \
	    --kernel python3 --cwd notebooks --log-output --no-progress-bar -p folder "$$folder" && \
	echo "results are in $$folder"

# Real clusters get the machine for themselves: their tests run one after the other.
test: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy toolkit
	$(BIN)/pytest -n 2 -m "not cluster and not long"
	$(BIN)/pytest -p no:xdist -m "cluster and not long"

# Repeats that take minutes.
test-long: setup
	$(BIN)/pytest -p no:xdist -m long

# Side by side with PyTorch and gloo: a table, benchmarks/results/bench.csv and a figure. The machine should do nothing else.
bench: setup .venv/.bench
	$(BIN)/python -m benchmarks

# pip knows dependency groups from 25.1 on. uv would choose another build of PyTorch where pip is set up to find one.
.venv/.bench: pyproject.toml
	$(PIP) "pip>=25.1"
	$(PIP) --group bench
	@touch $@

# Outputs do not belong into the repository: jupyter nbconvert --clear-output --inplace notebooks/*.ipynb
lab: setup
	$(BIN)/jupyter lab notebooks

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock:
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-header --all-extras --group dev pyproject.toml -o requirements.lock

environment: setup
	$(BIN)/python .ci/environment.py > environment.yml
