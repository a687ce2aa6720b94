// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// guestfsCommands write a file with guestfish and read it with virt-cat. tr makes the text differ from the command,
// which the terminal echoes.
const guestfsCommands = `guestfish --format=raw -a %[1]s run : part-disk /dev/sda mbr : mkfs ext4 /dev/sda1 : ` +
	`mount /dev/sda1 / : write /text guestfish-wrote-this && virt-cat --format=raw -a %[1]s -m /dev/sda1 /text | tr a-z A-Z; exit`

// The image is a complete Debian and libguestfs boots a small guest for each command, so the specs are slow.
var _ = Describe("virtctl guestfs", slow(), func() {
	DescribeTable("reads and writes the disk on a claim",
		func(ctx context.Context, mode corev1.PersistentVolumeMode, at, disk, prepare string) {
			namespace := newNamespace(ctx)
			create(ctx, makeClaim(namespace, "disk", mode))
			shell := startVirtctl(ctx, "guestfs", "disk", "--namespace="+namespace, "--image="+image("libguestfs-tools"),
				"--kvm=false", "--fsGroup=107")
			Eventually(shell.Err).WithContext(ctx).WithTimeout(bootTimeout).Should(gbytes.Say("The PVC is at %s", at))
			_, err := fmt.Fprintf(shell.keys, prepare+guestfsCommands+"\n", disk)
			Expect(err).NotTo(HaveOccurred())
			Eventually(shell.Out).WithContext(ctx).WithTimeout(2 * bootTimeout).Should(gbytes.Say("GUESTFISH-WROTE-THIS"))
			Eventually(shell.Session).WithContext(ctx).WithTimeout(shortTimeout).Should(gexec.Exit(0))
			pods := &corev1.PodList{}
			Expect(k8s.List(ctx, pods, client.InNamespace(namespace))).To(Succeed())
			for i := range pods.Items {
				Expect(pods.Items[i].DeletionTimestamp).NotTo(BeNil(), "%s was not deleted", pods.Items[i].Name)
			}
		},
		Entry("with a block device", corev1.PersistentVolumeBlock, "/dev/vda", "/dev/vda", ""),
		Entry("with a file system", corev1.PersistentVolumeFilesystem, "/disk", "/disk/disk.img", "truncate -s 64M /disk/disk.img; "),
	)
})
