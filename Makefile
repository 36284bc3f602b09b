# make demo   train FedAvg and GC-Fed on the embedded data and compare them
# make test   run the tests            make slow    run those that take long
# make check  lint, types, import contract
# make docs   build the documentation  make clean   forget the virtual environments
# make flower run the tests of deployments, in a virtual environment of their own
# make vision run the tests that need torchvision and timm, which are put into a folder of their own

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FLOWER := .venv-flower
FLOWER_READY := $(FLOWER)/.ready
VISION := .vision
VISION_READY := $(VISION)/.ready

.PHONY: demo test slow flower vision check docs clean install

demo: $(READY)
	$(BIN)/gcfed demo

test: $(READY)
	$(BIN)/python -m pytest -q -n auto --dist loadfile -m 'not slow and not flower and not vision' --cov --cov-report=term:skip-covered $(TESTS)

slow: $(READY)
	$(BIN)/python -m pytest -q -n auto --dist load -m 'slow and not flower and not vision' $(TESTS)

flower: $(FLOWER_READY)
	$(FLOWER)/bin/python -m pytest -q -m flower $(or $(TESTS),tests/flower)

vision: $(VISION_READY)
	PYTHONPATH=$(VISION) $(BIN)/python -m pytest -q -m vision $(or $(TESTS),tests/test_lazy.py tests/test_networks_that_draw.py)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

install: $(READY)

# torch first and pinned: a plain requirement may bring several GB of CUDA packages along
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

# Flower wants older versions of what the command line is made of than others do
$(FLOWER_READY): pyproject.toml constraints-flower.txt
	test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install -q --disable-pip-version-check -c constraints-flower.txt torch
	$(FLOWER)/bin/python -m pip install -q --disable-pip-version-check -c constraints-flower.txt -e '.[flower]' pytest
	touch $(FLOWER_READY)

# transformers fails where torchvision is installed that was not built for this torch
$(VISION_READY): $(READY)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --upgrade --target $(VISION) -c constraints.txt timm torchvision
	touch $(VISION_READY)

clean:
	rm -rf $(VENV) $(FLOWER) $(VISION) site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
