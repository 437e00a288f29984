# belay: `make demo` moves a volume on the lab, `make test` runs the tests. `make help` lists the rest.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# One setting for everything keeps one build cache; the race detector needs cgo and has its own target.
export CGO_ENABLED := 0
# As images and releases are built, which then find in the cache what tests have compiled.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath)

BIN         := $(CURDIR)/bin
BELAY_LAB   := $(BIN)/belay-lab
# A release's tag before its candidates', which may be on the same commit; lab/vX.Y.Z is the tag of the other module. CI passes the tag: VERSION=vX.Y.Z.
VERSION     := $(shell git describe --exact-match --tags --match 'v[0-9]*' --exclude '*-*' --dirty 2>/dev/null || \
                 git describe --tags --match 'v[0-9]*' --always --dirty 2>/dev/null || echo unknown)
REVISION    := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
LDFLAGS     := -s -w -X main.version=$(VERSION) -X belay.dev/belay/internal/usage.Commit=$(REVISION)
LINTER      := $(BIN)/golangci-lint
TESTSUM     := $(BIN)/gotestsum
SANITY      := $(BIN)/csi-sanity
VULNCHECK   := $(BIN)/govulncheck
ACTIONLINT  := $(BIN)/actionlint
CONTROLLERGEN := $(BIN)/controller-gen
HELM        := $(BIN)/helm
IMAGES      := $(BIN)/images
HELMDOCS    := $(BIN)/helm-docs
OTELCOL     := $(BIN)/otelcol
PROMTOOL    := $(BIN)/promtool
PROMETHEUS  := $(BIN)/prometheus
RELEASE     := $(BIN)/release
COSIGN      := $(BIN)/cosign

# Where the lab keeps the upstream programs (see `belay-lab build --help`).
UPSTREAM     = $$($(BELAY_LAB) build --print)

ARGS ?=

.PHONY: help
help: ## List the targets.
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: check-go
check-go:
	@hack/check-go

# What a fresh machine lacks of Debian's packages; INSTALL=no installs nothing.
.PHONY: packages-demo packages-test
packages-demo packages-test: packages-%: check-go
	@hack/install-packages $*

.PHONY: build
build: check-go ## Build belay's programs and the lab into bin/.
	go build -o $(BIN)/ -ldflags '$(LDFLAGS)' ./cmd/...
	install -m 755 cmd/kubectl-belay/kubectl_complete-belay $(BIN)/
	cd lab && go build -o $(BIN)/ -ldflags '$(LDFLAGS)' ./cmd/...

.PHONY: upstream
upstream: build ## Build the upstream programs of the lab into the cache folder (once).
	$(BELAY_LAB) build

.PHONY: demo
demo: packages-demo build ## Move a volume three times on a lab (drain, second user, power cut), and read every record back. ARGS=--require-all refuses to leave anything out.
	$(BELAY_LAB) demo $(ARGS)

.PHONY: field field-update
field: upstream ## Print what kubectl belay says in situations from public reports, a minute for all: ARGS=cm-missing for one, ARGS=--list for their names.
	$(BELAY_LAB) field $(ARGS)

field-update: upstream ## Store what kubectl belay says in them (lab/field/testdata): read the difference before you commit it.
	cd lab && BELAY_BIN=$(BIN) BELAY_UPSTREAM_BIN=$(UPSTREAM) go test -count=1 ./field -run '^TestAnswers$$' -update

.PHONY: demo-svg
demo-svg: build ## Run the demo, store its first move, and draw it into docs/demo.svg.
	$(BELAY_LAB) demo -o json $(ARGS) > $(BIN)/demo.json
	cd lab && go run ./performance --demo $(BIN)/demo.json ../docs

.PHONY: bench
bench: upstream ## Compare belay-controller with upstream's and with a floor: latency, requests, burst, CPU, memory.
	$(BELAY_LAB) bench controller $(ARGS)

# Whether the figures of a bench are stored for docs/performance.md, which `make performance` then writes, or printed only: with ARGS it may
# be less than the whole bench. STORE=yes stores those of another one too, such as the series that docs/recovery/how-long.md names.
STORE ?= $(if $(strip $(ARGS)),no,yes)

