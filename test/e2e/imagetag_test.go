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

// A tag that means one image on one node and another one on the other: it was moved between the two pulls.
var _ = Describe("A guest whose image's tag was moved", func() {
	n := &nomad{name: "tagged"}

	It("stays where it is, says why, and moves once the tag is back", func(ctx context.Context) {
		needLocalNodes()
		all := nodes(ctx)
		if len(all) < 2 {
			Skip("a guest needs two nodes to move between")
		}
		moved := image("tagged")
		for _, node := range all {
			tagImage(ctx, node, image("guest-small"), moved)
		}
		n.namespace = newNamespace(ctx)
		create(ctx, makeVM(n.namespace, n.name, withImage(moved)))
		n.instance = expectReady(ctx, n.namespace, n.name)
		other := all[slices.IndexFunc(all, func(node string) bool { return node != n.instance.Status.NodeName })]

		tagImage(ctx, other, image("guest-debian"), moved)
		n.migrate(ctx)
		Eventually(func(g Gomega) {
			state := vmi(ctx, n.namespace, n.name).Status.MigrationState
			g.Expect(state).NotTo(BeNil())
			g.Expect(state.Failed).To(BeTrue())
			g.Expect(state.FailureReason).To(And(ContainSubstring("containerdisks/kernelboot do not match"), ContainSubstring(moved)))
		}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
		stayed := vmi(ctx, n.namespace, n.name)
		Expect(stayed.Status.NodeName).To(Equal(n.instance.Status.NodeName))
		Expect(stayed.Status.Phase).To(Equal(v1.Running))
		Expect(n.events(ctx)).To(ContainSubstring("ContainerDiskFailedChecksum"))
		failed := stayed.Status.MigrationState.MigrationUID

		tagImage(ctx, other, image("guest-small"), moved)
		n.migrate(ctx)
		Eventually(func(g Gomega) {
			now := vmi(ctx, n.namespace, n.name)
			g.Expect(now.Status.MigrationState.MigrationUID).NotTo(Equal(failed))
			g.Expect(now.Status.NodeName).To(Equal(other))
		}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
	}, SpecTimeout(8*time.Minute))
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, n.namespace) }, NodeTimeout(time.Minute))
})

// tagImage gives an image of a node another name, which it takes from the image that had it.
func tagImage(ctx context.Context, node, from, to string) {
	GinkgoHelper()
	built, err := exec.CommandContext(ctx, "../../hack/tools/build.sh", "--path", "containerd").Output()
	Expect(err).NotTo(HaveOccurred())
	ctr := filepath.Join(strings.TrimSpace(string(built)), "ctr")
	out, err := exec.CommandContext(ctx, os.Getenv("VIREO_CLUSTER"), "exec", node, "--",
		ctr, "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io", "images", "tag", "--force", from, to).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
}
