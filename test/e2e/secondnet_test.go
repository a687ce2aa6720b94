// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// The network that all nodes of the local cluster share with this host.
const (
	secondNetwork = "second"
	hostBridge    = "vireo0"
	// guestAddress is used by no node (10.200.0.11 and up to twenty of them) and not by this host.
	guestAddress = "10.200.0.201"
	echoPort     = 7
)

// The network over which guests migrate, on the same bridge.
const (
	migrationNetwork = "wire"
	migrationSubnet  = "10.201.7.0/24"
)

// installSecondNetwork makes the second network available to the Pods of a namespace, until the spec ends.
func installSecondNetwork(ctx context.Context, namespace string) {
	GinkgoHelper()
	kubectl(ctx, "", "apply", "--server-side", "-f", "testdata/multus.yaml")
	defineNetwork(ctx, namespace, secondNetwork)
	multus := func(ctx context.Context, what string) {
		GinkgoHelper()
		out, err := exec.CommandContext(ctx, os.Getenv("VIREO_CLUSTER"), "multus", what).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
	}
	multus(ctx, "on")
	DeferCleanup(func(ctx context.Context) {
		multus(ctx, "off")
		kubectl(ctx, "", "delete", "--ignore-not-found", "-f", "testdata/multus.yaml")
	}, nodeTimeout(2*time.Minute))
	// containerd reloads the directory of CNI configurations with a delay.
	for i, node := range nodes(ctx) {
		tries := 0
		Eventually(func(g Gomega) {
			tries++
			pod := startPeer(ctx, namespace, fmt.Sprintf("probe-%d-%d", i, tries), node, "serve")
			g.Expect(pod.Annotations).To(HaveKey("k8s.v1.cni.cncf.io/network-status"))
			g.Expect(k8s.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
	}
}

// defineNetwork creates a definition of the second network.
func defineNetwork(ctx context.Context, namespace, name string) {
	GinkgoHelper()
	kubectl(ctx, fmt.Sprintf(`{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"name":%q,"namespace":%q},
		"spec":{"config":"{\"cniVersion\":\"1.0.0\",\"name\":\"%s\",\"type\":\"bridge\",\"bridge\":\"%s\",\"mtu\":1500}"}}`,
		name, namespace, name, secondNetwork), "apply", "-f", "-")
}

// useMigrationNetwork configures a separate network for migrations, until the spec ends. The nodes share its addresses,
// as they share this host's directories.
func useMigrationNetwork(ctx context.Context) {
	GinkgoHelper()
	folder, err := os.MkdirTemp("", "e2e-migrationNetwork-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(os.RemoveAll, folder)
	kubectl(ctx, fmt.Sprintf(`{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"name":%q,"namespace":"kubevirt"},
		"spec":{"config":"{\"cniVersion\":\"1.0.0\",\"name\":\"%s\",\"type\":\"bridge\",\"bridge\":\"%s\",\"mtu\":1500,`+
		`\"ipam\":{\"type\":\"host-local\",\"dataDir\":\"%s\",\"ranges\":[[{\"subnet\":\"%s\"}]]}}"}}`,
		migrationNetwork, migrationNetwork, secondNetwork, folder, migrationSubnet), "apply", "-f", "-")
	set := func(ctx context.Context, network string) {
		GinkgoHelper()
		kubectl(ctx, "", "patch", "-n", "kubevirt", "kubevirt/kubevirt", "--type=merge",
			"--patch", fmt.Sprintf(`{"spec":{"configuration":{"migrations":{"network":%s}}}}`, network))
		Eventually(func(g Gomega) {
			installed := &v1.KubeVirt{}
			g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: "kubevirt", Name: "kubevirt"}, installed)).To(Succeed())
			g.Expect(installed.Status.ObservedGeneration).To(HaveValue(Equal(installed.Generation)))
		}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
	}
	set(ctx, strconv.Quote(migrationNetwork))
	DeferCleanup(func(ctx context.Context) { set(ctx, "null") }, nodeTimeout(time.Minute))
}

// expectReceivedOverMigrationNetwork checks how many bytes each interface of the guest's Pod has received.
func expectReceivedOverMigrationNetwork(ctx context.Context, instance *v1.VirtualMachineInstance) {
	GinkgoHelper()
	received := receivedBy(processOf(ctx, instance, "qemu-system-x86_64").PID)
	GinkgoWriter.Printf("received: %v\n", received)
	// The guest's memory is larger than this, and everything else that a Pod receives is smaller.
	const guest = 8 << 20
	Expect(received).To(HaveKeyWithValue(v1.MigrationInterfaceName, BeNumerically(">", guest)))
	Expect(received).To(HaveKeyWithValue("eth0", BeNumerically("<", guest/2)))
}

// receivedBy returns the bytes that each interface of a process's network namespace has received.
func receivedBy(pid int) map[string]int64 {
	GinkgoHelper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid))
	Expect(err).NotTo(HaveOccurred())
	received := map[string]int64{}
	for _, line := range strings.Split(string(content), "\n") {
		name, figures, found := strings.Cut(line, ":")
		if fields := strings.Fields(figures); found && len(fields) > 0 {
			n, err := strconv.ParseInt(fields[0], 10, 64)
			Expect(err).NotTo(HaveOccurred())
			received[strings.TrimSpace(name)] = n
		}
	}
	return received
}

// withSecondNIC connects a VM to the second network; the guest configures its address there.
func withSecondNIC(vm *v1.VirtualMachine) {
	s := spec(vm)
	s.Domain.Devices.Interfaces = append(s.Domain.Devices.Interfaces, v1.Interface{
		Name: secondNetwork, InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}},
	})
	s.Networks = append(s.Networks, v1.Network{
		Name: secondNetwork, NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: secondNetwork}},
	})
}

