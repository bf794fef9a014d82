# One command per chore; `make` alone lists them. Everything runs in .venv, which the first chore makes.

PYTHON ?= python3
RUN := .venv/bin/python
ARGS ?=
# What viewer/ is built and checked with; installed when package.json is newer. No lock file: its versions are pinned there.
VIEWER_TOOLS := cd viewer && { test node_modules/.package-lock.json -nt package.json || { \
	npm install --no-audit --no-fund --no-package-lock --fetch-retries=1 --silent && touch node_modules/.package-lock.json; }; }
# Always .venv, whatever environment the shell has active.
unexport PYTHONHOME
unexport PYTHONPATH

.PHONY: help demo test test-all snapshots check corpus bench viewer docs dist clean env bench-env docs-env python

help:
	@echo 'make demo      trace a vision model and a transformer, check both, write their pages and open one'
	@echo 'make test      run the tests that a change should wait for (minutes)'
	@echo 'make test-all  run every test, the whole zoo and the browser included'
	@echo 'make snapshots rewrite tests/snapshots, for git diff to show what reports, pages and files have changed'
	@echo 'make check     lint, formatting and types, of viewer/ too where npm is there'
	@echo 'make corpus    trace and check every model the installed libraries can build'
	@echo 'make bench     print the speed and memory figures, each beside its peer'
	@echo 'make viewer    build the web page from viewer/, check it and run its unit tests (needs npm)'
	@echo 'make docs      build the documentation site, every guide of it run; a warning is an error'
	@echo 'make dist      build the wheel and the source distribution, and try both in clean environments'
	@echo 'make clean     remove .venv and everything else that was generated'
	@echo
	@echo 'Each one sets up .venv when needed. ARGS="..." is passed on: make test ARGS="-x -k layout"'

demo: env
	@$(RUN) examples/demo.py $(ARGS)

test: env
	@$(RUN) -m pytest -q -n auto --dist loadfile --no-loadscope-reorder -m 'not slow' $(ARGS)

test-all: env
	@$(RUN) -m pytest -q -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

snapshots: env
	@$(RUN) -W ignore -m tests.kit.snapshots

check: env
	@failed=0; for tool in 'ruff check .' 'ruff format --check .' 'mypy'; do \
	$(RUN) -m $$tool || failed=1; done; \
	if ! command -v npm >/dev/null; then echo 'viewer/ is not checked: npm is not installed'; \
	elif ! ($(VIEWER_TOOLS)); then echo 'viewer/ is not checked: npm could not install its tools'; \
	else for chore in format:check lint check; do (cd viewer && npm run --silent $$chore) || failed=1; done; fi; exit $$failed

corpus: env
	@$(RUN) -m tools.corpus $(ARGS)

bench: bench-env
	@$(RUN) -m bench $(ARGS)

viewer:
	@test ! -x $(RUN) || $(RUN) tools/viewer_schema.py
	@$(VIEWER_TOOLS) && for chore in build check format:check lint test; do npm run --silent $$chore || exit 1; done

docs: docs-env
	@rm -rf out/site docs/gallery_pages docs/reference
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(RUN) -m sphinx -W --keep-going -q -j 2 -d out/doctrees docs out/site $(ARGS)
	@echo 'file://$(CURDIR)/out/site/index.html'

dist: env
	@$(RUN) tools/distribution.py $(ARGS)

clean:
	@rm -rf docs/gallery_pages docs/reference
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist out
	@find . -name node_modules -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo 'clean'

env: python
	@$(PYTHON) tools/setup_env.py

bench-env: python
	@$(PYTHON) tools/setup_env.py bench

docs-env: python
	@$(PYTHON) tools/setup_env.py docs

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	{ echo "torch_vis needs Python 3.10 or newer as $(PYTHON); name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
