# The targets for people, and the rule with which `sam build` builds a function. Needs make and python3, version 3.11 or
# later, with venv and pip. Everything else is installed from the lock files, checked by hash.

PYTHON ?= python3
export SAM_CLI_TELEMETRY := 0
# Some machines set this so that Python writes no byte code: each process of a test run would compile all tests (3 s).
export PYTHONDONTWRITEBYTECODE :=

DEV   := .venv/bin/python
LOCAL := .local/aws/.stamp .local/sam/.stamp

.PHONY: deploy-worker release help demo try check test test-second test-slow test-faults coverage mutants simulate operate soak lint bench up down build sbom refresh-catalog deploy destroy lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: .venv/.stamp $(LOCAL) ## one job on this machine: a file in, every answer out (TRANSPORT=worker)
	$(DEV) -m local.demo

try: .venv/.stamp $(LOCAL) ## FILE=… MODEL=…: one job on this machine against the real API; the token stays in memory
	$(DEV) -m local.try_api "$(FILE)" "$(MODEL)"

EVERYDAY := not slow and not faults and not stack and not build
check: .venv/.stamp ## the everyday checks: style, types, unit tests with fewer examples, the main job on moto
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	$(DEV) -m pytest -m "$(EVERYDAY)" --hypothesis-profile=quick simulation tests/unit tests/journeys/test_main_job.py

test: .venv/.stamp $(LOCAL) ## unit tests, the whole path on moto, and the stack on a local AWS
	$(DEV) -m pytest

WORKER := worker/node_modules/.package-lock.json
test-slow: .venv/.stamp $(LOCAL) $(WORKER) .local/vendors/.stamp .local/readers/.stamp .local/awscli/.stamp ## the tests that take minutes: deaths at every boundary, functions killed at random
	$(DEV) -m pytest -m slow

LEDGER := tests/integration/shared/ledger tests/integration/shared/pacing tests/journeys/test_main_job.py
test-second: .venv/.stamp .local/localstack/.stamp ## tests on DynamoDB Local and LocalStack (needs Java 17, npm and python3.13)
	$(DEV) -m pytest -n 0 -m second tests/other_aws
	$(DEV) -m pytest -n 0 -p tests.other_aws.dynamodb_local $(LEDGER)

test-faults: .venv/.stamp $(LOCAL) ## inject faults for some minutes and write the tables in docs/faults.md
	rm -rf .local/faults
	$(DEV) -m pytest -m faults
	$(DEV) -m tests.support.fault_table

coverage: .venv/.stamp ## line and branch coverage of what the functions run by the everyday tests, with a floor
	@mkdir -p .local/coverage
	$(DEV) -m pytest -p tests.support.everyday_runs -m "$(EVERYDAY)" --cov --cov-context=test --cov-report=term tests/unit tests/integration tests/journeys

mutants: coverage ## change each condition in turn (an hour): a test must fail
	$(DEV) -m tests.mutants

simulate: .venv/.stamp ## worlds on simulated AWS, each decided by a seed: MINUTES (1), SEEDS, FIRST; SEED=17 with its trace
	$(DEV) -m tests.simulation

operate: .venv/.stamp ## a large world and a year on simulated AWS; writes bench/simulation.md: JOBS (1000), BATCHES (20), HOURS (8)
	OPERATE=backlog $(DEV) -m tests.simulation
	OPERATE=year $(DEV) -m tests.simulation

soak: .venv/.stamp $(LOCAL) ## SOAK_MINUTES (30) of uploads, faults and killed functions on a stack; checks every line
	$(DEV) -m tests.soak

lint: .venv/.stamp $(LOCAL) .local/parliament/.stamp ## style, types, the template and its policies
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	@mkdir -p .local/lint
	PYTHONUTF8=1 $(DEV) -c 'from tools.release import TEMPLATE, release_template as of; print(of(TEMPLATE.read_text(), "code.zip", "arm64"))' \
	  > .local/lint/release.yaml
	.venv/bin/cfn-lint template.yaml .local/lint/release.yaml
	.local/sam/bin/sam validate --lint
	$(DEV) -m tests.policies.render | .local/parliament/bin/python -W ignore tests/policies/judge.py

bench: .venv/.stamp $(LOCAL) ## measurements, each beside a baseline in the same run
	$(DEV) -m bench

up: .venv/.stamp $(LOCAL) ## start the stack on a local AWS and leave it running (.local/stack.json describes it)
	$(DEV) -m local.aws up

down: .venv/.stamp ## stop what `make up` started
	$(DEV) -m local.aws down

build: .local/sam/.stamp ## build both functions for AWS into .aws-sam
	.local/sam/bin/sam build
	@$(MAKE) --no-print-directory sbom

release: .venv/.stamp ## write dist/: for each processor, a folder to deploy without building
	$(DEV) -m tools.release

SBOM := .aws-sam/sbom.json
sbom: ## write the functions' bill of materials (CycloneDX) to .aws-sam/sbom.json
	@mkdir -p $(dir $(SBOM))
	@$(or $(wildcard $(DEV)),.local/sam/bin/python) -W ignore -m cyclonedx_py requirements --pyproject pyproject.toml --output-reproducible \
	  --output-file $(SBOM) requirements/functions.txt

deploy: .local/sam/.stamp ## build, deploy to your AWS account, check the Cloudflare token
	.local/sam/bin/python -m tools.deploy

deploy-worker: .local/sam/.stamp ## deploy the Worker of Transport=worker to your Cloudflare account (needs Node.js)
	.local/sam/bin/python -m tools.deploy_worker

destroy: .local/sam/.stamp ## delete the stack from your AWS account; lists what stays, and asks first
	.local/sam/bin/python -m tools.destroy

refresh-catalog: .venv/.stamp ## bring the list of models up to date: FROM=FILE, what the API answers to ai/models/search
	$(DEV) -m tools.refresh_catalog $(FROM)

clean: ## remove what the other targets made, including the environments
	@if [ -x $(DEV) ]; then $(DEV) -m local.aws down; fi
	rm -rf .aws-sam dist .local .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

# ---------------------------------------------------------------------------------------------------------------------
# Environments: one for the project, and one each for the local AWS and the SAM CLI, whose pinned versions conflict.
# uv makes this fast; where it is not available or cannot reach the index, pip does the same. Python compiles what it
# imports: to compile all of it took 26 s of a processor, and the tests import a fifth. Beside .venv, whose pip installs
# into any environment, those of the tests need none of their own (2 s each).
# ---------------------------------------------------------------------------------------------------------------------

environment = if [ -x .venv/bin/pip ]; then $(PYTHON) -m venv --without-pip $(1); else $(PYTHON) -m venv $(1); fi

install = { [ -x .venv/bin/uv ] && \
	.venv/bin/uv pip sync --quiet --no-config --python $(1)/bin/python --require-hashes $(2); } || \
	{ pip=.venv; [ -x .venv/bin/pip ] || pip=$(1); $$pip/bin/python -m pip --python $(1)/bin/python install -qq \
	--disable-pip-version-check --no-deps --require-hashes -r $(2); }

