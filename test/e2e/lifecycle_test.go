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

// guestShutdown is what the small guest writes when it is asked to power off.
const guestShutdown = "VIREO-GUEST-SHUTDOWN"

// powerOff powers the guest off from inside some seconds after it is up.
const powerOff = "#!/bin/sh\n(sleep 3; echo POWERING-OFF >/dev/console; poweroff -f) &\n"

// deafToPower is a guest that ignores the power button.
const deafToPower = "#!/bin/sh\ntouch /run/ignore-power-button; echo DEAF-NOW >/dev/console\n"

var _ = Describe("Stopping a guest", func() {
	It("lets the guest see a shutdown when its VM is halted", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "graceful", withGracePeriod(60)))
		instance := expectReady(ctx, namespace, "graceful")
		expectConsole(ctx, namespace, "graceful", bootTimeout, ContainSubstring(guestReady))
		log := followConsole(ctx, instance)
		setRunStrategy(ctx, namespace, "graceful", v1.RunStrategyHalted)
		Eventually(log).WithContext(ctx).WithTimeout(bootTimeout).Should(ContainSubstring(guestShutdown))
		expectGone(ctx, instance)
		expectStopped(ctx, namespace, "graceful")
	}, SpecTimeout(8*time.Minute))

	It("lets the guest see a shutdown when its Pod is deleted, and starts it again", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "evicted", withGracePeriod(60)))
		instance := expectReady(ctx, namespace, "evicted")
		expectConsole(ctx, namespace, "evicted", bootTimeout, ContainSubstring(guestReady))
		log := followConsole(ctx, instance)
		Expect(k8s.Delete(ctx, launcherPod(ctx, instance))).To(Succeed())
		Eventually(log).WithContext(ctx).WithTimeout(bootTimeout).Should(ContainSubstring(guestShutdown))
		expectNewInstance(ctx, instance)
		expectReady(ctx, namespace, "evicted")
	}, SpecTimeout(8*time.Minute))

	It("destroys a guest that does not react when the grace period ends", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "deaf", withGracePeriod(8), withUserData(deafToPower)))
		instance := expectReady(ctx, namespace, "deaf")
		expectConsole(ctx, namespace, "deaf", bootTimeout, ContainSubstring("DEAF-NOW"))
		log := followConsole(ctx, instance)
		setRunStrategy(ctx, namespace, "deaf", v1.RunStrategyHalted)
		expectGone(ctx, instance)
		expectStopped(ctx, namespace, "deaf")
		Expect(log()).NotTo(ContainSubstring(guestShutdown))
	}, SpecTimeout(8*time.Minute))
})

var _ = Describe("A guest that powers itself off", func() {
	It("is started again under Always", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "always", withUserData(powerOff)))
		instance := expectReady(ctx, namespace, "always")
		expectNewInstance(ctx, instance)
	}, SpecTimeout(8*time.Minute))

	It("stays Succeeded under Manual", extended(1), func(ctx context.Context) {
		namespace := newNamespace(ctx)
		// Manual starts nothing by itself: the VMI runs first and is adopted.
		template := makeVM(namespace, "manual", withUserData(powerOff)).Spec.Template
		alone := &v1.VirtualMachineInstance{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
		alone.Namespace, alone.Name = namespace, "manual"
		create(ctx, alone, makeVM(namespace, "manual", withRunStrategy(v1.RunStrategyManual), withUserData(powerOff)))
		expectPhase(ctx, namespace, "manual", v1.Succeeded)
		Consistently(func() *v1.VirtualMachineInstance { return vmi(ctx, namespace, "manual") }).
			WithContext(ctx).WithTimeout(5 * time.Second).WithPolling(pollInterval).
			Should(And(HaveField("UID", alone.UID), HaveField("Status.Phase", v1.Succeeded)))
		expectStopped(ctx, namespace, "manual")
	}, SpecTimeout(8*time.Minute))
})

// expectStopped waits until a VM says that it is stopped.
func expectStopped(ctx context.Context, namespace, name string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		vm := &v1.VirtualMachine{}
		g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, vm)).To(Succeed())
		g.Expect(vm.Status.PrintableStatus).To(Equal(v1.VirtualMachineStatusStopped))
		g.Expect(vm.Status.Ready).To(BeFalse())
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
}
