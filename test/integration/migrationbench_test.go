// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/migration/policy"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
	"github.com/vireo-project/vireo/test/agentpki"
	"github.com/vireo-project/vireo/test/libvirtd"
)

const (
	// benchEnv names the environment variable with the file that the benchmark writes, benchCountEnv the one with the
	// number of migrations of each kind.
	benchEnv      = "VIREO_BENCH_MIGRATE"
	benchCountEnv = "VIREO_BENCH_MIGRATE_COUNT"
	// virshDowntime is the downtime in milliseconds that virsh allows: that with which the agents start. QEMU's default
	// of 300 ends a transfer of changing memory sooner, and stops the guest for longer.
	virshDowntime = "100"
)

// watcher records when a libvirtd reported a guest as suspended and resumed.
type watcher struct {
	mu                 sync.Mutex
	suspended, resumed []time.Time
}

func watch(p *pod) *watcher {
	GinkgoHelper()
	client, err := libvirtwire.Dial(GinkgoT().Context(), p.daemon.Socket())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(client.Close)
	Expect(client.SubscribeLifecycle(GinkgoT().Context())).To(Succeed())
	w := &watcher{}
	go func() {
		for event := range client.Events() {
			w.mu.Lock()
			switch event.Type {
			case libvirtwire.EventSuspended:
				w.suspended = append(w.suspended, time.Now())
			case libvirtwire.EventResumed:
				w.resumed = append(w.resumed, time.Now())
			default:
			}
			w.mu.Unlock()
		}
	}()
	return w
}

// after returns the first of the times that is not before start.
func (w *watcher) after(times *[]time.Time, start time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range *times {
		if !t.Before(start) {
			return t
		}
	}
	return time.Time{}
}

// endpoint is a Pod of the benchmark with its agent.
type endpoint struct {
	watcher   *watcher
	agent     *exec.Cmd
	node      string
	address   string
	orders    *json.Encoder
	responses *json.Decoder
}

// startEndpoints starts the agents of Pods, each on its own address, because all have the same port.
func startEndpoints(pods ...*pod) map[*pod]*endpoint {
	GinkgoHelper()
	authorities, port := agentpki.New(GinkgoT()), 0
	endpoints := map[*pod]*endpoint{}
	for i, p := range pods {
		s := &endpoint{watcher: watch(p), node: fmt.Sprintf("node%d", i), address: fmt.Sprintf("127.0.0.%d", i+2)}
		listener, err := (&net.ListenConfig{}).Listen(GinkgoT().Context(), "tcp",
			net.JoinHostPort(s.address, strconv.Itoa(port)))
		Expect(err).NotTo(HaveOccurred())
		socket, ok := listener.(*net.TCPListener)
		Expect(ok).To(BeTrue())
		port = netPort(listener)
		file, err := socket.File()
		Expect(err).NotTo(HaveOccurred())
		Expect(listener.Close()).To(Succeed())
		setup := agentSetup{Node: s.node, Port: port, PodsDir: p.podsDir(), RelayDir: GinkgoT().TempDir(),
			PID: p.daemon.PID()}
		setup.Trust, setup.Certificate, setup.Key = authorities.Files(GinkgoT(), s.node)
		s.start(&setup, file)
		endpoints[p] = s
	}
	return endpoints
}

func netPort(listener net.Listener) int {
	GinkgoHelper()
	address, ok := listener.Addr().(*net.TCPAddr)
	Expect(ok).To(BeTrue())
	return address.Port
}

func (s *endpoint) start(setup *agentSetup, listener *os.File) {
	GinkgoHelper()
	text, err := json.Marshal(setup)
	Expect(err).NotTo(HaveOccurred())
	s.agent = exec.Command("/proc/self/exe")
	s.agent.Args = []string{agentName, string(text)}
	s.agent.Stderr, s.agent.ExtraFiles = GinkgoWriter, []*os.File{listener}
	orders, err := s.agent.StdinPipe()
	Expect(err).NotTo(HaveOccurred())
	responses, err := s.agent.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(s.agent.Start()).To(Succeed())
	DeferCleanup(func() {
		Expect(orders.Close()).To(Succeed())
		Expect(s.agent.Wait()).To(Succeed())
	})
	Expect(listener.Close()).To(Succeed())
	s.orders, s.responses = json.NewEncoder(orders), json.NewDecoder(responses)
}

func (s *endpoint) order(o agentOrder) {
	GinkgoHelper()
	Expect(s.orders.Encode(o)).To(Succeed())
	response := agentResponse{}
	Expect(s.responses.Decode(&response)).To(Succeed())
	Expect(response.Error).To(BeEmpty(), "%s on %s", o.Do, s.node)
}

// benchmark migrates a guest back and forth.
type benchmark struct {
	*podPair
	endpoints map[*pod]*endpoint
}

// migrateFunc migrates the guest once. It calls began when the measurement starts, and returns the CPU time of its own
// processes on source and target, without QEMU and libvirtd.
type migrateFunc func(tls bool, began func()) (source, target time.Duration)

// run migrates the guest once and records its times.
func (r *benchmark) run(s *series, tls bool, move migrateFunc) {
	GinkgoHelper()
	var begin time.Time
	var before sides
	client := sides{}
	client.source, client.target = move(tls, func() {
		before = sides{r.sourcePod.cpu(), r.targetPod.cpu()}
		begin = time.Now()
	})
	s.total = append(s.total, time.Since(begin))
	source, target := r.endpoints[r.sourcePod].watcher, r.endpoints[r.targetPod].watcher
	var resumed time.Time
	Eventually(func() time.Time { resumed = target.after(&target.resumed, begin); return resumed }).ShouldNot(BeZero())
	stopped := source.after(&source.suspended, begin)
	Expect(stopped).NotTo(BeZero())
	s.downtime = append(s.downtime, resumed.Sub(stopped))
	s.client = append(s.client, client)
	s.cpu = append(s.cpu, sides{r.sourcePod.cpu() - before.source + client.source,
		r.targetPod.cpu() - before.target + client.target})
	r.reverse(&linux{pod: r.targetPod, conn: r.targetConn, domain: r.guest.domain})
}

