# make help says what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
cache := $(or $(NETCLAIM_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/netclaim)
deny_version := 0.20.2
mdbook_version := 0.5.4
mdbook := $(cache)/mdbook-$(mdbook_version)/bin/mdbook
deny := $(cache)/cargo-deny-$(deny_version)/bin/cargo-deny
# They run for seconds: it would take longer to optimize them.
install := CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug

.PHONY: help
help: ## This list
	@echo 'netclaim: CNI networks as Kubernetes devices'
	@awk -F': .*## ' '/^[a-z0-9-]+: .*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: ## A cluster, netclaim and two pods on a claimed network (root; the first time 12 to 30 minutes on two cores)
	@tests/demo/demo.sh

.PHONY: demo-down
demo-down: ## Ends the demo and leaves nothing of it
	@tests/demo/down.sh

.PHONY: check
check: lint ## Format, lints, dependencies, unit and doc tests; needs no root
	cargo test --workspace --exclude netclaim-tests --locked --no-fail-fast

.PHONY: test
test: lint ## Everything that checks netclaim, tests on a real cluster included (root)
	@[[ $$EUID == 0 ]] || { echo 'make test needs root: it starts Kubernetes nodes' >&2; exit 1; }
	tests/packages.sh test
	tests/node/build.sh
	tests/programs/build.sh helm >/dev/null
	@# What the Go proxy does not have is skipped by the scenarios that need it.
	for program in kubeconform etcdutl crictl; do tests/programs/build.sh $$program >/dev/null || [[ $$? == 3 ]]; done
	NETCLAIM_CNI_BIN=$$(. tests/node/lib.sh && echo "$$plugins_bin") tests/lanes.sh

.PHONY: test-fresh
test-fresh: ## make demo and make test in a new, minimal Debian, or Ubuntu (NETCLAIM_FRESH_SUITE=noble), that has only Rust and Go (root; an hour and a half)
	@tests/fresh.sh

.PHONY: shell
shell: ## A shell in a new, minimal Debian in which this work tree builds and its tests run (root; 2 minutes to start)
	@tests/fresh.sh --here

.PHONY: test-qemu
test-qemu: tools ## The tests of ipvlan, VLANs, VRFs, bonds and dummies, of VLANs that nodes make, and of a power loss, on Debian's kernel in QEMU (root)
	tests/node/build.sh
	tests/qemu/lane.sh

.PHONY: test-model
test-model: tools ## Every state of the model's small worlds, and 10,000 big ones (10 minutes; NETCLAIM_SEED repeats a big one)
	NETCLAIM_STATES=100000 NETCLAIM_CASES=10000 cargo test --profile quick --package netclaim-model --locked -- --nocapture --test-threads=2

.PHONY: test-churn
test-churn: tools ## 200 pods come and go while agent, runtime and kubelet are killed (root; NETCLAIM_SEED repeats a run)
	tests/node/build.sh
	NETCLAIM_CHURN=200 cargo test --workspace --test cluster --locked -- pods_come_and_go

.PHONY: test-faults
test-faults: tools ## Everything that goes wrong on a real node, and the waits of minutes (root; an hour)
	tests/node/build.sh
	NETCLAIM_LONG=1 cargo test --workspace --test cluster --locked -- faults::
	NETCLAIM_LONG=1 cargo test --workspace --test cluster --locked -- nothing_changes
	NETCLAIM_LONG=1 cargo test --workspace --test cluster --locked -- repair::
	NETCLAIM_LONG=1 cargo test --workspace --test nodes --locked -- controller::
	NETCLAIM_LONG=1 cargo test --workspace --test nodes --locked -- a_range_is_used_up
	NETCLAIM_LONG=1 cargo test --workspace --test nodes --locked -- pods_that_start_at_once
	NETCLAIM_LONG=1 cargo test --workspace --test nodes --locked -- a_controller_that_dies
	NETCLAIM_LONG=1 cargo test --workspace --test nodes --locked -- disasters::
	NETCLAIM_LONG=1 cargo test --workspace --test install --locked -- claims_can_be_written

.PHONY: test-release
test-release: tools ## The files of a release are installed, used, upgraded to and uninstalled: those in FILES, or new ones of this tree (root; an hour)
	tests/release.sh $(FILES)

.PHONY: test-runtimes
test-runtimes: tools ## The cluster tests of `make test` on containerd 2.2 and 2.4, and on CRI-O (root)
	@failed=; for runtime in containerd-2.2 containerd-2.4 crio; do \
	  echo "==> the cluster tests on $$runtime"; \
	  NETCLAIM_RUNTIME=$$runtime cargo test --workspace --test cluster --locked || failed+=" $$runtime"; \
	done; [[ -z $$failed ]] || { echo "failed on:$$failed" >&2; exit 1; }

.PHONY: test-arm64
test-arm64: tools ## The images are built for arm64, and each of their programs starts, by QEMU's user mode (root; half an hour the first time)
	@tests/arm64.sh

.PHONY: test-density
test-density: tools ## 100 pods with two networks at once, and 2,000 rounds: latency, memory, requests (root; 15 minutes)
	tests/node/build.sh
	cargo test --workspace --test density --locked

.PHONY: test-versions
test-versions: tools ## Publishing, scheduling and networks without asking on each supported version of Kubernetes, and an upgrade (root; two builds the first time)
	@# The newest is what 1.36 is upgraded to.
	tests/node/build.sh
	@failed=; for version in 1.36 newest; do \
	  echo "==> Kubernetes $$version"; \
	  NETCLAIM_KUBERNETES=$$version tests/node/build.sh && \
	    NETCLAIM_KUBERNETES=$$version cargo test --workspace --test versions --locked || failed+=" $$version"; \
	done; [[ -z $$failed ]] || { echo "failed on:$$failed" >&2; exit 1; }
	tests/programs/build.sh helm >/dev/null
	@# What a version does by itself: claims that a policy adds, a pod that is never bound, sandboxes of a RuntimeClass.
	@failed=; for scenarios in classes:: defaults:: hot_attach primary::; do \
	  NETCLAIM_KUBERNETES=1.36 cargo test --workspace --test cluster --locked -- $$scenarios || failed+=" $$scenarios"; \
	done; [[ -z $$failed ]] || { echo "failed on 1.36:$$failed" >&2; exit 1; }

.PHONY: test-kubeadm
test-kubeadm: tools ## netclaim on clusters of three nodes that kubeadm makes, of each supported version, and when they lose power (root; 15 minutes)
	tests/programs/build.sh helm >/dev/null
	@failed=; for version in 1.36 newest; do \
	  echo "==> kubeadm of Kubernetes $$version"; \
	  NETCLAIM_BOOTSTRAP=kubeadm NETCLAIM_KUBERNETES=$$version cargo test --workspace --test kubeadm --locked || failed+=" $$version"; \
	done; [[ -z $$failed ]] || { echo "failed on:$$failed" >&2; exit 1; }

.PHONY: test-stacks
test-stacks: tools ## netclaim on a cluster with IPv4 and IPv6, and on one with IPv6 alone (root; 10 minutes)
	tests/node/build.sh
	tests/programs/build.sh helm >/dev/null
	@failed=; for stack in dual ipv6; do \
	  echo "==> a cluster with the addresses $$stack"; \
	  NETCLAIM_LONG=1 NETCLAIM_STACK=$$stack cargo test --workspace --test stacks --locked || failed+=" $$stack"; \
	done; [[ -z $$failed ]] || { echo "failed on:$$failed" >&2; exit 1; }

.PHONY: test-integrations
test-integrations: tools $(mdbook) ## netclaim beside Karpenter, cert-manager and an OpenTelemetry Collector; the site (root; half an hour the first time)
	NETCLAIM_MDBOOK=$(mdbook) cargo test --workspace --test docs --locked -- --include-ignored site
	tests/node/build.sh
	tests/programs/build.sh helm >/dev/null
	NETCLAIM_LONG=1 cargo test --workspace --test cluster --locked -- karpenter::
	NETCLAIM_LONG=1 cargo test --workspace --test cluster --locked -- traces::
	NETCLAIM_LONG=1 cargo test --workspace --test install --locked -- a_certificate_of_cert_manager

.PHONY: test-scale
test-scale: tools ## 1,000 simulated nodes, or NETCLAIM_SCALE_NODES: publishing, status, scheduler, addresses (root; two and a half hours)
	tests/node/build.sh
	cargo build --release --package netclaim-controller --locked
	@# Each simulated node has a connection of its own.
	ulimit -n "$$(ulimit -Hn)"; cargo test --release --package netclaim-tests --test scale --locked -- simulated
	ulimit -n "$$(ulimit -Hn)"; cargo test --release --package netclaim-tests --test scale --locked -- addresses

# These measure: what they measure is what is released.
test-density test-scale bench bench-starts bench-node bench-ab bench-addresses bench-peers: export NETCLAIM_PROFILE := release
# Without fail points, and with users' times.
bench-starts bench-node bench-ab bench-addresses bench-peers: export NETCLAIM_AS_RELEASED := 1

.PHONY: test-all
test-all: test test-faults test-model test-qemu test-churn test-release test-arm64 test-density test-scale test-runtimes test-versions test-kubeadm test-stacks test-integrations test-multus test-crates ## make test, and then what takes longer (root)

.PHONY: test-multus
test-multus: tools ## Workloads move from Multus and whereabouts to netclaim, with both on one node (root)
	tests/node/build.sh
	tests/bench/peers/build.sh >/dev/null
	cargo test --workspace --test starts --locked -- from_multus

.PHONY: test-crates
test-crates: tools ## Each crate builds alone, and those for other programs build from their packages (needs crates.io; 15 minutes)
	@failed=; for crate in $$(cargo tree --workspace --depth 0 --prefix none --format '{p}' --locked | awk 'NF { print $$1 }'); do \
	  echo "==> $$crate"; \
	  cargo check --quiet --package $$crate --all-targets --locked || failed+=" $$crate"; \
	done; [[ -z $$failed ]] || { echo "these do not build alone:$$failed" >&2; exit 1; }
	cargo publish --workspace --dry-run --locked --allow-dirty

.PHONY: test-upgrade
test-upgrade: tools ## FROM, the newest release by default, is upgraded to this version and rolled back, under running pods (root)
	tests/node/build.sh
	from=$(or $(FROM),$$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || true)); \
	  [[ $$from ]] || { echo 'make test-upgrade FROM=REVISION: there is no release (a tag v*) before this version' >&2; exit 2; }; \
	  NETCLAIM_UPGRADE_FROM=$$from cargo test --workspace --test install --locked -- an_earlier_version

