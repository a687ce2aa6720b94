// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// guestShutdown is what the small guest writes when it shuts down on the power button.
const guestShutdown = "VIREO-GUEST-SHUTDOWN"

// powerOff makes the guest power itself off a few seconds after it has booted.
const powerOff = "#!/bin/sh\n(sleep 3; echo POWERING-OFF >/dev/console; poweroff -f) &\n"

// ignorePowerButton makes the guest ignore the power button.
const ignorePowerButton = "#!/bin/sh\ntouch /run/ignore-power-button; echo IGNORES-POWER-BUTTON >/dev/console\n"

var _ = Describe("Stopping a guest", func() {
	It("shuts the guest down when its VM becomes Halted", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "graceful", withGracePeriod(60)))
		instance := expectReady(ctx, namespace, "graceful")
		expectConsole(ctx, namespace, "graceful", bootTimeout, ContainSubstring(guestReady))
		log := followConsole(ctx, instance)
		setRunStrategy(ctx, namespace, "graceful", v1.RunStrategyHalted)
		Eventually(log).WithContext(ctx).WithTimeout(bootTimeout).Should(ContainSubstring(guestShutdown))
		expectGone(ctx, instance)
		expectStopped(ctx, namespace, "graceful")
	}, specTimeout(8*time.Minute))

	It("shuts the guest down when its Pod is deleted, and restarts it", extended(2), func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "evicted", withGracePeriod(60)))
		instance := expectReady(ctx, namespace, "evicted")
		expectConsole(ctx, namespace, "evicted", bootTimeout, ContainSubstring(guestReady))
		log := followConsole(ctx, instance)
		Expect(k8s.Delete(ctx, launcherPod(ctx, instance))).To(Succeed())
		Eventually(log).WithContext(ctx).WithTimeout(bootTimeout).Should(ContainSubstring(guestShutdown))
		expectNewInstance(ctx, instance)
		expectReady(ctx, namespace, "evicted")
	}, specTimeout(8*time.Minute))

	It("destroys a guest that does not shut down within the grace period", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "unresponsive", withGracePeriod(8), withUserData(ignorePowerButton)))
		instance := expectReady(ctx, namespace, "unresponsive")
		expectConsole(ctx, namespace, "unresponsive", bootTimeout, ContainSubstring("IGNORES-POWER-BUTTON"))
		log := followConsole(ctx, instance)
		setRunStrategy(ctx, namespace, "unresponsive", v1.RunStrategyHalted)
		expectGone(ctx, instance)
		expectStopped(ctx, namespace, "unresponsive")
		Expect(log()).NotTo(ContainSubstring(guestShutdown))
	}, specTimeout(8*time.Minute))
})

var _ = Describe("A guest that powers itself off", kvmLinux(), func() {
	It("is restarted with run strategy Always", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "always", withUserData(powerOff)))
		instance := expectReady(ctx, namespace, "always")
		expectNewInstance(ctx, instance)
	}, specTimeout(8*time.Minute))

	It("stays Succeeded with run strategy Manual", extended(1), func(ctx context.Context) {
		namespace := newNamespace(ctx)
		// With Manual the VM does not start by itself: the VMI runs first and is adopted.
		template := makeVM(namespace, "manual", withUserData(powerOff)).Spec.Template
		alone := &v1.VirtualMachineInstance{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
		alone.Namespace, alone.Name = namespace, "manual"
		create(ctx, alone, makeVM(namespace, "manual", withRunStrategy(v1.RunStrategyManual), withUserData(powerOff)))
		expectPhase(ctx, namespace, "manual", v1.Succeeded)
		Consistently(func() *v1.VirtualMachineInstance { return vmi(ctx, namespace, "manual") }).
			WithContext(ctx).WithTimeout(5 * time.Second).WithPolling(pollInterval).
			Should(And(HaveField("UID", alone.UID), HaveField("Status.Phase", v1.Succeeded)))
		expectStopped(ctx, namespace, "manual")
	}, specTimeout(8*time.Minute))
})

// expectStopped waits until a VM's printableStatus is Stopped.
func expectStopped(ctx context.Context, namespace, name string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		vm := &v1.VirtualMachine{}
		g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, vm)).To(Succeed())
		g.Expect(vm.Status.PrintableStatus).To(Equal(v1.VirtualMachineStatusStopped))
		g.Expect(vm.Status.Ready).To(BeFalse())
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
}
