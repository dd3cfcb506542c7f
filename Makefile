# Two commands matter: `make train` and `make test`. Each sets up what it needs, once, in .venv.

ARGS =
WORKERS = 2

# One thread per worker: two torch processes with all threads each would fight over the cores. A worker that is done
# takes over tests of the other.
# Many tests start a process of their own, so compiled files are kept even where the environment says otherwise.
RUN_TESTS = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 .venv/bin/pytest -q
PYTEST = $(RUN_TESTS) -n $(WORKERS) --dist worksteal

# Shapes and types of every call, checked in the modules that compute; it takes half of a test's time. At the doors
# (batch, composition, padded, …) our own sentences must come first.
EMPTY =
COMPUTE = advantage agreement baseline cell correction diagnostics discount group histogram kl layout metric_kind \
	metrics mismatch normalize observed off_policy_loss parallel policy_loss prefix proximal reduce reward second_moment several_rewards stages state \
	steering teacher token_baseline trust_region turns value_loss vote voters weighting
SHAPES = --jaxtyping-packages=$(subst $(EMPTY) ,,$(foreach name,$(COMPUTE),trimtab.signal.$(name),))beartype.beartype

# What `make test` runs by itself, and what needs a command of its own and is only read here.
APART = golden train/test_ranks.py cluster environments integrations vllm

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

train: ## run the main job; ARGS="--seed 1" passes options on
	@sh scripts/setup.sh train
	@.venv/bin/trimtab train examples/async_int4.toml --twin $(ARGS)

test: ## run the tests, all but the slow ones
	@sh scripts/setup.sh dev
	@status=0; \
	$(PYTEST) $(addprefix --ignore tests/,$(APART)) $(ARGS) || status=1; \
	$(RUN_TESTS) tests/train/test_ranks.py || status=1; \
	said=$$(mktemp); $(RUN_TESTS) $(SHAPES) tests/golden > $$said 2>&1 & shapes=$$!; \
	TRIMTAB_PATH=reference $(RUN_TESTS) tests/golden tests/signal/test_pipeline.py || status=1; \
	wait $$shapes || status=1; cat $$said; rm $$said; \
	exit $$status

test-all: ## run every test, with every extra; more than an hour
	@sh scripts/setup.sh dev all oracle
	@status=0; \
	$(PYTEST) $(SHAPES) -m "" $(ARGS) || status=1; \
	TRIMTAB_PATH=reference $(PYTEST) -m "" tests/golden tests/signal || status=1; \
	TRIMTAB_TEST_AS_DEVICE=1 $(PYTEST) -m "" tests/golden tests/signal || status=1; \
	exit $$status

vllm-env: ## build .vllm-env with vLLM for the CPU; about 4 minutes and 3.5 GB; VLLM_ENV=... is another folder
	@sh scripts/vllm_env.sh

test-vllm: ## test against real vLLM servers on the CPU; about 15 minutes
	@sh scripts/setup.sh dev cluster
	@sh scripts/vllm_env.sh
	@$(RUN_TESTS) -m vllm tests/vllm tests/cluster/test_own_server.py $(ARGS)

test-environments: ## test with real verifiers and OpenEnv environments; about 4 minutes, and 6 to install them
	@VENV=.verifiers-env sh scripts/setup.sh dev verifiers
	@VENV=.openenv-env sh scripts/setup.sh dev openenv
	@status=0; \
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 .verifiers-env/bin/pytest -q -m environments tests/environments/test_verifiers.py $(ARGS) || status=1; \
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 .openenv-env/bin/pytest -q -m environments tests/environments/test_openenv.py $(ARGS) || status=1; \
	exit $$status

test-integrations: ## test inside the released TRL, with planted faults and two ranks; about 4 minutes, and 3 to install it
	@VENV=.trl-env sh scripts/setup.sh dev trl
	@PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .trl-env/bin/pytest -q -m integrations tests/integrations $(ARGS)

test-cluster: ## test on real Ray clusters of this machine, with faults; about 17 minutes
	@sh scripts/setup.sh dev cluster
	@$(RUN_TESTS) -m cluster tests/cluster $(ARGS)

right: ## check right functions and their wrong twins; about two hours on two cores; ARGS="--sample 90" for some
	@sh scripts/setup.sh dev
	@OMP_NUM_THREADS=1 .venv/bin/python -m tests.right $(ARGS)

lint: ## check format, style, types and the direction of imports
	@sh scripts/setup.sh dev
	@status=0; \
	.venv/bin/ruff format --check --quiet . || { echo "lint: run 'make format'"; status=1; }; \
	.venv/bin/ruff check --quiet . || status=1; \
	.venv/bin/basedpyright || status=1; \
	.venv/bin/lint-imports || status=1; \
	exit $$status

package: ## build wheel and sdist into dist/, and try them in an empty environment
	@sh scripts/setup.sh dev
	@.venv/bin/python scripts/package.py

matrix: ## run `make train` and `make test` on every Python we name; about 10 minutes each; ARGS="--only 3.12"
	@python3 scripts/matrix.py $(ARGS)

format: ## format the code and repair what ruff can
	@sh scripts/setup.sh dev
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

.PHONY: help train test test-all vllm-env test-vllm test-environments test-integrations test-cluster right lint package matrix format
