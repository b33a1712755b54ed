# The ways in. Each target prepares what it needs and does nothing twice; scripts/bootstrap says how.
#   make up ARGS="--gpus 64 --port 9490"      make test ARGS="tests/kit -k durations"

ARGS ?=
REQUIRE_SERVERS ?=
BIN := .venv/bin
CONSOLE := PATH="$(CURDIR)/.venv/bin:$$PATH" npm --prefix console run --silent
# Some images set it, and then each of a thousand processes that tests start compiles the whole product first.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up install test test-fast explore servers check format bench golden docs audit lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

up: install ## everything on this machine, with a simulated fleet; prints the address
	@exec $(BIN)/watchkeeper up $(ARGS)

install: ## .venv with .venv/bin/watchkeeper and the built console
	@scripts/bootstrap hub console

test: ## all tests, two at a time; as root also gets the real servers that are packaged
	@scripts/bootstrap dev node console docs servers
	@$(CONSOLE) test
	@REQUIRE_SERVERS=$(REQUIRE_SERVERS) scripts/test $(ARGS)

test-fast: ## the tests that need no server and take no time
	@scripts/bootstrap dev node
	@$(CONSOLE) test
	@$(BIN)/python -m pytest -rs -n 2 -m "not slow and not servers and not alone" $(ARGS)

explore: ## properties with new examples, ten times as many, and broken input; a find becomes a fixed test
	@scripts/bootstrap dev
	@EXPLORE=1 $(BIN)/python -m pytest -n 2 -m hypothesis --timeout 3000 $(ARGS)
	@$(BIN)/python -m tests.fuzz

servers: ## what takes minutes and some tests talk to: Kubernetes, built from source as root, and PyTorch
	@scripts/bootstrap dev servers torch kubernetes

check: ## format, lint, types, layers; changes nothing
	@scripts/bootstrap dev node
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(CONSOLE) check

format: ## put the code in house form
	@scripts/bootstrap dev node
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(CONSOLE) format

bench: ## measurements as JSON: make bench ARGS="sim --gpus 10000"
	@scripts/bootstrap dev
	@$(BIN)/python -m bench $(ARGS)

golden: ## rewrite the pages that are made from the code; review the diff
	@scripts/bootstrap dev
	@$(BIN)/python -m tests.house.generate

docs: ## the documentation as a site, in site/
	@scripts/bootstrap hub docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

audit: ## what is depended on, with licences, and its known vulnerabilities; asks the Internet
	@scripts/bootstrap dev
	@$(BIN)/python -m tests.house.dependencies
	@test -x .venv/audit/bin/pip-audit || { $(BIN)/python -m venv .venv/audit && .venv/audit/bin/pip install -q pip-audit; }
	@.venv/audit/bin/pip-audit --strict --require-hashes --disable-pip -r requirements.lock
	@cd console && npm audit --omit=dev

lock: ## resolve requirements.lock anew from pyproject.toml
	@scripts/bootstrap dev lock

clean: ## remove what the targets above made
	@rm -rf .venv site watchkeeper/web/static console/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
