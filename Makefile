# Vireo. `make help` lists the targets. Tools are built from pinned Go modules into a cache outside the clone.

SHELL := /usr/bin/env bash -o pipefail
.SHELLFLAGS := -ec
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

VERSION ?= v0.1.0
TAG ?= dev
# Registry of an existing cluster; empty means the local cluster, into which images are loaded.
IMG_REGISTRY ?=
NODES ?= 1
GUEST ?= small
COUNT ?= 10
TIME ?= 10s

VIREO_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/vireo
export VIREO_CACHE TAG

tools := hack/tools/build.sh
# The module that holds our API types against KubeVirt's: the only one that imports those.
wirecompat := test/wirecompat
# The module that drives our API with KubeVirt's client.
clientcompat := test/clientcompat
# The folder of a tool.
tool = $(shell $(tools) --path $(1))
cluster := hack/cluster/cluster
kubectl := bin/kubectl
local_kubeconfig := $(CURDIR)/.cluster/kubeconfig
# A KUBECONFIG of the caller's wins: everything then goes to that cluster.
cluster_kubeconfig := $(or $(KUBECONFIG),$(local_kubeconfig))
image_prefix := $(or $(IMG_REGISTRY),localhost/vireo)

components := virt-controller virt-api virt-handler virt-launcher
# GUESTFS=1 adds what virtctl guestfs runs, an image of about 1 GB.
images := $(components) guest-small guest-small-kernel $(if $(GUESTFS),libguestfs-tools)
ldflags := -s -w -X github.com/vireo-project/vireo/internal/version.Version=$(VERSION)
# RELEASE=1 leaves this machine's paths out of the binaries. It compiles every dependency once more, which tests and the
# local cluster do without.
build_flags := $(if $(RELEASE),-trimpath) -ldflags '$(ldflags)'

##@ General

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n\033[1m%s\033[0m\n", substr($$0, 5)} /^[a-zA-Z0-9_-]+:.*##/ {printf "  \033[36m%-18s\033[0m%s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## Install the Debian packages that building and testing need (asks apt only when one is missing)
	@hack/deps.sh

##@ Try it

.PHONY: demo
demo: ## A cluster on this machine with a VM running in it (GUEST=small or debian)
	@GUEST=$(GUEST) hack/demo.sh up

.PHONY: demo-down
demo-down: ## Remove the demo and its cluster
	@hack/demo.sh down

##@ Development

.PHONY: manifests
manifests: ## Generate CRDs, RBAC and webhook configurations from markers
	@$(tools) controller-gen
	$(call tool,controller-gen)/controller-gen crd paths=./api/... output:crd:artifacts:config=config/crd/bases
	go run ./hack/crd config/crd/bases
	$(call tool,controller-gen)/controller-gen rbac:roleName=virt-controller paths=./internal/controller/... output:rbac:artifacts:config=config/rbac
	$(call tool,controller-gen)/controller-gen webhook paths=./internal/webhook/... output:webhook:artifacts:config=config/webhook

.PHONY: generate
generate: ## Generate deep copies
	@$(tools) controller-gen
	$(call tool,controller-gen)/controller-gen object:headerFile=hack/boilerplate.go.txt paths=./api/...

.PHONY: fmt
fmt: ## Format Go code
	gofmt -w api cmd internal test hack

.PHONY: vet
vet: ## Run go vet
	go vet ./...
	cd $(wirecompat) && go vet ./...
	cd $(clientcompat) && go vet ./...

.PHONY: lint
lint: deps ## Run golangci-lint over every path
	@$(tools) golangci-lint
	$(call tool,golangci-lint)/golangci-lint run --allow-parallel-runners --concurrency 2 ./...
	cd $(wirecompat) && $(call tool,golangci-lint)/golangci-lint run --allow-parallel-runners --concurrency 2 ./...
	cd $(clientcompat) && $(call tool,golangci-lint)/golangci-lint run --allow-parallel-runners --concurrency 2 ./...

.PHONY: verify
verify: ## Fail when generated files or go.mod are stale, code is not formatted, or a nolint does nothing
	@hack/verify.sh

.PHONY: vuln
vuln: deps ## Look for known vulnerabilities with govulncheck, in the database at GOVULNDB or Go's own
	@$(tools) govulncheck
	@hack/vuln.sh $(call tool,govulncheck)/govulncheck

##@ Test

# What the tests are told: where etcd and kube-apiserver are, the launcher's files, and a browser. Fails when the files cannot be made.
test_env = rootfs=$$(hack/images/rootfs.sh --unpacked virt-launcher); \
	export KUBEBUILDER_ASSETS=$(call tool,envtest) VIREO_LAUNCHER_ROOTFS=$$rootfs VIREO_BROWSER=chromium

.PHONY: test
test: deps ## Unit, envtest and integration tests; installs what they need
	@$(tools) envtest
	@hack/web-assets.sh
	$(test_env); guest=$$(hack/images/guest.sh guest-small); \
		VIREO_GUEST_BOOT=$$guest/boot go test -timeout 30m -p 2 $$(go list ./... | grep -v /test/e2e)
	@$(MAKE) test-wirecompat
	@$(MAKE) test-clientcompat

.PHONY: test-race
test-race: deps ## Unit and envtest suites with Go's race detector (about 15 minutes)
	@$(tools) envtest
	@hack/web-assets.sh
	$(test_env); CGO_ENABLED=1 go test -race -timeout 30m -p 2 ./internal/...

.PHONY: test-race-changed
test-race-changed: deps ## As test-race, of the packages that differ from BASE (as a rule main), and only as many as begin within BUDGET=300 seconds
	@$(tools) envtest
	@hack/web-assets.sh
	$(test_env); BASE='$(BASE)' BUDGET='$(BUDGET)' hack/race.sh

.PHONY: fuzz
fuzz: deps ## Fuzz what guests, launchers and peers send, each target for TIME (TIME=10s, TIME=1h), JOBS at a time; PATTERN=name for some of them
	@hack/web-assets.sh
	@hack/fuzz.sh $(TIME) "$(PATTERN)"

.PHONY: test-wirecompat
test-wirecompat: deps ## Our API types against KubeVirt's; ends with a summary
	@$(tools) envtest
	cd $(wirecompat) && KUBEBUILDER_ASSETS=$(call tool,envtest) go test -count 1 -p 1 -v ./... | grep -vE '^ *(=== |--- PASS)'

.PHONY: test-clientcompat
test-clientcompat: deps ## Our API with KubeVirt's own Go client: every kind and every subresource
	@$(tools) envtest
	cd $(clientcompat) && KUBEBUILDER_ASSETS=$(call tool,envtest) go test -count 1 ./...

.PHONY: test-e2e
test-e2e: ## End to end on two nodes; brings the cluster up and takes it down
	@hack/e2e.sh

.PHONY: chaos
chaos: ## Migrate a guest while processes are killed and connections cut (RUNS=200, SEED=n repeats); writes .bench/chaos.json
	@RUNS='$(RUNS)' SEED='$(SEED)' hack/chaos.sh

.PHONY: hostile
hostile: deps ## Ten guests beside 50 launchers that hold up their agent (ROUNDS=5): nobody waits; writes .bench/hostile.json
	@$(tools) envtest
	$(test_env); VIREO_BENCH_HOSTILE=$(CURDIR)/.bench/hostile.json VIREO_HOSTILE_ROUNDS=$(or $(ROUNDS),5) \
		go test ./test/hostile -count 1 -v -timeout 20m

.PHONY: bench-start
bench-start: ## Measure VM starts against bare Pods (COUNT=10); writes .bench/start.json
	@hack/bench-start.sh $(COUNT)

.PHONY: bench-migrate
bench-migrate: ## Measure migrations between two libvirtds against virsh's (COUNT=10); writes .bench/migrate.json
	@rootfs=$$(hack/images/rootfs.sh --unpacked virt-launcher) && guest=$$(hack/images/guest.sh guest-small) && \
		VIREO_LAUNCHER_ROOTFS=$$rootfs VIREO_GUEST_BOOT=$$guest/boot \
		VIREO_BENCH_MIGRATE=$(CURDIR)/.bench/migrate.json VIREO_BENCH_MIGRATE_COUNT=$(COUNT) \
		go test ./test/integration -count 1 -timeout 60m -ginkgo.label-filter bench && cat .bench/migrate.txt

.PHONY: bench-live
bench-live: ## Move a busy guest between two nodes (COUNT=10): nothing lost, and times; writes .bench/live.json
	@hack/bench-live.sh $(COUNT)

##@ Build

.PHONY: build
build: deps ## Build the components and virtctl into bin/
	CGO_ENABLED=0 go build $(build_flags) -o bin/ ./cmd/virt-controller ./cmd/virt-api ./cmd/virt-launcher ./cmd/virt-tail ./cmd/virt-freezer
	CGO_ENABLED=1 go build $(build_flags) -o bin/ ./cmd/virt-handler
	@$(MAKE) virtctl
	CGO_ENABLED=0 go build $(build_flags) -o bin/test-tools ./test/tools

.PHONY: virtctl
virtctl: ## Build virtctl, and its name as kubectl's plugin, into bin/
	@hack/web-assets.sh
	CGO_ENABLED=0 go build $(build_flags) -o bin/ ./cmd/virtctl
	@ln -sf virtctl bin/kubectl-virt

.PHONY: images
images: build ## Build the images and print their sizes (GUESTFS=1 adds libguestfs-tools)
	@hack/images/build.sh $(images) test-tools

.PHONY: docker-build
docker-build: build ## Build the components' images with docker and the same Dockerfile
	@hack/images/build.sh --prepare $(components)
	@for name in $(components); do docker build --target $$name -t $(image_prefix)/$$name:$(TAG) .; done

.PHONY: image-push
image-push: build ## Push the images to IMG_REGISTRY
	@test -n "$(IMG_REGISTRY)" || { echo "image-push: set IMG_REGISTRY to the registry of your cluster" >&2; exit 1; }
	@hack/images/build.sh --push $(IMG_REGISTRY) $(images)

##@ Cluster on this machine

$(kubectl):
	@$(tools) kubectl
	@mkdir -p bin && ln -sf $(call tool,kubectl)/kubectl $@

.PHONY: cluster-up
cluster-up: deps $(kubectl) ## Bring up Kubernetes on this machine (NODES=1)
	@$(cluster) up --nodes $(NODES)

.PHONY: cluster-down
cluster-down: ## Remove the cluster and everything that was made for it
	@$(cluster) down

.PHONY: cluster-load
cluster-load: ## Load the built images into all nodes
	@$(cluster) load $$(ls .build/images/*.tar)

##@ Deployment (into KUBECONFIG, or the local cluster)

.PHONY: install
install: $(kubectl) ## Install the CRDs
	@$(kubectl) --kubeconfig $(cluster_kubeconfig) apply --server-side -k config/crd

.PHONY: uninstall
uninstall: $(kubectl) ## Remove the CRDs, and with them all VMs
	@$(kubectl) --kubeconfig $(cluster_kubeconfig) delete --ignore-not-found -k config/crd

.PHONY: build-installer
build-installer: $(kubectl) ## Write one YAML with everything to dist/install.yaml
	@hack/installer.sh dist/install.yaml

.PHONY: deploy
deploy: build-installer ## Deploy Vireo
	@$(kubectl) --kubeconfig $(cluster_kubeconfig) apply --server-side --force-conflicts -f dist/install.yaml
	@$(kubectl) --kubeconfig $(cluster_kubeconfig) -n kubevirt rollout status deployment/virt-controller --timeout=5m

.PHONY: undeploy
undeploy: build-installer ## Remove Vireo: VMs, the KubeVirt object, then everything else
	@hack/undeploy.sh