// vireo migrates the guest with the agents of both sides. It sends them the VMI's status in place of the API server.
func (r *benchmark) vireo(tls bool, began func()) (source, target time.Duration) {
	GinkgoHelper()
	from, to := r.endpoints[r.sourcePod], r.endpoints[r.targetPod]
	config := clusterconfig.Default().Migrations
	disable := !tls
	config.DisableTLS = &disable
	options, _ := policy.Resolve(&config, nil)
	vmi := &v1.VirtualMachineInstance{}
	var named bool
	vmi.Namespace, vmi.Name, named = strings.Cut(r.guest.domain, "_")
	Expect(named).To(BeTrue())
	vmi.Spec.Volumes = []v1.Volume{{Name: "data",
		VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}}
	vmi.Status = v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: from.node,
		MigrationState: &v1.VirtualMachineInstanceMigrationState{
			MigrationUID: uuid.NewUUID(), SourceNode: from.node, TargetNode: to.node, TargetNodeAddress: to.address,
			VMIMConfigurationOptions: options,
		}}
	xml, err := sharedDomain().Marshal()
	Expect(err).NotTo(HaveOccurred())
	to.order(agentOrder{Do: orderExpect, VMI: vmi, Address: r.address, Domain: xml})
	before := sides{cpuOf(from.agent.Process.Pid), cpuOf(to.agent.Process.Pid)}
	began()
	from.order(agentOrder{Do: orderMigrate, VMI: vmi})
	source, target = cpuOf(from.agent.Process.Pid)-before.source, cpuOf(to.agent.Process.Pid)-before.target
	to.order(agentOrder{Do: orderForget, VMI: vmi})
	return source, target
}

// virsh migrates the guest with libvirt's own tool, which is in the launcher's image. Certificates and XML are prepared
// before the measurement.
func (r *benchmark) virsh(tls bool, began func()) (source, target time.Duration) {
	GinkgoHelper()
	request := r.request()
	if tls {
		r.installCertificates(&request)
	}
	text, err := request.XML.Marshal()
	Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(GinkgoT().TempDir(), "target.xml")
	Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
	rootfs := os.Getenv(libvirtd.RootfsEnv)
	command := func(args ...string) *exec.Cmd {
		virsh := exec.CommandContext(GinkgoT().Context(), rootfs+"/lib64/ld-linux-x86-64.so.2", append([]string{
			"--library-path", rootfs + "/usr/lib/x86_64-linux-gnu", rootfs + "/usr/bin/virsh",
			"--connect", r.sourcePod.daemon.URI(),
		}, args...)...)
		virsh.Env = append(os.Environ(), "LIBVIRT_AUTOSTART=0")
		return virsh
	}
	out, err := command("migrate-setmaxdowntime", request.Domain, virshDowntime).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	args := []string{
		"migrate", "--live", "--persistent", "--migrateuri",
		fmt.Sprintf("tcp://%s:%d", request.Address, hypervisor.MigrationMemoryPort),
		"--listen-address", request.Address, "--xml", file, "--persistent-xml", file,
	}
	if tls {
		args = append(args, "--tls", "--tls-destination", request.TLSName)
	}
	virsh := command(append(args, request.Domain, r.targetPod.daemon.URI())...)
	began()
	out, err = virsh.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	return virsh.ProcessState.UserTime() + virsh.ProcessState.SystemTime(), 0
}

// compare migrates the guest count times with each tool, alternating between them in both directions.
func (r *benchmark) compare(load string, tls bool, count int) *comparison {
	GinkgoHelper()
	var ours, theirs series
	for n := range count {
		if n%2 == 0 {
			r.run(&ours, tls, r.vireo)
			r.run(&theirs, tls, r.virsh)
		} else {
			r.run(&theirs, tls, r.virsh)
			r.run(&ours, tls, r.vireo)
		}
	}
	return newComparison(load, tls, &ours, &theirs)
}

func benchCount() int {
	GinkgoHelper()
	text := os.Getenv(benchCountEnv)
	if text == "" {
		return 5
	}
	count, err := strconv.Atoi(text)
	Expect(err).NotTo(HaveOccurred())
	return count
}

var _ = Describe("The benchmark of migrations", Label("libvirt", "bench"), func() {
	It("compares the agents with virsh", func() {
		file := os.Getenv(benchEnv)
		if file == "" {
			Skip(benchEnv + " is not set: it names the file for the results")
		}
		m := newPodPair()
		r := &benchmark{podPair: m, endpoints: startEndpoints(m.sourcePod, m.targetPod)}
		all := &comparisons{}
		for _, load := range []string{idle, dirtying} {
			if load == dirtying {
				m.guest.openConsole()
				m.guest.start("mkdir -p /tmp/d && mount -t tmpfs d /tmp/d; while :; do dd if=/dev/zero of=/tmp/d/x bs=1M count=16 conv=notrunc 2>/dev/null; done &")
			}
			for _, tls := range []bool{true, false} {
				all.Comparisons = append(all.Comparisons, r.compare(load, tls, benchCount()))
			}
		}
		Expect(all.publish(file)).To(Succeed())
	})
})