# They are stored when the bench has ended, also if it has missed a target.
define bench
	[ '$(STORE)' = yes ] || exec $(BELAY_LAB) bench $(1) $(ARGS); \
	status=0; $(BELAY_LAB) bench $(1) -o json $(ARGS) > $(BIN)/$(1).json || status=$$?; \
	if [ -s $(BIN)/$(1).json ]; then rm -f docs/performance/$(1)-*.json; mv $(BIN)/$(1).json docs/performance/; echo "docs/performance/$(1).json is written: make performance writes the page"; fi; \
	exit $$status
endef

.PHONY: bench-attacher
bench-attacher: upstream ## Compare belay-attacher with csi-attacher: one attach, one move, drains, throughput, calls, requests, CPU, memory (35 minutes).
	$(call bench,attacher)

.PHONY: bench-node
bench-node: upstream ## Measure belay-node: latency, a hundred volumes at once, CPU, memory of one agent and of a thousand.
	$(BELAY_LAB) bench node $(ARGS)

.PHONY: bench-recovery
bench-recovery: upstream ## Measure recovery: power cut or hung node -> a StatefulSet's pod writing elsewhere, per hop (two hours).
	$(call bench,recovery)

.PHONY: bench-tick
bench-tick: upstream ## Measure what a shorter status tick of kubelets gains, with both planes, and what it costs 500 kubelets and their API server (50 minutes).
	$(call bench,tick)

# Fewer seeds than `make test`, no vet (lint has it) and no debug information: what is left is what a first contribution needs.
.PHONY: unit
unit: check-go ## The tests that need neither root nor an API server, nor anything of upstream (two minutes on two cores).
	BELAY_SEEDS=40 BELAY_SIM_SEEDS=5 KUBEBUILDER_ASSETS= go test -short -vet=off -ldflags='-s -w' ./...

# hack/test says what it builds, and builds the tools that the system does not have.
.PHONY: test
test: packages-test build ## Run unit tests, simulation, conformance and the lab's short end-to-end tests.
	hack/test short

.PHONY: test-chaos
test-chaos: packages-test build ## Run short forms of the chaos, of the kills and of the comparison with csi-attacher that `make test-long` runs at length.
	hack/test chaos

.PHONY: test-long
test-long: packages-test build ## Run the long tests too: chaos, churn, kills, comparison with upstream, both kinds of node.
	hack/test long

.PHONY: fresh
fresh: check-go ## Run the simulations with seeds that no run has had; they are printed.
	hack/test fresh

.PHONY: test-kubernetes
test-kubernetes: packages-test build ## Run conformance and short end-to-end tests with another Kubernetes: MINOR=1.34 or 1.35.
	hack/test kubernetes $(MINOR)

# A simulation runs one goroutine at a time: more seeds are the same code again. Planted faults are programs of their own, without the detector,
# and with it the order of goroutines is drawn: no seed can be replayed.
.PHONY: race
race: upstream $(HELM) ## Run the unit tests, and those of the lab's own parts, with the race detector (needs a C compiler).
	BELAY_SEEDS=40 CGO_ENABLED=1 KUBEBUILDER_ASSETS=$(UPSTREAM) go test -race -short -shuffle=on -skip '^(TestPlantedFaults|TestSimulationFindsTheFault|TestReplay$$)' -timeout 60m ./...
	cd lab && CGO_ENABLED=1 KUBEBUILDER_ASSETS= BELAY_UPSTREAM_BIN= BELAY_BIN= go test -race -short -shuffle=on -timeout 30m ./...

.PHONY: mutants
mutants: upstream ## Take rules out, one by one, and expect a test to fail for each: recovery's, and those of the conformance tables. ARGS='-run TestConformance/attacher' for some.
	KUBEBUILDER_ASSETS=$(UPSTREAM) BELAY_UPSTREAM_BIN=$(UPSTREAM) BELAY_CSI_ATTACHER=$(UPSTREAM)/csi-attacher go test -count=1 -timeout 3h -v ./hack/mutants $(ARGS)

.PHONY: replay
replay: check-go ## Run seeds of the simulation twice with a Go runtime that interrupts goroutines after 30 µs, and compare (BELAY_SEEDS=200).
	hack/replay

.PHONY: fuzz
fuzz: check-go ## Fuzz every target, 100,000 times each (ARGS=1000000 for longer); make test fuzzes some for seconds.
	hack/fuzz all $(ARGS)

