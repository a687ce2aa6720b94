// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// debianUserData is an ordinary cloud-config: an account with a password and a command at the first boot.
const debianUserData = `#cloud-config
password: vireo
chpasswd: {expire: false}
ssh_pwauth: true
runcmd:
  - [sh, -c, "echo CLOUD-INIT-RAN > /var/lib/vireo-marker"]
`

var _ = Describe("A Debian with cloud-init, guest agent and sshd", func() {
	It("is configured by cloud-init, found by SSH from another Pod and known by its agent", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		peer := startPeer(ctx, namespace, "peer", "", "serve")
		create(ctx, makeVM(namespace, "debian", withImage(image("guest-debian")), withMemory("512Mi"), withUserData(debianUserData)))
		instance := expectReady(ctx, namespace, "debian")
		ip := instance.Status.Interfaces[0].IP
		expectExec(ctx, peer, debianTimeout, ContainSubstring("CLOUD-INIT-RAN"),
			"/tools", "ssh", ip, "cat", "/var/lib/vireo-marker")

		Eventually(func(g Gomega) {
			now := vmi(ctx, namespace, "debian")
			g.Expect(condition(now, v1.VirtualMachineInstanceAgentConnected)).To(HaveField("Status", corev1.ConditionTrue))
			g.Expect(now.Status.GuestOSInfo.ID).To(Equal("debian"))
		}).WithContext(ctx).WithTimeout(debianTimeout).WithPolling(2 * time.Second).Should(Succeed())
	}, SpecTimeout(25*time.Minute))
})