.PHONY: fuzz
fuzz: ## Each parser under libFuzzer for FUZZ_SECONDS (60); needs a C++ compiler
	@driver/fuzz/fuzz.sh

.PHONY: bench
bench: tools ## The CNI runtime beside libcni, from link to slice, starts, and the table of goals (root; 40 minutes; BENCH_ROUNDS=16)
	@tests/bench/bench.sh
	tests/node/build.sh
	cargo test --release --package netclaim-tests --test scale --locked -- latency
	NETCLAIM_AS_RELEASED=1 cargo test --workspace --test starts --locked -- pods_with_a_claim_start
	@# Control plane and node on processors of their own.
	NETCLAIM_AS_RELEASED=1 NETCLAIM_PINNED=1 cargo test --workspace --test starts --locked -- pods_with_a_claim_start

.PHONY: bench-starts
bench-starts: tools ## How fast pods start beside plain ones, one by one and at once, beside slow plugins (root; 10 minutes)
	tests/node/build.sh
	cargo test --workspace --test starts --locked -- own::

.PHONY: bench-node
bench-node: tools ## CPU of an idle node with up to 50 ClaimNetworks, of pods on a node with 800 attachments, and on one with a slow disk (root; 50 minutes)
	tests/node/build.sh
	cargo test --workspace --test starts --locked -- the_hook
	cargo test --workspace --test starts --locked -- a_pod_costs
	cargo test --workspace --test starts --locked -- a_network_of_the_node
	cargo test --workspace --test starts --locked -- pods_start_on_a_slow_disk
	cargo test --workspace --test starts --locked -- an_idle_node

