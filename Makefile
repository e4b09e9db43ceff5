# Every target sets up what it needs: a virtual environment with the locked dependencies.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# A range of torch versions would bring gigabytes of GPU libraries; this one has a CPU build.
TORCH := 2.13.0

.PHONY: help demo test test-slow test-peers check format bench docs lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

$(READY): requirements.lock pyproject.toml
	@echo "Setting up $(VENV) (once; about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

demo: $(READY) ## train on a sample of FashionMNIST, compare six methods on MNIST, noise and flips, write a report
	$(BIN)/python examples/demo.py --output demo

test: $(READY) ## the default tests, the doctests and the README's code, on all cores
	$(BIN)/pytest --numprocesses 2 --quiet

test-slow: $(READY) ## the tests that take minutes
	$(BIN)/pytest -m slow --quiet

test-peers: $(READY) ## the tests with Ray, Spark (which needs Java) and Triton's client, after installing them
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-peers.lock
	$(BIN)/pytest -m "slow or not slow" --quiet tests/engines/test_ray_data.py tests/engines/test_spark.py tests/service/test_client.py

check: $(READY) ## format, lint, types, and the documentation with its links
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/mkdocs build --strict --quiet

format: $(READY) ## put the code into its format
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(READY) ## races against SciPy, scikit-learn, KDEpy, PyOD and normflows, kept in results/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-bench.lock
	$(BIN)/python benchmarks/table.py --output results/table.json
	$(BIN)/python benchmarks/glow.py --output results/glow.json
	$(BIN)/python benchmarks/vae.py --output results/vae.json

docs: $(READY) ## build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

lock: ## write the lock files anew from pyproject.toml
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet hatchling editables torch==$(TORCH) '.[dev,docs,torch]'
	build/lock/bin/pip freeze --exclude dose-ood | sed 's/+cpu//' > requirements.lock
	for extra in bench peers; do \
	  build/lock/bin/pip install --quiet ".[$$extra]" && \
	  build/lock/bin/pip freeze --exclude dose-ood | sed 's/+cpu//' > requirements-$$extra.lock; done

clean: ## remove everything that was built
	rm -rf $(VENV) site demo build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
