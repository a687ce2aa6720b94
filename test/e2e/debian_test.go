// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// debianUserData is an ordinary cloud-config: an account with a password and a key, and a command at the first boot.
func debianUserData(key string) string {
	return fmt.Sprintf(`#cloud-config
password: vireo
chpasswd: {expire: false}
ssh_pwauth: true
ssh_authorized_keys: [%q]
runcmd:
  - [sh, -c, "echo CLOUD-INIT-RAN > /var/lib/vireo-marker"]
`, key)
}

// makeKey makes an SSH key: a file of the test with the private half, and the public one as a line.
func makeKey() (file, public string) {
	GinkgoHelper()
	publicKey, private, err := ed25519.GenerateKey(rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	block, err := ssh.MarshalPrivateKey(private, "")
	Expect(err).NotTo(HaveOccurred())
	file = filepath.Join(GinkgoT().TempDir(), "id_ed25519")
	Expect(os.WriteFile(file, pem.EncodeToMemory(block), 0o600)).To(Succeed())
	line, err := ssh.NewPublicKey(publicKey)
	Expect(err).NotTo(HaveOccurred())
	return file, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(line)))
}

var _ = Describe("A Debian with cloud-init, guest agent and sshd", func() {
	It("is configured by cloud-init, found by SSH and known by its agent", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		peer := startPeer(ctx, namespace, "peer", "", "serve")
		key, public := makeKey()
		create(ctx, makeVM(namespace, "debian", withImage(image("guest-debian")), withMemory("512Mi"),
			withUserData(debianUserData(public))))
		instance := expectReady(ctx, namespace, "debian")
		ip := instance.Status.Interfaces[0].IP
		expectExec(ctx, peer, debianTimeout, ContainSubstring("CLOUD-INIT-RAN"),
			"/tools", "ssh", ip, "cat", "/var/lib/vireo-marker")

		Eventually(func(g Gomega) {
			now := vmi(ctx, namespace, "debian")
			g.Expect(condition(now, v1.VirtualMachineInstanceAgentConnected)).To(HaveField("Status", corev1.ConditionTrue))
			g.Expect(now.Status.GuestOSInfo.ID).To(Equal("debian"))
		}).WithContext(ctx).WithTimeout(debianTimeout).WithPolling(2 * time.Second).Should(Succeed())
		Expect(expectVirtctl(ctx, "guestosinfo", "-n", namespace, "debian")).To(ContainSubstring("Debian GNU/Linux"))

		By("logging in with a key, from outside of the cluster")
		access := []string{"-n", namespace, "-i", key, "--known-hosts="}
		Expect(expectVirtctl(ctx, append([]string{"ssh", "-c", "cat /var/lib/vireo-marker; id -un", "debian@vmi/debian"}, access...)...)).
			To(And(ContainSubstring("CLOUD-INIT-RAN"), ContainSubstring("debian")))
		By("copying a file there and back")
		there, back := filepath.Join(GinkgoT().TempDir(), "there"), filepath.Join(GinkgoT().TempDir(), "back")
		Expect(os.WriteFile(there, []byte(strings.Repeat("vireo ", 100_000)), 0o600)).To(Succeed())
		expectVirtctl(ctx, append([]string{"scp", there, "debian@vmi/debian:/tmp/copy"}, access...)...)
		expectVirtctl(ctx, append([]string{"scp", "debian@vmi/debian:/tmp/copy", back}, access...)...)
		copied, err := os.ReadFile(back)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(copied)).To(Equal(strings.Repeat("vireo ", 100_000)))
	}, SpecTimeout(25*time.Minute))
})