.PHONY: bench-addresses
bench-addresses: tools ## 96 Deployments with as many pods as addresses, 288, are created, restarted and deleted on three nodes (root; 10 minutes)
	tests/node/build.sh
	NETCLAIM_LONG=1 cargo test --workspace --test nodes --locked -- as_many_pods_as_addresses

.PHONY: bench-ab
bench-ab: tools ## Revision FROM and this tree start pods in turns; fails if this tree is worse (root; NETCLAIM_BENCH_ROUNDS=4)
	tests/node/build.sh
	NETCLAIM_BENCH_FROM=$(or $(FROM),$(error make bench-ab FROM=REVISION)) \
	  cargo test --workspace --test starts --locked -- an_earlier_version

.PHONY: bench-peers
bench-peers: tools ## Plain pods, Multus, DRANET and netclaim on one node in turns (root; 20 minutes; NETCLAIM_BENCH_ROUNDS=3)
	tests/node/build.sh
	tests/bench/peers/build.sh >/dev/null
	cargo test --workspace --test starts --locked -- peers::

.PHONY: lint
lint: tools deny
	tests/packages.sh lint
	cargo fmt --all --check
	tests/width.sh
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@# All targets are not those of the slow lanes, which cargo test leaves out. One package alone would have other features,
	@# and its dependencies be checked again.
	cargo clippy --workspace --test '*' --locked -- -D warnings
	@# The core of the CNI runtime does no IO: it builds without tokio and nix.
	cargo check --quiet --package netclaim-cni --no-default-features --locked
	@# Where it is installed; root has it by now.
	! command -v shellcheck >/dev/null || \
	  shellcheck $$(grep -rlE '^(#!/bin/bash|# shellcheck shell)' .ci deploy docs driver/fuzz tests --exclude-dir=target --exclude-dir=scenarios)
	! cargo tree --package netclaim-cni --no-default-features --edges normal --prefix none --locked | grep -E '^(nix|tokio) '