.PHONY: scale
scale: upstream ## Measure both planes at up to 100,000 volumes on 5,000 nodes (about 40 minutes, 16 GiB), and write docs/performance.md.
	mkdir -p docs/performance
	bin/belay-lab bench scale --file docs/performance/scale.csv
	$(MAKE) performance

.PHONY: performance
performance: check-go ## Write docs/performance.md and all pictures of docs from the figures in docs/performance.
	cd lab && go run ./performance ../docs

.PHONY: flags
flags: check-go ## Write docs/flags: the flags of the programs, as the programs list them.
	go run ./hack/flags

.PHONY: conformance
conformance: check-go ## Render docs/conformance from the conformance tables, and check their links to upstream.
	go test -count=1 ./internal/testing/conformance -update

.PHONY: drivers
drivers: check-go ## Render the facts about CSI drivers into docs/drivers.md.
	go test -count=1 ./internal/drivers -update

.PHONY: generate
generate: check-go $(CONTROLLERGEN) $(HELM) $(HELMDOCS) ## Write the deepcopy functions and the CRDs of the API types (api/) and the dashboards, render deploy/ from the chart, list its values in its README, and the reasons in docs/runbooks.
	$(CONTROLLERGEN) object crd paths=./api/... output:crd:dir=charts/belay/files
	hack/crdtimes charts/belay/files/fencing.belay.dev_*.yaml
	cd hack/dashboards && go run . ../../charts/belay/files/dashboards
	hack/render
	$(HELMDOCS) --chart-search-root charts --log-level warning
	go test -count=1 ./docs/runbooks -update

# Reproducible: the time of creation is that of the commit.
.PHONY: images
images: check-go $(IMAGES) ## Build the container images as OCI layouts in dist/images (PUSH=REPO pushes them; ARGS=-help).
	go run ./hack/licences -out build/licences -platforms linux/amd64,linux/arm64 belay-controller belay-attacher belay-node kubectl-belay
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(IMAGES) -version $(VERSION) -revision $(REVISION) -licences build/licences -push '$(PUSH)' $(ARGS)

.PHONY: version
version: ## Print the version of what is built here, which is the tag of the images.
	@echo $(VERSION)

.PHONY: fencer-rootfs
fencer-rootfs: ## Write dist/rootfs/ARCH.tar, Debian with the fence agents, for the image belay-controller-fencer (ARCH=amd64 or arm64; needs mmdebstrap).
	hack/fencer-rootfs $(or $(ARCH),amd64) dist/rootfs

.PHONY: site
site: ## Render the documents into dist/site, with navigation and search (needs MkDocs with the theme Material, from Debian).
	hack/site/build

# The folder of a release, where it will be downloaded from, and who builds it.
DIST        ?= dist
RELEASE_URL ?=
BUILDER     ?= https://belay.dev/belay/builders/local
# Not empty: rehearse with uncommitted changes. The provenance then names no commit.
ALLOW_DIRTY ?=

.PHONY: release
release: check-go $(RELEASE) $(IMAGES) $(HELM) ## Make all files of a release in dist/: archives, packages, chart, images, SBOMs, krew manifest, checksums, provenance.
	hack/release-rootfs
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(RELEASE) build -dist $(DIST) -version $(VERSION) -revision $(REVISION) \
		-fencer-rootfs build/rootfs -base '$(RELEASE_URL)' -builder $(BUILDER) $(if $(ALLOW_DIRTY),-allow-dirty)

.PHONY: release-sign
release-sign: $(RELEASE) $(COSIGN) ## Sign the checksums and the provenance in dist/: KEY=cosign.key, or keyless without it.
	$(RELEASE) sign -dist $(DIST) -key '$(KEY)' $(if $(ALLOW_DIRTY),-allow-dirty)

.PHONY: release-verify
release-verify: $(RELEASE) $(COSIGN) ## Verify dist/ and its signatures: KEY=cosign.pub, or IDENTITY=... ISSUER=... without a key.
	$(RELEASE) verify -dist $(DIST) -key '$(KEY)' -identity '$(IDENTITY)' -issuer '$(ISSUER)'

