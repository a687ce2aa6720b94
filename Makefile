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
# Without cgo in the packages net and os/user, a program without cgo of its own is static although cgo is enabled. Without local paths a
# compiled package serves all clones. So tests, the linter, all programs and the tools of hack/tools share compiled packages.
GOFLAGS := $(filter-out -tags=% -trimpath,$(GOFLAGS)) -trimpath -tags=netgo,osusergo
export GOFLAGS

tools := hack/tools/build.sh
# The module that compares Vireo's API types with KubeVirt's: the only one that imports those.
wirecompat := test/wirecompat
# The module that tests Vireo's API with KubeVirt's client.
clientcompat := test/clientcompat
# EXTENDED=0 leaves it out. Its libraries are other versions of those of all other modules, which take minutes to compile.
without_client := $(filter 0,$(EXTENDED))
# The module that tests the Helm chart with Helm's packages.
chart := test/chart
# The module of the local cluster's CSI driver.
csi := hack/cluster/csi
# The directory of a tool.
tool = $(shell $(tools) --path $(1))
cluster := hack/cluster/cluster
kubectl := bin/kubectl
local_kubeconfig := $(CURDIR)/.cluster/kubeconfig
# KUBECONFIG selects another cluster than the local one.
cluster_kubeconfig := $(or $(KUBECONFIG),$(local_kubeconfig))
image_prefix := $(or $(IMG_REGISTRY),localhost/vireo)

components := virt-controller virt-api virt-handler virt-broker virt-launcher virt-exportproxy virt-exportserver
# GUESTFS=1 adds the image of virtctl guestfs, of about 1 GB.
images := $(components) guest-small guest-small-kernel $(if $(GUESTFS),libguestfs-tools)
ldflags := -s -w -X github.com/vireo-project/vireo/internal/component/version.Version=$(VERSION)
build_flags := -ldflags '$(ldflags)'
# Without the pages of gRPC's library about its requests, which nobody sees, the linker leaves out 2.7 MB of virt-device-plugin, whose memory is
# mostly its own file. hack/images/build.sh has the same.
plugin_flags := -tags=netgo,osusergo,grpcnotrace

##@ General

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n\033[1m%s\033[0m\n", substr($$0, 5)} /^[a-zA-Z0-9_-]+:.*##/ {printf "  \033[36m%-18s\033[0m%s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## Install the Debian packages that building and testing need (runs apt only if one is missing)
	@hack/deps.sh

##@ Try it

.PHONY: demo
demo: ## Start a local cluster with a running VM (GUEST=small or debian)
	@GUEST=$(GUEST) hack/demo.sh up

.PHONY: demo-down
demo-down: ## Remove the demo and its cluster
	@hack/demo.sh down

##@ Development

.PHONY: manifests
manifests: ## Generate CRDs, RBAC and webhook configurations from markers, and the Helm chart from config/
	@$(tools) controller-gen
	$(call tool,controller-gen)/controller-gen crd paths=./api/... output:crd:artifacts:config=config/crd/bases
	go run ./hack/crd config/crd/bases
	$(call tool,controller-gen)/controller-gen rbac:roleName=virt-controller paths=./internal/controller/... output:rbac:artifacts:config=config/rbac
	$(call tool,controller-gen)/controller-gen webhook paths=./internal/webhook/... output:webhook:artifacts:config=config/webhook
	@# virt-controller writes the paths: docs/adr/0098
	sed -i '/^      path: \/$$/d' config/webhook/manifests.yaml
	go run ./hack/chart config charts/vireo/templates/generated

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
	cd $(chart) && go vet ./...
	cd $(csi) && go vet ./...

.PHONY: lint
lint: deps ## Run golangci-lint on all packages
	@$(tools) golangci-lint
	hack/lint.sh . $(wirecompat) $(if $(without_client),,$(clientcompat)) $(chart) $(csi)

.PHONY: verify
verify: ## Check that generated files and go.mod are up to date, code is formatted, every nolint is needed, and words are the glossary's
	@hack/verify.sh

.PHONY: vuln
vuln: deps ## Check for known vulnerabilities with govulncheck (GOVULNDB=url for another database)
	@$(tools) govulncheck
	@hack/vuln.sh $(call tool,govulncheck)/govulncheck

##@ Test

# Environment of the tests: the paths of etcd and kube-apiserver, of the launcher's files, and of a browser. Fails if the launcher's files
# cannot be built.
test_env = rootfs=$$(hack/images/rootfs.sh --unpacked virt-launcher); \
	export KUBEBUILDER_ASSETS=$(call tool,envtest) VIREO_LAUNCHER_ROOTFS=$$rootfs VIREO_BROWSER=chromium

# golangci-lint runs vet with more analyzers on the same files. Without debugging information (-w) a test is linked a fifth faster; stack
# traces are the same.
test_flags := -vet=off -ldflags=-w
# Packages are tested in the order of the list: these take minutes and would otherwise run alone at the end.
slowest := ./test/integration ./internal/controller/virtualmachine ./test/rotation \
	./internal/controller/migration/virtualmachineinstancemigration

.PHONY: test
test: deps ## Run unit, envtest and integration tests (INTEGRATION_LABELS='!extended' leaves out the slow variants of integration specs)
	@$(tools) envtest promtool
	@hack/web-assets.sh
	@[ -w /dev/kvm ] || echo "The specs that need KVM are skipped: there is no /dev/kvm to write to"
	$(test_env); guest=$$(hack/images/guest.sh guest-small); bare=$$(hack/images/guest.sh guest-bare); \
		VIREO_GUEST_BOOT=$$guest/boot VIREO_BARE_GUEST=$$bare/boot/guest-bare.elf VIREO_PROMTOOL=$(call tool,promtool)/promtool VIREO_INTEGRATION_LABELS="$(INTEGRATION_LABELS)" \
			KUBEVIRT_VIRTCTL=$(wildcard $(call tool,kubevirt-virtctl)/kubevirt-virtctl) \
			go test $(test_flags) -timeout 30m -p 2 $$(go list $(slowest) ./... | grep -v /test/e2e)
	@$(MAKE) -j2 --output-sync=target test-wirecompat $(if $(without_client),,test-clientcompat) test-chart

.PHONY: test-race
test-race: deps ## Run unit and envtest suites with Go's race detector (about 15 minutes)
	@$(tools) envtest
	@hack/web-assets.sh
	$(test_env); CGO_ENABLED=1 go test -race -timeout 30m -p 2 ./internal/... ./cmd/...

.PHONY: test-race-changed
test-race-changed: deps ## Like test-race, for the packages that differ from BASE (default main); starts none after BUDGET=300 seconds
	@$(tools) envtest
	@hack/web-assets.sh
	$(test_env); BASE='$(BASE)' BUDGET='$(BUDGET)' hack/race.sh

.PHONY: fuzz
fuzz: deps ## Fuzz the parsers of untrusted input, each target for TIME (10s, 1h), JOBS at a time; PATTERN=name selects targets
	@hack/web-assets.sh
	@hack/fuzz.sh $(TIME) "$(PATTERN)"

.PHONY: test-wirecompat
test-wirecompat: deps ## Compare the API types with KubeVirt's
	@$(tools) envtest
	cd $(wirecompat) && KUBEBUILDER_ASSETS=$(call tool,envtest) go test $(test_flags) -count 1 -p 1 -v ./... | grep -vE '^ *(=== |--- PASS)'

.PHONY: test-clientcompat
test-clientcompat: deps ## Test the API with KubeVirt's Go client: every kind and every subresource
	@$(tools) envtest
	cd $(clientcompat) && KUBEBUILDER_ASSETS=$(call tool,envtest) go test $(test_flags) -count 1 ./...

.PHONY: test-chart
test-chart: ## Test the Helm chart with Helm's packages: against config/, its values and its schema
	cd $(chart) && go test -count 1 ./...

.PHONY: test-csi
test-csi: deps ## Test the local cluster's CSI driver, also with the CSI project's suite; most of it needs root and loop devices
	cd $(csi) && go test $(test_flags) -count 1 ./...

.PHONY: test-e2e
test-e2e: ## Run end-to-end tests on a local cluster of two nodes, and remove it
	@hack/e2e.sh

.PHONY: test-e2e-all
test-e2e-all: ## Like test-e2e, with all extended specs, of which test-e2e runs those that hack/third.sh chooses
	@ALL=1 hack/e2e.sh
	@hack/test-helm.sh
	@$(MAKE) test-csi
	@hack/test-storage.sh
	@if [ -n '$(FROM)' ] || git describe --tags HEAD^ >/dev/null 2>&1; then $(MAKE) test-upgrade; \
		else echo "skipped test-upgrade: there is no tag before this commit, and FROM is not set"; fi

.PHONY: test-helm
test-helm: ## Install the Helm chart with Helm on a local cluster, upgrade it while a VM runs, uninstall it, and remove the cluster
	@hack/test-helm.sh

.PHONY: test-storage
test-storage: ## Test the CSI driver on a local cluster of two nodes: snapshots, clones, expansion, killed processes; and remove the cluster
	@hack/test-storage.sh

.PHONY: test-upgrade
test-upgrade: ## Upgrade from an earlier release and back, while VMs run, on a local cluster (FROM=tag or commit, default the newest tag)
	@FROM='$(FROM)' hack/test-upgrade.sh

.PHONY: test-kvm
test-kvm: ## Run end-to-end tests with Linux under KVM, in an emulated machine that has it (ALL=1, FOCUS=, NODES=1, BENCH=1, MINUTES=90)
	@hack/machine/test.sh

.PHONY: chaos
chaos: ## Migrate a guest while processes are killed and connections cut (RUNS=200; SEED=n repeats a run); writes .bench/chaos.json
	@RUNS='$(RUNS)' SEED='$(SEED)' hack/chaos.sh

.PHONY: chaos-freeze
chaos-freeze: deps ## Kill the agent and its broker while they freeze a guest (RUNS=100; SEED=n repeats the delays); writes .bench/freeze.json
	@rootfs=$$(hack/images/rootfs.sh --unpacked virt-launcher) && guest=$$(hack/images/guest.sh guest-small) && \
		VIREO_LAUNCHER_ROOTFS=$$rootfs VIREO_GUEST_BOOT=$$guest/boot VIREO_FREEZE_RUNS=$(or $(RUNS),100) VIREO_FREEZE_SEED='$(SEED)' \
		VIREO_FREEZE_REPORT=$(CURDIR)/.bench/freeze.json \
		go test ./test/integration -count 1 -timeout 60m -ginkgo.focus 'is thawed by the deadline of a freeze' && cat .bench/freeze.txt

.PHONY: hostile
hostile: deps ## Measure ten guests beside 50 launchers that block their agent (ROUNDS=5); writes .bench/hostile.json
	@$(tools) envtest
	$(test_env); VIREO_BENCH_HOSTILE=$(CURDIR)/.bench/hostile.json VIREO_HOSTILE_ROUNDS=$(or $(ROUNDS),5) \
		go test ./test/hostile -count 1 -v -timeout 20m

.PHONY: bench-start
bench-start: ## Measure VM starts against bare Pods (COUNT=10); writes .bench/start.json
	@hack/bench-start.sh $(COUNT)

.PHONY: bench-scale
bench-scale: deps ## Measure virt-controller and agents with N=500 VMs on simulated nodes (SCALE_NODES=, STEADY=1m); writes .bench/scale.json
	@hack/bench-scale.sh $(or $(N),500) $(or $(SCALE_NODES),0) $(or $(STEADY),1m)

.PHONY: bench-migrate
bench-migrate: COUNT = 30
bench-migrate: ## Measure migrations between two libvirtds against virsh's (COUNT=30); writes .bench/migrate.json
	@rootfs=$$(hack/images/rootfs.sh --unpacked virt-launcher) && guest=$$(hack/images/guest.sh guest-small) && \
		VIREO_LAUNCHER_ROOTFS=$$rootfs VIREO_GUEST_BOOT=$$guest/boot \
		VIREO_BENCH_MIGRATE=$(CURDIR)/.bench/migrate.json VIREO_BENCH_MIGRATE_COUNT=$(COUNT) \
		go test ./test/integration -count 1 -timeout 60m -ginkgo.label-filter bench && cat .bench/migrate.txt

.PHONY: bench-live
bench-live: ## Migrate a busy guest between two nodes (COUNT=10), check that nothing is lost; writes .bench/live.json
	@hack/bench-live.sh $(COUNT)

.PHONY: bench-hotplug
bench-hotplug: ## Plug and unplug a volume while the guest writes (COUNT=50), and resize the guest; writes .bench/hotplug.json
	@hack/bench-hotplug.sh $(COUNT)

.PHONY: bench-snapshot
bench-snapshot: ## Take snapshots of guests with 1, 4 and 16 disks (COUNT=10), against virsh's freeze; writes .bench/snapshot.json
	@hack/bench-snapshot.sh $(COUNT)

##@ Build

.PHONY: build
build: deps ## Build the components and virtctl into bin/
	CGO_ENABLED=1 go build $(build_flags) -o bin/ ./cmd/virt-controller ./cmd/virt-api ./cmd/virt-handler ./cmd/virt-launcher ./cmd/virt-tail \
		./cmd/virt-freezer ./cmd/virt-exportproxy ./cmd/virt-exportserver ./cmd/virt-broker ./cmd/virt-network-broker
	CGO_ENABLED=1 go build $(build_flags) $(plugin_flags) -o bin/ ./cmd/virt-device-plugin
	@$(MAKE) virtctl
	go build $(build_flags) -o bin/test-tools ./test/tools

.PHONY: virtctl
virtctl: ## Build virtctl, also as a kubectl plugin, into bin/
	@hack/web-assets.sh
	go build $(build_flags) -o bin/ ./cmd/virtctl
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

.PHONY: release
release: deps $(kubectl) ## Put a release together in dist/VERSION: images, chart, installer, virtctl, SBOMs, checksums (IMG_REGISTRY=)
	@hack/release.sh $(VERSION)

##@ Cluster on this machine

$(kubectl):
	@$(tools) kubectl
	@mkdir -p bin && ln -sf $(call tool,kubectl)/kubectl $@

.PHONY: cluster-up
cluster-up: deps $(kubectl) ## Start a local Kubernetes cluster (NODES=1; STORAGE=1 with a CSI driver that makes snapshots and clones, and IMPORTER=1 also with CDI)
	@$(cluster) up --nodes $(NODES) $(if $(STORAGE),--storage) $(if $(IMPORTER),--importer)

.PHONY: cluster-down
cluster-down: ## Remove the local cluster completely
	@$(cluster) down

.PHONY: cluster-load
cluster-load: ## Load the built images into all nodes of the local cluster
	@$(cluster) load $$(ls .build/images/*.tar)

##@ Deployment (into KUBECONFIG, or the local cluster)

.PHONY: install
install: $(kubectl) ## Install the CRDs
	@$(kubectl) --kubeconfig $(cluster_kubeconfig) apply --server-side -k config/crd

.PHONY: uninstall
uninstall: $(kubectl) ## Remove the CRDs, and with them all VMs
	@$(kubectl) --kubeconfig $(cluster_kubeconfig) delete --ignore-not-found -k config/crd

.PHONY: build-installer
build-installer: $(kubectl) ## Write all manifests to dist/install.yaml
	@hack/installer.sh dist/install.yaml

.PHONY: deploy
deploy: build-installer ## Deploy Vireo, unless KubeVirt manages the cluster
	@! $(kubectl) --kubeconfig $(cluster_kubeconfig) -n kubevirt get -o name --ignore-not-found \
		deployment/virt-operator validatingwebhookconfiguration/virt-operator-validator | grep . || \
		{ echo 'KubeVirt manages this cluster, and taking it over with its guests is not implemented yet: see docs/takeover.md' >&2; exit 1; }
	@$(kubectl) --kubeconfig $(cluster_kubeconfig) apply --server-side --force-conflicts -f dist/install.yaml
	@$(kubectl) --kubeconfig $(cluster_kubeconfig) -n kubevirt rollout status deployment/virt-controller --timeout=5m

.PHONY: undeploy
undeploy: build-installer ## Remove Vireo: VMs, the KubeVirt object, then all manifests
	@hack/undeploy.sh
