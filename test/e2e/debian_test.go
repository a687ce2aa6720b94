// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net"
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

// debianUserData returns an ordinary cloud-config: an account with a password and a key, and a command at the first
// boot.
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

// makeKey creates an SSH key: a file with the private key, and the public key as a line of authorized_keys.
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

// udpEcho responds to each datagram at a port of the guest, vsockEcho to each connection at a port of VSOCK.
const (
	udpEcho = `
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 9999))
while True:
    text, sender = s.recvfrom(999)
    s.sendto(b'ECHO ' + text, sender)`
	vsockEcho = `
s = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
s.bind((socket.VMADDR_CID_ANY, 9999))
s.listen()
while True:
    client, _ = s.accept()
    client.sendall(b'ECHO ' + client.recv(999))
    client.close()`
)

// inBackground returns a command that starts a Python program in the background.
func inBackground(program string) string {
	return `setsid -f python3 -c "import socket` + program + `" </dev/null >/dev/null 2>&1`
}

// hasVSOCK reports whether the kernel supports VSOCK for guests. That is known only if the nodes run on this host.
func hasVSOCK() bool {
	_, err := os.Stat("/dev/vhost-vsock")
	return err == nil && os.Getenv("VIREO_CLUSTER") != ""
}

// This guest takes minutes to boot, so it is created first and only once, while other specs run in parallel.
var _ = Describe("A Debian with cloud-init, guest agent and sshd", Ordered, ContinueOnFailure, SpecPriority(10),
	extended(1), func() {
		const name = "debian"
		var (
			namespace string
			address   string
			access    []string
		)
		BeforeAll(func(ctx context.Context) {
			namespace = newNamespace(ctx)
			key, public := makeKey()
			access = []string{"-n", namespace, "-i", key, "--known-hosts="}
			manifest := expectVirtctl(ctx, "create", "vm", "--name="+name, "--memory=512Mi",
				"--volume-containerdisk=src:"+image("guest-debian"), "--termination-grace-period=20",
				"--cloud-init-user-data="+base64.StdEncoding.EncodeToString([]byte(debianUserData(public))))
			if hasVSOCK() {
				enableGate(ctx, "VSOCK")
				manifest = strings.Replace(manifest, "devices: {}", "devices: {autoattachVSOCK: true}", 1)
			}
			Expect(kubectl(ctx, manifest, "apply", "-n", namespace, "-f", "-")).
				To(ContainSubstring("virtualmachine.kubevirt.io/debian created"))
			address = expectReady(ctx, namespace, name).Status.Interfaces[0].IP
		}, nodeTimeout(5*time.Minute))
		AfterEach(func(ctx context.Context) { dumpFailed(ctx, namespace) }, nodeTimeout(time.Minute))

		It("is configured by cloud-init, and accepts SSH from a Pod", func(ctx context.Context) {
			peer := startPeer(ctx, namespace, "peer", "", "serve")
			expectExec(ctx, peer, debianTimeout, ContainSubstring("CLOUD-INIT-RAN"),
				"/tools", "ssh", address, "cat", "/var/lib/vireo-marker")
		}, specTimeout(15*time.Minute))

		It("reports its operating system with the guest agent", func(ctx context.Context) {
			Eventually(func(g Gomega) {
				now := vmi(ctx, namespace, name)
				g.Expect(condition(now, v1.VirtualMachineInstanceAgentConnected)).To(HaveField("Status", corev1.ConditionTrue))
				g.Expect(now.Status.GuestOSInfo.ID).To(Equal("debian"))
			}).WithContext(ctx).WithTimeout(debianTimeout).WithPolling(2 * time.Second).Should(Succeed())
			Expect(expectVirtctl(ctx, "guestosinfo", "-n", namespace, name)).To(ContainSubstring("Debian GNU/Linux"))
		}, specTimeout(15*time.Minute))

		// runSSH runs a command in the guest from outside of the cluster.
		runSSH := func(ctx context.Context, command string) string {
			GinkgoHelper()
			return expectVirtctl(ctx, append([]string{"ssh", "-c", command, "debian@vmi/" + name}, access...)...)
		}

		It("accepts SSH with a key from outside of the cluster, and copies of files in both directions",
			func(ctx context.Context) {
				Expect(runSSH(ctx, "cat /var/lib/vireo-marker; id -un")).
					To(And(ContainSubstring("CLOUD-INIT-RAN"), ContainSubstring("debian")))
				uploaded, downloaded := filepath.Join(GinkgoT().TempDir(), "there"), filepath.Join(GinkgoT().TempDir(), "back")
				Expect(os.WriteFile(uploaded, []byte(strings.Repeat("vireo ", 100_000)), 0o600)).To(Succeed())
				expectVirtctl(ctx, append([]string{"scp", uploaded, "debian@vmi/debian:/tmp/copy"}, access...)...)
				expectVirtctl(ctx, append([]string{"scp", "debian@vmi/debian:/tmp/copy", downloaded}, access...)...)
				copied, err := os.ReadFile(downloaded)
				Expect(err).NotTo(HaveOccurred())
				Expect(string(copied)).To(Equal(strings.Repeat("vireo ", 100_000)))
			}, specTimeout(5*time.Minute))

		It("receives datagrams over port-forward, and each sender gets its own response", func(ctx context.Context) {
			runSSH(ctx, inBackground(udpEcho))
			at, _ := forward(ctx, namespace, name, "udp/:9999")
			for _, sender := range []string{"one", "two"} {
				connection, err := (&net.Dialer{}).DialContext(ctx, "udp", at)
				Expect(err).NotTo(HaveOccurred())
				DeferCleanup(connection.Close)
				Eventually(func(g Gomega) { // a datagram may be lost
					_, err := connection.Write([]byte(sender))
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(connection.SetReadDeadline(time.Now().Add(5 * time.Second))).To(Succeed())
					response := make([]byte, 100)
					n, err := connection.Read(response)
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(string(response[:n])).To(Equal("ECHO " + sender))
				}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(time.Second).Should(Succeed())
			}
		}, specTimeout(4*time.Minute))

		It("accepts connections over VSOCK", func(ctx context.Context) {
			if !hasVSOCK() {
				Skip("no /dev/vhost-vsock: this host's kernel has no vhost_vsock, or the nodes run elsewhere")
			}
			runSSH(ctx, inBackground(vsockEcho))
			at, _ := forward(ctx, namespace, name, ":9999", "--vsock", "--vsock-tls=false")
			Eventually(func(g Gomega) {
				connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
				g.Expect(err).NotTo(HaveOccurred())
				defer func() { _ = connection.Close() }()
				_, err = connection.Write([]byte("one"))
				g.Expect(err).NotTo(HaveOccurred())
				response, err := io.ReadAll(io.LimitReader(connection, 100))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(string(response)).To(Equal("ECHO one"))
			}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(time.Second).Should(Succeed())
		}, specTimeout(4*time.Minute))
	})