.PHONY: release-push
release-push: $(RELEASE) $(COSIGN) ## Push the images of dist/ to a repository, and sign them: PUSH=REPO, KEY as for release-sign.
	$(RELEASE) push -dist $(DIST) -version $(VERSION) -to '$(PUSH)' -key '$(KEY)' $(if $(ALLOW_DIRTY),-allow-dirty)

.PHONY: release-test
release-test: check-go $(RELEASE) $(COSIGN) $(HELM) ## Install what is in dist/ on empty machines without Go, and sign and verify it with a key (root, mmdebstrap).
	cd hack/release && BELAY_DIST=$(abspath $(DIST)) BELAY_VERSION=$(VERSION) BELAY_REVISION=$(REVISION) go test -count=1 -timeout 15m -v ./...

.PHONY: release-dry-run
release-dry-run: ## Make a release in dist/, make it again, compare, sign and verify it with a key, and install it. Publishes nothing.
	hack/release-dry-run

.PHONY: vulncheck
vulncheck: check-go $(VULNCHECK) ## govulncheck over both modules; reads the vulnerability database from the network.
	hack/vulncheck

.PHONY: lint
lint: check-go $(LINTER) $(ACTIONLINT) ## Run golangci-lint over both modules and actionlint over the workflows.
	$(ACTIONLINT) -shellcheck= -pyflakes=
	$(LINTER) run ./...
	cd lab && $(LINTER) run --config ../.golangci.yml ./...

.PHONY: verify
verify: check-go $(HELM) $(HELMDOCS) ## Check formatting, module files, the repository's rules and the documents.
	hack/verify

.PHONY: clean
clean: ## Remove what labs left on this machine, and bin/. Keep the cache of upstream programs.
	@if [ -x $(BELAY_LAB) ]; then $(BELAY_LAB) clean; fi
	rm -rf $(BIN)

$(LINTER): hack/tools/go.mod hack/tools/go.sum
	cd hack/tools && go build -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(TESTSUM): hack/tools/go.mod hack/tools/go.sum
	cd hack/tools && go build -o $@ gotest.tools/gotestsum

$(VULNCHECK): hack/tools/go.mod hack/tools/go.sum
	cd hack/tools && go build -o $@ golang.org/x/vuln/cmd/govulncheck

# A module of its own: actionlint 1.7 does not compile with the YAML library that golangci-lint needs.
$(ACTIONLINT): hack/actionlint/go.mod hack/actionlint/go.sum
	cd hack/actionlint && go build -o $@ github.com/rhysd/actionlint/cmd/actionlint

$(CONTROLLERGEN): hack/controllergen/go.mod hack/controllergen/go.sum
	cd hack/controllergen && go build -o $@ sigs.k8s.io/controller-tools/cmd/controller-gen

# A module of its own: a collector needs newer OpenTelemetry libraries than Kubernetes 1.36.
$(OTELCOL): hack/otelcol/go.mod hack/otelcol/go.sum hack/otelcol/main.go hack/otelcol/jsonfile.go
	cd hack/otelcol && go build -ldflags='-s -w' -o $@ .

$(HELM): hack/helm/go.mod hack/helm/go.sum
	cd hack/helm && go build -o $@ helm.sh/helm/v4/cmd/helm

$(HELMDOCS): hack/helmdocs/go.mod hack/helmdocs/go.sum
	cd hack/helmdocs && go build -o $@ github.com/norwoodj/helm-docs/cmd/helm-docs

# Without service discovery, most of which is other vendors' client libraries.
$(PROMTOOL) $(PROMETHEUS): hack/prometheus/go.mod hack/prometheus/go.sum
	cd hack/prometheus && go build -tags remove_all_sd -ldflags '-s -w' -o $@ github.com/prometheus/prometheus/cmd/$(@F)

$(IMAGES): hack/images/go.mod hack/images/go.sum hack/images/main.go
	cd hack/images && go build -o $@ .

$(RELEASE): hack/release/go.mod hack/release/go.sum $(wildcard hack/release/*.go)
	cd hack/release && go build -o $@ .

$(COSIGN): hack/cosign/go.mod hack/cosign/go.sum
	cd hack/cosign && go build -o $@ github.com/sigstore/cosign/v3/cmd/cosign

$(SANITY): lab/sanity.mod lab/sanity.sum
	cd lab && go build -modfile=sanity.mod -o $@ github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity
