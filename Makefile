# The targets for people, and the rule by which `sam build` packs a function. Needs make and python3, version 3.11 or
# later, with venv and pip. Everything else is installed from the lock files, checked by hash.

PYTHON ?= python3
export SAM_CLI_TELEMETRY := 0
export PYTHONDONTWRITEBYTECODE := # Set, each process of a test run would compile all tests (3 s).

DEV   := .venv/bin/python
LOCAL := .local/aws/.stamp .local/sam/.stamp
.PHONY: help demo try up down test check lint stack test-slow test-faults mutants simulate bench docs deploy deploy-worker destroy release lock refresh-catalog clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: .venv/.stamp $(LOCAL) ## one job on this machine: a file in, every answer out (TRANSPORT=worker)
	$(DEV) -m local.demo

try: .venv/.stamp $(LOCAL) ## FILE=… MODEL=… TEMPLATE=…: one job on this machine against the real API; the token stays in memory
	$(DEV) -m local.try_api "$(FILE)" "$(MODEL)" '$(subst ','\'',$(TEMPLATE))'

up: .venv/bin/dropbatch $(LOCAL) ## start the stack on a local AWS and leave it running (.local/stack.json describes it)
	$(DEV) -m local.aws up

down: .venv/.stamp ## stop what `make up` started
	$(DEV) -m local.aws down

STYLE = .venv/bin/ruff check && .venv/bin/ruff format --check && .venv/bin/mypy
EVERYDAY := not slow and not faults and not stack and not build
check: .venv/.stamp ## the everyday checks: style, types, unit tests with fewer examples, the main job on moto
	$(STYLE)
	$(DEV) -m pytest -m "$(EVERYDAY)" --hypothesis-profile=quick simulation tests/unit tests/integration/shared tests/journeys/test_main_job.py

test: .venv/.stamp ## unit tests, and the whole path on moto and in simulated worlds
	$(DEV) -m pytest -m "$(EVERYDAY)"

stack: .venv/.stamp $(LOCAL) ## the built functions, and the deployed stack on a local AWS
	$(DEV) -m pytest -m "(stack or build) and not slow and not faults"

WORKER := worker/node_modules/.package-lock.json
test-slow: .venv/.stamp $(LOCAL) $(WORKER) .local/vendors/.stamp ## the tests that take minutes: deaths at every boundary, functions killed at random
	$(DEV) -m pytest -m slow

test-faults: .venv/.stamp $(LOCAL) ## inject faults for some minutes: .local/faults.md has a row for each, docs/reliability.md the totals
	rm -rf .local/faults
	$(DEV) -m pytest -m faults
	$(DEV) -m tests.support.fault_table

mutants: .venv/.stamp ## change each condition in turn (an hour): a test must fail
	@mkdir -p .local/coverage
	$(DEV) -m pytest -p tests.mutants.reach -m "$(EVERYDAY)" --cov --cov-context=test --cov-report=term tests/unit tests/integration tests/journeys
	$(DEV) -m tests.mutants

simulate: .venv/.stamp ## worlds on simulated AWS, each decided by a seed: MINUTES (1), SEEDS, FIRST; SEED=17 with its trace
	$(DEV) -m tests.simulation

lint: .venv/.stamp $(LOCAL) ## style, types, the template and its policies
	$(STYLE)
	@mkdir -p .local/lint
	PYTHONUTF8=1 $(DEV) -c 'from tools.release import TEMPLATE, release_template as of; print(of(TEMPLATE.read_text(), "code.zip", "arm64"))' \
	  > .local/lint/release.yaml
	.venv/bin/cfn-lint template.yaml .local/lint/release.yaml
	.local/sam/bin/sam validate --lint
	$(DEV) -m tests.policies.render | $(DEV) -W ignore tests/policies/judge.py

bench: .venv/.stamp $(LOCAL) ## measurements, each beside a baseline in the same run
	$(DEV) -m bench

docs: .venv/.stamp ## write the tables of the documents that are made from the code
	$(DEV) -m tools.docs

deploy: .local/sam/.stamp ## build, deploy to your AWS account, check the Cloudflare token
	.local/sam/bin/python -m tools.deploy

deploy-worker: .local/sam/.stamp ## deploy the Worker of Transport=worker to your Cloudflare account (needs Node.js)
	.local/sam/bin/python -m tools.deploy_worker

destroy: .local/sam/.stamp ## delete the stack from your AWS account; lists what stays, and asks first
	.local/sam/bin/python -m tools.destroy

release: .venv/.stamp ## write dist/: for each processor, a folder to deploy without building
	$(DEV) -m tools.release

refresh-catalog: .venv/.stamp ## bring the list of models up to date: FROM=FILE, what the API answers to ai/models/search
	$(DEV) -m tools.refresh_catalog $(FROM)

clean: ## remove what the other targets made, including the environments
	@if [ -x $(DEV) ]; then $(DEV) -m local.aws down; fi
	rm -rf .aws-sam dist .local .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Environments: one for the project, and one each for the local AWS and the SAM CLI, whose pinned versions conflict.
# uv makes this fast; where it is missing or cannot reach the index, pip does the same.
install = { [ -x .venv/bin/uv ] && .venv/bin/uv pip sync --quiet --no-config --python $(1)/bin/python --require-hashes $(2); } || \
	{ pip=.venv; [ -x .venv/bin/pip ] || pip=$(1); $$pip/bin/python -m pip --python $(1)/bin/python install -qq \
	--disable-pip-version-check --no-deps --require-hashes -r $(2); }
environment = $(PYTHON) -m venv $$([ ! -x .venv/bin/pip ] || echo --without-pip) $(1) && $(call install,$(1),$(2))

new_enough = $(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Dropbatch needs Python 3.11 or later; this is " + sys.version)'

.venv/.stamp: requirements/dev.txt
	@$(new_enough)
	@echo "Installing the project's environment (.venv) ..."
	@$(PYTHON) -m venv .venv
	@sed -n '/^uv==/,/[^\\]$$/p' requirements/dev.txt > .venv/uv.txt
	@.venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r .venv/uv.txt || true
	@$(call install,.venv,$<)
	@touch $@

.venv/bin/dropbatch: .venv/.stamp
	@printf '#!/bin/sh\nhere="%s"\nexport PYTHONPATH="$$here" DROPBATCH_LOCAL="$${DROPBATCH_LOCAL:-$$here}"\n' "$(CURDIR)" > $@
	@printf 'exec "$$here/.venv/bin/python" -m dropbatch "$$@"\n' >> $@ && chmod +x $@

.local/aws/.stamp: requirements/local.txt .venv/.stamp
	@echo "Installing the local AWS and the AWS CLI (.local/aws) ..."
	@$(call environment,.local/aws,$<)
	@touch $@

.local/sam/.stamp: requirements/sam.txt
	@$(new_enough)
	@echo "Installing the SAM CLI (.local/sam) ..."
	@$(call environment,.local/sam,$<)
	@touch $@

.local/vendors/.stamp: requirements/vendors.txt .venv/.stamp
	@echo "Installing the vendors' own packages (.local/vendors) ..."
	@$(call environment,.local/vendors,$<)
	@touch $@

$(WORKER): worker/package-lock.json .venv/.stamp
	@$(DEV) -m local.worker || echo "The tests of the Worker in workerd are skipped."

# The lock files have names, versions and hashes for every platform, and no URL. The Lambda runtime has boto3's packages.
COMPILE = .venv/bin/uv pip compile --quiet --python-version 3.11 --universal --generate-hashes --no-config \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links $(UPGRADE)
lock: .venv/.stamp ## compile the requirements files from pyproject.toml; UPGRADE=--upgrade takes newer versions
	$(COMPILE) --group functions $(addprefix --no-emit-package ,boto3 botocore s3transfer urllib3 python-dateutil six) -o requirements/functions.txt
	$(COMPILE) pyproject.toml --group dev -c requirements/functions.txt -o requirements/dev.txt
	$(foreach one,local sam vendors,$(COMPILE) --group $(one) -o requirements/$(one).txt &&) true

build-%Function: # for `sam build`
	@$(PYTHON) tools/pack.py
