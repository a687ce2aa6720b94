// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/migration/upgradecheck"
)

// One guest migrates to the previous launcher and back. Both are migrations between two versions, with the same agents.
// Another guest cannot migrate. The previous launcher is first, so that the cluster is unchanged afterwards.
var _ = Describe("Guests after a change of the launcher image", Serial, extended(3), func() {
	It("are counted as outdated, reported if they cannot migrate, and migrated to the new launcher without losing a count",
		func(ctx context.Context) {
			needLocalNodes()
			if len(nodes(ctx)) < 2 {
				Skip("migrations need two nodes")
			}
			present, previous := image("virt-launcher"), image("virt-launcher-previous")
			u := startUpgrade(ctx, present)
			first := u.launcher(ctx, present)

			By("reporting before the upgrade which guest cannot migrate, and why")
			u.expectStuck(ctx)

			By("changing the launcher, without an update method")
			changed := time.Now()
			setLauncher(ctx, previous)
			u.expectOutdated(ctx, u.name, "stuck")
			reportTime("guests were labeled as outdated", changed)
			Expect(u.launcher(ctx, present)).To(Equal(first), "no migration was requested")

			By("enabling the update method LiveMigrate")
			times := u.expectMigration(ctx, func(ctx context.Context) { setMethods(ctx, v1.WorkloadUpdateMethodLiveMigrate) })
			GinkgoWriter.Printf("to the previous launcher: %+v\n", times)
			u.expectOutdated(ctx, "stuck")
			second := u.launcher(ctx, previous)
			u.expectCounts(ctx)
			Expect(second.machine).To(Equal(first.machine), "the guest's machine type has changed")

			By("changing the launcher back")
			times = u.expectMigration(ctx, func(ctx context.Context) { setLauncher(ctx, present) })
			GinkgoWriter.Printf("to the present launcher: %+v\n", times)
			u.expectOutdated(ctx)
			Expect(u.launcher(ctx, present)).To(Equal(first))
			u.expectCounts(ctx)
			u.expectAllCounted()
			Expect(vmi(ctx, u.namespace, "stuck").UID).To(Equal(u.stuck))
			u.expectMigrations(ctx, 2)
			AddReportEntry("launchers",
				fmt.Sprintf("present %s\nprevious %s, of commit %s", first.program, second.program, second.commit))
		}, specTimeout(6*time.Minute))
})

// upgrade contains a guest that can migrate, and another one that cannot.
type upgrade struct {
	migratingGuest
	stuck types.UID
}

// startUpgrade starts both guests, and restores the cluster's configuration afterwards.
func startUpgrade(ctx context.Context, present string) *upgrade {
	GinkgoHelper()
	u := &upgrade{migratingGuest: countingGuest("mover")}
	u.namespace = newNamespace(ctx)
	before := kubeVirt(ctx).Spec.WorkloadUpdateStrategy
	DeferCleanup(func(ctx context.Context) {
		setLauncher(ctx, present)
		setMethods(ctx, before.WorkloadUpdateMethods...)
		kubectl(ctx, "", "rollout", "status", "-n", "kubevirt", "deployment/virt-controller", "--timeout=3m")
	}, nodeTimeout(4*time.Minute))
	create(ctx, makeVM(u.namespace, u.name, withEvictionStrategy(v1.EvictionStrategyLiveMigrate),
		withUserData("#!/bin/sh\n"+counter)),
		makeVM(u.namespace, "stuck", withBridge))
	u.instance = expectReady(ctx, u.namespace, u.name)
	u.stuck = expectReady(ctx, u.namespace, "stuck").UID
	u.followCounts(ctx)
	return u
}

// expectStuck checks how the command and the KubeVirt object report the guest that cannot migrate.
func (u *upgrade) expectStuck(ctx context.Context) {
	GinkgoHelper()
	text, code := runVirtctl(ctx, "adm", "upgrade-check", "-n", u.namespace)
	Expect(code).To(Equal(2), text)
	Expect(text).To(And(MatchRegexp(`(?m)^%s +stuck +\S+ +false +Stays +InterfaceNotLiveMigratable +\S`, u.namespace),
		ContainSubstring("1 of 2 running guests cannot be migrated."), Not(ContainSubstring(u.name))))
	report := struct{ Guests []upgradecheck.Finding }{}
	text, code = runVirtctl(ctx, "adm", "upgrade-check", "-n", u.namespace, "--all", "-o", "json")
	Expect(code).To(Equal(2), text)
	Expect(json.NewDecoder(strings.NewReader(text)).Decode(&report)).To(Succeed(), text)
	Expect(report.Guests).To(ConsistOf(
		And(HaveField("Name", u.name), HaveField("Migratable", true), HaveField("Problems", BeEmpty())),
		And(HaveField("Name", "stuck"), HaveField("Migratable", false), HaveField("OnUpgrade", upgradecheck.Stays))))
	Eventually(kubeVirt).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
		Should(HaveField("Status.Conditions",
			ContainElement(And(HaveField("Type", v1.KubeVirtConditionWorkloadsMigratable), HaveField("Message", And(
				ContainSubstring(u.namespace+"/stuck (InterfaceNotLiveMigratable: "), Not(ContainSubstring("/"+u.name))))))))
}

// expectOutdated waits until these guests and no others are labeled, and counted.
func (u *upgrade) expectOutdated(ctx context.Context, names ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		list := &v1.VirtualMachineInstanceList{}
		g.Expect(k8s.List(ctx, list, client.HasLabels{v1.OutdatedLauncherImageLabel})).To(Succeed())
		labeled := []string{}
		for i := range list.Items {
			labeled = append(labeled, list.Items[i].Name)
		}
		g.Expect(labeled).To(ConsistOf(names))
		g.Expect(kubeVirt(ctx).Status.OutdatedVirtualMachineInstanceWorkloads).To(HaveValue(Equal(len(names))))
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(pollInterval).Should(Succeed())
}

// expectMigrations checks that there were n migrations, and that all succeeded. A migration that started before its
// agents were replaced would have failed.
func (u *upgrade) expectMigrations(ctx context.Context, n int) {
	GinkgoHelper()
	list := &v1.VirtualMachineInstanceMigrationList{}
	Expect(k8s.List(ctx, list, client.InNamespace(u.namespace))).To(Succeed())
	Expect(list.Items).To(And(HaveLen(n), HaveEach(HaveField("Status.Phase", v1.MigrationSucceeded))))
}

// launcherFacts are properties of a launcher.
type launcherFacts struct{ program, commit, machine string }

// launcher checks that the guest's only launcher has an image, and returns its properties.
func (n *migratingGuest) launcher(ctx context.Context, image string) launcherFacts {
	GinkgoHelper()
	pod := expectOneLauncher(ctx, n.instance)
	Expect(pod.Spec.Containers).To(ContainElement(And(HaveField("Name", "compute"), HaveField("Image", image))))
	now := vmi(ctx, n.namespace, n.name)
	Expect(now.Status.LauncherContainerImageVersion).To(Equal(image))
	Expect(now.Status.Machine).To(HaveField("Type", MatchRegexp(`-\d+\.\d+$`)), "an unversioned machine type would change in a migration")

	directory := filepath.Join("/proc", strconv.Itoa(podProcess(pod, "virt-launcher").PID))
	program, err := os.ReadFile(filepath.Join(directory, "exe"))
	Expect(err).NotTo(HaveOccurred())
	// The image of the present launcher does not contain the file.
	commit, _ := os.ReadFile(filepath.Join(directory, "root/usr/share/vireo/launcher-commit"))
	return launcherFacts{fmt.Sprintf("%.16x", sha256.Sum256(program)), strings.TrimSpace(string(commit)),
		now.Status.Machine.Type}
}

// kubeVirt returns the only KubeVirt object.
func kubeVirt(ctx context.Context) *v1.KubeVirt {
	GinkgoHelper()
	list := &v1.KubeVirtList{}
	Expect(k8s.List(ctx, list)).To(Succeed())
	Expect(list.Items).To(HaveLen(1))
	return &list.Items[0]
}

// setLauncher restarts virt-controller with another launcher image, as an upgrade does, and does not wait for it.
func setLauncher(ctx context.Context, image string) {
	GinkgoHelper()
	kubectl(ctx, "", "set", "env", "-n", "kubevirt", "deployment/virt-controller", "VIRT_LAUNCHER_IMAGE="+image)
}

func setMethods(ctx context.Context, methods ...v1.WorkloadUpdateMethod) {
	GinkgoHelper()
	patch, err := json.Marshal(
		map[string]any{"spec": map[string]any{"workloadUpdateStrategy": map[string]any{"workloadUpdateMethods": methods}}})
	Expect(err).NotTo(HaveOccurred())
	Expect(k8s.Patch(ctx, kubeVirt(ctx), client.RawPatch(types.MergePatchType, patch))).To(Succeed())
}
