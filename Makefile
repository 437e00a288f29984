# belay: `make demo` runs the main job on the lab, `make test` passes the tests.
# `make help` lists the rest.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# One setting for everything keeps one build cache; the race detector needs cgo and has its own target.
export CGO_ENABLED := 0

BIN         := $(CURDIR)/bin
BELAY_LAB   := $(BIN)/belay-lab
VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS     := -s -w -X main.version=$(VERSION)
LINTER      := $(BIN)/golangci-lint
TESTSUM     := $(BIN)/gotestsum
SANITY      := $(BIN)/csi-sanity
VULNCHECK   := $(BIN)/govulncheck
ACTIONLINT  := $(BIN)/actionlint

# Where the lab keeps the upstream programs (see `belay-lab build --help`).
UPSTREAM     = $$($(BELAY_LAB) build --print)

ARGS ?=

.PHONY: help
help: ## List the targets.
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: check-go
check-go:
	@hack/check-go

.PHONY: build
build: check-go ## Build belay's programs and the lab into bin/.
	go build -o $(BIN)/ -ldflags '$(LDFLAGS)' ./cmd/...
	cd lab && go build -o $(BIN)/ -ldflags '$(LDFLAGS)' ./cmd/...

.PHONY: upstream
upstream: build ## Build the upstream programs of the lab into the cache folder (once, about ten minutes).
	$(BELAY_LAB) build

.PHONY: demo
demo: build ## The main job on the lab: a volume that goes all the way, three moves, every record read back.
	$(BELAY_LAB) demo $(ARGS)

.PHONY: bench
bench: upstream ## belay-controller against upstream's and against a floor: latency, requests, burst, CPU, memory.
	$(BELAY_LAB) bench controller $(ARGS)

.PHONY: bench-attacher
bench-attacher: upstream ## belay-attacher against upstream's csi-attacher: throughput, calls, requests, CPU, memory.
	$(BELAY_LAB) bench attacher $(ARGS)

.PHONY: bench-node
bench-node: upstream ## belay-node: latency, a hundred volumes at once, CPU, memory of one agent and of a thousand.
	$(BELAY_LAB) bench node $(ARGS)

.PHONY: test
test: upstream $(TESTSUM) $(SANITY) ## Unit tests, simulation, conformance and the lab's short end-to-end tests.
	hack/test short

.PHONY: test-long
test-long: upstream $(TESTSUM) $(SANITY) ## Chaos, comparison with upstream, both kinds of node (hours are not needed, minutes are).
	hack/test long

.PHONY: race
race: upstream ## The unit tests under the race detector (needs a C compiler).
	CGO_ENABLED=1 KUBEBUILDER_ASSETS=$(UPSTREAM) KUBEBUILDER_CONTROLPLANE_START_TIMEOUT=3m go test -race -shuffle=on ./...

.PHONY: fuzz
fuzz: check-go ## Fuzz every target, 30 seconds each (ARGS=5m for longer); make test fuzzes some for seconds.
	hack/fuzz all $(ARGS)

.PHONY: vulncheck
vulncheck: check-go $(VULNCHECK) ## govulncheck over both modules; reads the vulnerability database from the network.
	hack/vulncheck

.PHONY: lint
lint: check-go $(LINTER) $(ACTIONLINT) ## golangci-lint over both modules, actionlint over the workflows.
	$(ACTIONLINT) -shellcheck= -pyflakes=
	$(LINTER) run ./...
	cd lab && $(LINTER) run --config ../.golangci.yml ./...

.PHONY: verify
verify: check-go ## What is generated or derived is up to date; the modules are tidy; the house's rules hold.
	hack/verify

.PHONY: clean
clean: ## Remove what labs left on this machine, and bin/. The cache of upstream programs stays.
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

$(SANITY): lab/sanity.mod lab/sanity.sum
	cd lab && go build -modfile=sanity.mod -o $@ github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity
