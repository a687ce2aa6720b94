// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// installers is a directory with the manifests of a previous release, which is installed in the cluster, and of this
// commit.
var installers = os.Getenv("VIREO_E2E_INSTALLERS")

// The manifests in that directory.
const (
	previousManifests = "previous.yaml"
	presentManifests  = "present.yaml"
)

// The specs cover both procedures of docs/upgrade.md, with two guests that the previous release has started. The
// cluster is removed afterwards.
var _ = Describe("An upgrade from the previous release", Ordered, Serial, Label("upgrade"), func() {
	var (
		namespace, previous string
		first               launcherFacts
		calls               func() []string
		// apart reports whether virt-broker of the previous release has the containers of this commit's.
		apart bool
	)
	moving, staying := countingGuest("guest"), countingGuest("staying")
	guests := []*migratingGuest{&moving, &staying}

	BeforeAll(func(ctx context.Context) {
		if installers == "" {
			Skip("the cluster has no previous release: `make test-upgrade` installs one and sets VIREO_E2E_INSTALLERS")
		}
		previous = kubeVirt(ctx).Status.ObservedKubeVirtVersion
		Expect(previous).NotTo(Equal(imageTag), "the cluster has this commit already")
		expectRolledOut(ctx, previous)
		apart = hasProgramsApart(ctx)
		tagVersions(ctx, brokenVersion)
		namespace = newNamespace(ctx)
		all := nodes(ctx)
		Expect(len(all)).To(BeNumerically(">=", len(guests)))
		for i, n := range guests {
			n.namespace = namespace
			create(ctx, makeVM(namespace, n.name, withPreferredNode(all[i]),
				withEvictionStrategy(v1.EvictionStrategyLiveMigrate),
				withUserData("#!/bin/sh\n"+counter)))
		}
		for _, n := range guests {
			n.instance = expectReady(ctx, namespace, n.name)
			n.followCounts(ctx)
		}
		Expect(moving.instance.Status.NodeName).NotTo(Equal(staying.instance.Status.NodeName))
		first = moving.launcher(ctx, launcherImage(previous))
		calls = callRepeatedly(context.Background(), namespace)
	}, nodeTimeout(12*time.Minute))
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, namespace) }, nodeTimeout(time.Minute))
	AfterAll(func() {
		if calls != nil {
			Expect(calls()).To(BeEmpty(), "a call and its retry a second later failed")
		}
	})

	// expectMigrates migrates the guest to the launcher of a version.
	expectMigrates := func(ctx context.Context, version string) {
		GinkgoHelper()
		GinkgoWriter.Printf("to the launcher of %s: %+v\n", version, moving.expectMigration(ctx, moving.migrate))
		Expect(moving.launcher(ctx, launcherImage(version)).machine).
			To(Equal(first.machine), "the guest's machine type has changed")
		moving.expectCounts(ctx)
	}

	It("replaces all components by the new manifests", func(ctx context.Context) {
		expectUndisturbed(ctx, guests, func() { install(ctx, presentManifests, imageTag) })
		create(ctx, makeVM(namespace, "new"))
		expectReady(ctx, namespace, "new")
	}, specTimeout(16*time.Minute))

	It("lets a guest migrate to the new launcher", func(ctx context.Context) {
		expectMigrates(ctx, imageTag)
	}, specTimeout(8*time.Minute))

	It("is taken back by the old manifests", func(ctx context.Context) {
		expectUndisturbed(ctx, guests, func() {
			if !apart && hasBroker(previousManifests) {
				applyManifests(ctx, previousManifests)
				Eventually(imagesOf).WithContext(ctx).WithArguments("virt-handler").WithTimeout(bootTimeout).WithPolling(
					pollInterval).
					Should(ContainElement(HaveSuffix(":" + previous)))
				kubectl(ctx, "", "delete", "daemonset", "virt-broker", "-n", "kubevirt")
			}
			install(ctx, previousManifests, previous)
			// virt-controller of this commit has replaced the paths of the webhooks until it ended.
			applyManifests(ctx, previousManifests)
		})
		create(ctx, makeVM(namespace, "old"))
		expectReady(ctx, namespace, "old")
	}, specTimeout(16*time.Minute))

	It("lets the guest migrate back to the old launcher", func(ctx context.Context) {
		expectMigrates(ctx, previous)
	}, specTimeout(8*time.Minute))

	It("by the KubeVirt object stops at a broken agent, and is taken back by one change of it", func(ctx context.Context) {
		kubectl(ctx, prerequisites(presentManifests), "apply", "--server-side", "-f", "-")
		expectUndisturbed(ctx, guests, func() {
			setVersion(ctx, brokenVersion)
			expectStopsAtAgent(ctx, previous)
			setVersion(ctx, "")
			expectRolledOut(ctx, previous)
		})
	}, specTimeout(20*time.Minute))

	It("replaces all components by the KubeVirt object", func(ctx context.Context) {
		if !hasBroker(previousManifests) || !apart {
			Skip("virt-controller of a version without virt-broker, or with one container of it, cannot install what needs three")
		}
		expectUndisturbed(ctx, guests, func() {
			setVersion(ctx, imageTag)
			expectRolledOut(ctx, imageTag)
		})
		for _, n := range guests {
			n.expectAllCounted()
		}
	}, specTimeout(16*time.Minute))
})

func launcherImage(version string) string { return registry + "/virt-launcher:" + version }

// install applies manifests as a user does, and waits until all components have their version.
func install(ctx context.Context, manifests, version string) {
	GinkgoHelper()
	start := time.Now()
	applyManifests(ctx, manifests)
	expectRolledOut(ctx, version)
	reportTime("all components were replaced by those of "+version, start)
}

// applyManifests applies manifests. If the previous release has webhooks with fixed paths, they conflict with the
// secret ones that this commit's virt-controller has written.
func applyManifests(ctx context.Context, manifests string) {
	GinkgoHelper()
	arguments := []string{"apply", "--server-side", "-f", filepath.Join(installers, manifests)}
	if manifests == previousManifests {
		arguments = append(arguments, "--force-conflicts")
	}
	kubectl(ctx, "", arguments...)
}

// expectUndisturbed changes the installation, and checks that guests keep their Pods, continue counting, and can be
// paused.
func expectUndisturbed(ctx context.Context, guests []*migratingGuest, change func()) {
	GinkgoHelper()
	pods := map[string]types.UID{}
	for _, n := range guests {
		pods[n.name] = expectOneLauncher(ctx, n.instance).UID
	}
	change()
	for _, n := range guests {
		expectSameLauncher(ctx, n.instance, pods[n.name])
		n.expectCounts(ctx)
		expectVirtctl(ctx, "pause", "-n", n.namespace, "vm", n.name)
		expectPrintable(ctx, n.namespace, n.name, v1.VirtualMachineStatusPaused)
		expectVirtctl(ctx, "unpause", "-n", n.namespace, "vm", n.name)
		expectReady(ctx, n.namespace, n.name)
		n.expectCounts(ctx)
		expectSameLauncher(ctx, n.instance, pods[n.name])
	}
}

// hasBroker reports whether a version has virt-broker.
func hasBroker(manifests string) bool {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(installers, manifests))
	Expect(err).NotTo(HaveOccurred())
	return strings.Contains(string(text), "VIRT_BROKER_IMAGE")
}

// hasProgramsApart reports whether the virt-broker that is installed has a container for each of its programs, with a
// socket of its own.
func hasProgramsApart(ctx context.Context) bool {
	GinkgoHelper()
	ds := &appsv1.DaemonSet{}
	err := k8s.Get(ctx, client.ObjectKey{Namespace: "kubevirt", Name: "virt-broker"}, ds)
	Expect(client.IgnoreNotFound(err)).NotTo(HaveOccurred())
	return slices.ContainsFunc(ds.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Name == string(brokerapi.NetworkBroker)
	})
}

// prerequisites returns those of a version's manifests that have to be applied before imageTag changes, according to
// docs/upgrade.md.
func prerequisites(manifests string) string {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(installers, manifests))
	Expect(err).NotTo(HaveOccurred())
	kinds := []string{"CustomResourceDefinition", "ServiceAccount", "Role", "RoleBinding", "ClusterRole",
		"ClusterRoleBinding",
		"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "PriorityClass"}
	const separator = "\n---\n"
	documents := slices.DeleteFunc(strings.Split(string(text), separator), func(document string) bool {
		object := metav1.TypeMeta{}
		Expect(yaml.Unmarshal([]byte(document), &object)).To(Succeed())
		return !slices.Contains(kinds, object.Kind)
	})
	Expect(documents).NotTo(BeEmpty())
	return strings.Join(documents, separator)
}
