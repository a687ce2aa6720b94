// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"regexp"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// countsOnDisk makes a guest count on its first SCSI disk, and print the count. The count is from the disk each time.
const countsOnDisk = `#!/bin/sh
while sleep 1; do
	if [ -b /dev/sda ]; then
		n=$(dd if=/dev/sda bs=512 count=1 iflag=direct 2>/dev/null | tr -cd 0-9)
		n=$((${n:-0} + 1))
		printf '%-512d' $n | dd of=/dev/sda bs=512 oflag=direct 2>/dev/null && echo "VIREO-COUNT $n" >/dev/console
	else
		echo VIREO-NO-DISK >/dev/console
	fi
done &
`

var printedCount = regexp.MustCompile(`VIREO-COUNT (\d+)|VIREO-NO-DISK`)

// Serial because replaced agents end the streams of other specs' guests.
var _ = Describe("A volume of a running VM", extended(3), kvmLinux(), Serial, func() {
	const name, claim = "plugs", "data"
	var namespace string

	// count returns what the guest printed last, or -1 if it has no disk.
	count := func(ctx context.Context) int {
		all := printedCount.FindAllStringSubmatch(console(ctx, namespace, name), -1)
		if len(all) == 0 || all[len(all)-1][1] == "" {
			return -1
		}
		n, _ := strconv.Atoi(all[len(all)-1][1])
		return n
	}
	expectCount := func(ctx context.Context, matcher any) {
		GinkgoHelper()
		Eventually(count).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Satisfy(matcher))
	}
	above := func(n int) func(int) bool { return func(is int) bool { return is > n } }
	attachmentPods := func(ctx context.Context) []corev1.Pod {
		pods := &corev1.PodList{}
		Expect(k8s.List(ctx, pods, client.InNamespace(namespace), client.MatchingLabels{v1.AppLabel: "hotplug-disk"})).
			To(Succeed())
		return pods.Items
	}
	plug := func(ctx context.Context) {
		GinkgoHelper()
		expectVirtctl(ctx, "addvolume", name, "--namespace", namespace, "--volume-name", claim)
		Eventually(func() []v1.VolumeStatus { return vmi(ctx, namespace, name).Status.VolumeStatus }).WithContext(ctx).
			WithTimeout(bootTimeout).WithPolling(pollInterval).Should(ContainElement(And(
			HaveField("Name", claim), HaveField("Phase", v1.VolumeReady), HaveField("Target", "sda"),
			HaveField("HotplugVolume.AttachPodUID", Not(BeEmpty())))))
	}
	unplug := func(ctx context.Context) {
		GinkgoHelper()
		expectVirtctl(ctx, "removevolume", name, "--namespace", namespace, "--volume-name", claim)
		Eventually(func() []v1.VolumeStatus { return vmi(ctx, namespace, name).Status.VolumeStatus }).WithContext(ctx).
			WithTimeout(bootTimeout).WithPolling(pollInterval).ShouldNot(ContainElement(HaveField("Name", claim)))
		expectCount(ctx, func(n int) bool { return n == -1 })
		Eventually(attachmentPods).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(BeEmpty())
	}

	It("is plugged, keeps its data, survives a new agent, and is unplugged, in the same Pod", func(ctx context.Context) {
		namespace = newNamespace(ctx)
		create(ctx, makeClaim(namespace, claim, corev1.PersistentVolumeBlock),
			makeVM(namespace, name, withUserData(countsOnDisk)))
		before := launcherPod(ctx, expectReady(ctx, namespace, name))
		Eventually(func() string { return console(ctx, namespace, name) }).WithContext(ctx).WithTimeout(
			bootTimeout).WithPolling(pollInterval).
			Should(ContainSubstring("VIREO-NO-DISK"))

		By("plugging it")
		plug(ctx)
		expectCount(ctx, above(2))
		Expect(attachmentPods(ctx)).To(HaveLen(1))

		By("replacing the agent")
		kubectl(ctx, "", "delete", "pods", "-n", "kubevirt", "-l", "kubevirt.io=virt-handler", "--wait")
		expectCount(ctx, above(count(ctx)+3))

		By("unplugging it, and plugging it again")
		unplug(ctx)
		last := 3
		plug(ctx)
		expectCount(ctx, above(last))
		unplug(ctx)
		Expect(launcherPod(ctx, vmi(ctx, namespace, name)).UID).To(Equal(before.UID))
	}, specTimeout(10*time.Minute))
})