// gaps measures the longest time between two responses.
type gaps struct {
	mu      sync.Mutex
	last    time.Time
	since   time.Time
	longest time.Duration
	signs   int
}

func (s *gaps) sign() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if length := now.Sub(s.last); !s.last.IsZero() && length > s.longest {
		s.longest, s.since = length, s.last
	}
	s.last = now
	s.signs++
}

// restart resets the longest gap, and returns it and its start.
func (s *gaps) restart() (since time.Time, longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	since, longest = s.since, s.longest
	s.longest = 0
	return since, longest
}

func (s *gaps) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signs
}

// pingInterval is the resolution of a guest's gaps.
const pingInterval = 5 * time.Millisecond

// pings sends ICMP echo requests to the guest continuously. The guest's kernel replies as soon as its CPUs run.
func pings(ctx context.Context, address string) *gaps {
	GinkgoHelper()
	connection, err := net.Dial("ip4:icmp", address)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(connection.Close)
	replies, id := &gaps{}, uint16(os.Getpid())
	go func() {
		ticker := time.NewTicker(pingInterval)
		defer ticker.Stop()
		for sequence := uint16(0); ctx.Err() == nil; sequence++ {
			// A request that cannot be sent gets no reply.
			_, _ = connection.Write(echoRequest(id, sequence))
			<-ticker.C
		}
	}()
	go func() {
		packet := make([]byte, 1500)
		for {
			n, err := connection.Read(packet)
			if err != nil {
				return
			}
			// An IPv4 header comes first; echo replies are of type 0.
			if header := int(packet[0]&0xf) * 4; n >= header+8 && packet[header] == 0 &&
				binary.BigEndian.Uint16(packet[header+4:]) == id {
				replies.sign()
			}
		}
	}()
	return replies
}

// echoRequest returns an ICMP message of type 8 (RFC 792).
func echoRequest(id, sequence uint16) []byte {
	message := []byte{8, 0, 0, 0}
	message = binary.BigEndian.AppendUint16(message, id)
	message = binary.BigEndian.AppendUint16(message, sequence)
	var sum uint32
	for i := 0; i < len(message); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(message[i:]))
	}
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum+sum>>16))
	return message
}

// echoConnection is a TCP connection to the guest's echo server, over which numbers are sent and received continuously.
type echoConnection struct {
	gaps
	failure error
}

func (t *echoConnection) broken() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failure
}

func (t *echoConnection) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failure == nil {
		t.failure = err
	}
}

// startEcho connects once, and never reconnects.
func startEcho(ctx context.Context, address string) *echoConnection {
	GinkgoHelper()
	var connection net.Conn
	Eventually(func() error {
		var err error
		connection, err = net.DialTimeout("tcp", address, 2*time.Second)
		return err
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
	DeferCleanup(connection.Close)
	t := &echoConnection{}
	go func() {
		for n := 1; ctx.Err() == nil; n++ {
			if _, err := fmt.Fprintln(connection, n); err != nil {
				t.fail(fmt.Errorf("send %d: %w", n, err))
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	go func() {
		lines := bufio.NewScanner(connection)
		for n := 1; lines.Scan(); n++ {
			if got := lines.Text(); got != fmt.Sprint(n) {
				t.fail(fmt.Errorf("%q came back instead of %d", got, n))
				return
			}
			t.sign()
		}
		t.fail(fmt.Errorf("the connection ended: %w", cmp.Or(lines.Err(), io.EOF)))
	}()
	return t
}

// announcement is a frame that announces the guest's new port to switches and neighbors.
type announcement struct {
	At time.Time
	// Protocol is 0x8035 for QEMU's RARP, 0x0806 for the guest's own ARP.
	Protocol uint16
}

// announcements records the broadcasts of RARP, and of ARP for the guest's own address, that this host receives from a
// MAC address.
func announcements(ctx context.Context, from string) func() []announcement {
	GinkgoHelper()
	address, err := net.ParseMAC(from)
	Expect(err).NotTo(HaveOccurred())
	bridge, err := net.InterfaceByName(hostBridge)
	Expect(err).NotTo(HaveOccurred())
	all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8) // network byte order
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	Expect(err).NotTo(HaveOccurred())
	Expect(unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: all, Ifindex: bridge.Index})).To(Succeed())
	Expect(unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000})).To(Succeed())
	var (
		mutex sync.Mutex
		seen  []announcement
	)
	go func() {
		defer func() { _ = unix.Close(socket) }()
		frame := make([]byte, 2048)
		for ctx.Err() == nil {
			n, err := unix.Read(socket, frame)
			if err != nil || n < 14 || string(frame[6:12]) != string(address) || frame[0]&frame[5] != 0xff {
				continue
			}
			if protocol := binary.BigEndian.Uint16(frame[12:]); protocol == unix.ETH_P_RARP ||
				protocol == unix.ETH_P_ARP && ownAddress(frame[14:n]) {
				mutex.Lock()
				seen = append(seen, announcement{time.Now(), protocol})
				mutex.Unlock()
			}
		}
	}()
	return func() []announcement {
		mutex.Lock()
		defer mutex.Unlock()
		return append([]announcement(nil), seen...)
	}
}

// ownAddress reports whether an ARP packet for IPv4 asks for its sender's own address, as a guest does that announces
// itself.
func ownAddress(packet []byte) bool {
	return len(packet) >= 28 && bytes.Equal(packet[14:18], packet[24:28])
}
