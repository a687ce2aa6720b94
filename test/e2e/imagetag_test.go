// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// The tag refers to different images on two nodes, as if it had been moved between their pulls.
var _ = Describe("A guest whose image has another content on the target", extended(1), func() {
	n := &migratingGuest{name: "tagged"}

	It("stays on the source with a reason, and migrates when the images are the same again", func(ctx context.Context) {
		needLocalNodes()
		all := nodes(ctx)
		if len(all) < 2 {
			Skip("migrations need two nodes")
		}
		tag := image("tagged")
		for _, node := range all {
			tagImage(ctx, node, image("guest-small"), tag)
		}
		n.namespace = newNamespace(ctx)
		create(ctx, makeVM(n.namespace, n.name, withImage(tag)))
		n.instance = expectReady(ctx, n.namespace, n.name)
		other := all[slices.IndexFunc(all, func(node string) bool { return node != n.instance.Status.NodeName })]

		tagImage(ctx, other, image("guest-debian"), tag)
		n.migrate(ctx)
		Eventually(func(g Gomega) {
			state := vmi(ctx, n.namespace, n.name).Status.MigrationState
			g.Expect(state).NotTo(BeNil())
			g.Expect(state.Failed).To(BeTrue())
			g.Expect(state.FailureReason).To(
				And(ContainSubstring("containerdisks/kernelboot do not match"), ContainSubstring(tag)))
		}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
		after := vmi(ctx, n.namespace, n.name)
		Expect(after.Status.NodeName).To(Equal(n.instance.Status.NodeName))
		Expect(after.Status.Phase).To(Equal(v1.Running))
		Expect(n.events(ctx)).To(ContainSubstring("ContainerDiskFailedChecksum"))
		failed := after.Status.MigrationState.MigrationUID

		tagImage(ctx, other, image("guest-small"), tag)
		n.migrate(ctx)
		Eventually(func(g Gomega) {
			now := vmi(ctx, n.namespace, n.name)
			g.Expect(now.Status.MigrationState.MigrationUID).NotTo(Equal(failed))
			g.Expect(now.Status.NodeName).To(Equal(other))
		}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
	}, specTimeout(8*time.Minute))
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, n.namespace) }, nodeTimeout(time.Minute))
})

// tagImage adds another name to an image on a node, and removes that name from any other image.
func tagImage(ctx context.Context, node, from, to string) {
	GinkgoHelper()
	built, err := exec.CommandContext(ctx, "../../hack/tools/build.sh", "--path", "containerd").Output()
	Expect(err).NotTo(HaveOccurred())
	ctr := filepath.Join(strings.TrimSpace(string(built)), "ctr")
	out, err := exec.CommandContext(ctx, os.Getenv("VIREO_CLUSTER"), "exec", node, "--",
		ctr, "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io", "images", "tag", "--force", from,
		to).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
}