new_enough = $(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Dropbatch needs Python 3.11 or later; this is " + sys.version)'

.venv/.stamp: requirements/dev.txt
	@$(new_enough)
	@echo "Installing the project's environment (.venv) ..."
	@$(PYTHON) -m venv .venv
	@sed -n '/^uv==/,/[^\\]$$/p' requirements/dev.txt > .venv/uv.txt
	@.venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r .venv/uv.txt || true
	@$(call install,.venv,requirements/dev.txt)
	@touch $@

.local/aws/.stamp: requirements/local.txt .venv/.stamp
	@echo "Installing the local AWS (.local/aws) ..."
	@$(call environment,.local/aws)
	@$(call install,.local/aws,requirements/local.txt)
	@touch $@

# Needs no other environment, for those who only build and deploy.
.local/sam/.stamp: requirements/sam.txt
	@$(new_enough)
	@echo "Installing the SAM CLI (.local/sam) ..."
	@$(call environment,.local/sam)
	@$(call install,.local/sam,requirements/sam.txt)
	@touch $@

# LocalStack's core starts with one version of Python.
.local/localstack/.stamp: requirements/localstack.txt .venv/.stamp
	@echo "Installing LocalStack (.local/localstack) ..."
	@python$(LAMBDA_PYTHON) -m venv .local/localstack
	@$(call install,.local/localstack,requirements/localstack.txt)
	@touch $@

# Nothing else needs Node.js, so its absence only leaves out the tests of the Worker.
$(WORKER): worker/package-lock.json .venv/.stamp
	@$(DEV) -m local.worker || echo "The tests of the Worker in workerd are skipped."

.local/%/.stamp: requirements/%.txt .venv/.stamp
	@echo "Installing $(INSTALLS_$*) (.local/$*) ..."
	@$(PYTHON) -m venv .local/$*
	@$(call install,.local/$*,$<)
	@touch $@

INSTALLS_awscli := the AWS CLI
INSTALLS_parliament := the judge of policies
INSTALLS_readers := readers of result files
INSTALLS_vendors := the vendors' own packages

# The lock files have names, versions and hashes for every platform, and no URL. Only `make lock UPGRADE=--upgrade`
# takes newer versions. boto3's packages are not in functions.txt: the Lambda runtime has them.
COMPILE = .venv/bin/uv pip compile --quiet --python-version 3.11 --universal --generate-hashes --no-config \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links $(UPGRADE)
RUNTIME_BRINGS := boto3 botocore s3transfer urllib3 python-dateutil six

lock: .venv/.stamp ## compile the requirements files from pyproject.toml
	$(COMPILE) --group functions $(RUNTIME_BRINGS:%=--no-emit-package %) -o requirements/functions.txt
	$(COMPILE) pyproject.toml --group dev -c requirements/functions.txt -o requirements/dev.txt
	$(COMPILE) --group aws -o requirements/local.txt
	$(COMPILE) --group sam -o requirements/sam.txt
	$(COMPILE) --group vendors -o requirements/vendors.txt
	$(COMPILE) requirements/readers.in -o requirements/readers.txt
	$(COMPILE) requirements/awscli.in -o requirements/awscli.txt
	$(COMPILE) requirements/parliament.in -o requirements/parliament.txt
	$(filter-out --universal,$(COMPILE:3.11=3.13)) --python-platform linux requirements/localstack.in -o requirements/localstack.txt

# ---------------------------------------------------------------------------------------------------------------------
# `sam build` calls build-SubmitFunction and build-PollFunction: functions/, shared/, dropbatch/core and the locked
# packages.
# DROPBATCH_BUILD chooses the target: arm64 (the default) or x86_64 in Lambda, or local: this Python, this processor.
# ---------------------------------------------------------------------------------------------------------------------

DROPBATCH_BUILD ?= arm64
LAMBDA_PYTHON := 3.13
# These runtimes are Amazon Linux 2023 (glibc 2.34); pip accepts only the tags listed here.
TAGS_arm64  := manylinux_2_28_aarch64 manylinux2014_aarch64 manylinux_2_17_aarch64
TAGS_x86_64 := manylinux_2_28_x86_64 manylinux2014_x86_64 manylinux_2_17_x86_64
TARGET_arm64  = --implementation cp --python-version $(LAMBDA_PYTHON) $(TAGS_arm64:%=--platform %)
TARGET_x86_64 = --implementation cp --python-version $(LAMBDA_PYTHON) $(TAGS_x86_64:%=--platform %)
TARGET_local  =
LINES_arm64   := 's/ ; .* \\$$/ \\/'
LINES_x86_64  := $(LINES_arm64)
LINES_local   := ''
ifeq ($(filter $(DROPBATCH_BUILD),arm64 x86_64 local),)
$(error DROPBATCH_BUILD is "$(DROPBATCH_BUILD)"; it must be arm64, x86_64 or local)
endif
PACKER = $(or $(patsubst %/pip,%/python,$(firstword $(wildcard .venv/bin/pip .local/sam/bin/pip))),$(PYTHON))
VERSION_OF = -c 'import sys; print("%d.%d" % sys.version_info[:2])'

build-%Function:
	@mkdir -p "$(ARTIFACTS_DIR)"
	@# pip evaluates markers for this machine's Python; for Lambda all lines apply (a test checks that).
	@sed $(LINES_$(DROPBATCH_BUILD)) requirements/functions.txt > "$(ARTIFACTS_DIR)/locked.txt"
	$(PACKER) -m pip install -qq --disable-pip-version-check --no-compile --no-deps --require-hashes \
	  --only-binary=:all: $(TARGET_$(DROPBATCH_BUILD)) --target "$(ARTIFACTS_DIR)" -r "$(ARTIFACTS_DIR)/locked.txt"
	cp -R functions shared "$(ARTIFACTS_DIR)"
	mkdir "$(ARTIFACTS_DIR)/dropbatch"
	cp -R dropbatch/__init__.py dropbatch/core "$(ARTIFACTS_DIR)/dropbatch"
	@# Scripts name this machine's Python, RECORD lists them, and byte code may be for another version.
	rm -rf "$(ARTIFACTS_DIR)/bin" "$(ARTIFACTS_DIR)/locked.txt"
	find "$(ARTIFACTS_DIR)" \( -name __pycache__ -o -path '*.dist-info/RECORD' -o -path '*.dist-info/INSTALLER' \
	  -o -path '*.dist-info/REQUESTED' \) -prune -exec rm -rf {} +
	@# /var/task is read-only: without byte code each cold start compiles everything (about 0.2 s).
	@if [ "$(DROPBATCH_BUILD)" = local ]; then want=$$($(PACKER) $(VERSION_OF)); else want=$(LAMBDA_PYTHON); fi; \
	for python in $(PACKER) $(PYTHON) python$$want; do \
	  if [ "$$($$python $(VERSION_OF) 2>/dev/null)" = "$$want" ]; then \
	    exec $$python -m compileall -q --invalidation-mode unchecked-hash -s "$(ARTIFACTS_DIR)" -p /var/task "$(ARTIFACTS_DIR)"; \
	  fi; \
	done; \
	echo "Python $$want was not found: $* is built without byte code, so its cold starts are slower."