.PHONY: image
image: tools ## Both images in target/netclaim.tar (localhost/netclaim-agent:dev, localhost/netclaim-controller:dev)
	deploy/image/build.sh target/netclaim.tar

.PHONY: release
release: tools ## The files of a release in OUT (target/release-files), for amd64 and arm64; REGISTRY is where its images will be, DOCS its pages (root)
	deploy/release/build.sh $(or $(OUT),target/release-files) $(or $(REGISTRY),$(error make release REGISTRY=ghcr.io/OWNER)) $(DOCS)

.PHONY: generate
generate: tools ## Regenerates CRDs, schemas, protocol code, the plugins' keys, the reference, outcomes of migrations and the manifests (needs Go)
	NETCLAIM_GENERATE=1 cargo test --quiet --locked --package netclaim-api --features crd --test generated
	NETCLAIM_GENERATE=1 cargo test --quiet --locked --package netclaim-cni --test plugin_keys -- --include-ignored
	NETCLAIM_GENERATE=1 cargo test --quiet --locked --package netclaim-cni --test generated
	NETCLAIM_GENERATE=1 cargo test --quiet --locked --package netclaim-kubelet-plugin --test generated
	NETCLAIM_GENERATE=1 cargo test --quiet --locked --package netclaim-nri --test nri_proto
	NETCLAIM_GENERATE=1 cargo test --quiet --locked --package netclaim-driver --test libcni_conformance table
	NETCLAIM_GENERATE=1 cargo test --quiet --locked --package netclaim-cli --lib -- migrate picture
	NETCLAIM_GENERATE=1 cargo test --quiet --locked --package netclaim-validation --test table
	NETCLAIM_GENERATE=1 cargo test --quiet --locked --package netclaim-reference
	deploy/helm/manifests.sh "$$(tests/programs/build.sh helm)" deploy/helm/netclaim deploy

.PHONY: site
site: $(mdbook) ## The documentation as a site in OUT (target/site); FILES is where the repository's files can be read
	docs/site/build.sh $(mdbook) $(or $(OUT),target/site) $(FILES)

$(mdbook): | tools
	@echo '==> installing mdbook $(mdbook_version) (once; about 2 minutes)'
	$(install) --no-default-features --features search --version $(mdbook_version) mdbook --root $(cache)/mdbook-$(mdbook_version)

.PHONY: clean
clean: ## Removes what was built: target and the cache of the tests
	rm -rf target '$(cache)'

.PHONY: tools
tools:
	@tests/packages.sh build

.PHONY: deny
deny: $(deny)
	$(deny) --log-level error check bans licenses sources
	@# The advisories are a download: without it, say so (tests/summary counts it) and go on.
	@if ! out=$$($(deny) --log-level error fetch db 2>&1); then \
	  echo "SKIPPED CASE: advisories: the database cannot be fetched: $$(tail -n 1 <<<"$$out")"; \
	else $(deny) --log-level error check advisories; fi

$(deny): | tools
	@echo '==> installing cargo-deny $(deny_version) (once; about 5 minutes)'
	$(install) --version $(deny_version) cargo-deny --root $(cache)/cargo-deny-$(deny_version)
