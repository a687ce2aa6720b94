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
	"github.com/vireo-project/vireo/internal/libvirtwire"
	"github.com/vireo-project/vireo/internal/migration/policy"
	"github.com/vireo-project/vireo/test/agentpki"
	"github.com/vireo-project/vireo/test/libvirtd"
)

const (
	// benchEnv names the environment variable with the file that the benchmark writes, benchCountEnv the one with the number of
	// migrations of each kind.
	benchEnv      = "VIREO_BENCH_MIGRATE"
	benchCountEnv = "VIREO_BENCH_MIGRATE_COUNT"
)

// watcher notes when a libvirtd said that a guest stopped and went on.
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

// after is the first of the times that is not before another.
func (w *watcher) after(times *[]time.Time, begin time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range *times {
		if !t.Before(begin) {
			return t
		}
	}
	return time.Time{}
}

// station is a Pod between which the guest moves, with its agent.
type station struct {
	watcher *watcher
	agent   *exec.Cmd
	node    string
	address string
	orders  *json.Encoder
	answers *json.Decoder
}

// startStations starts the agents of Pods, each on an address of its own, as they all have one port.
func startStations(pods ...*pod) map[*pod]*station {
	GinkgoHelper()
	authorities, port := agentpki.New(GinkgoT()), 0
	stations := map[*pod]*station{}
	for i, p := range pods {
		s := &station{watcher: watch(p), node: fmt.Sprintf("node%d", i), address: fmt.Sprintf("127.0.0.%d", i+2)}
		listener, err := (&net.ListenConfig{}).Listen(GinkgoT().Context(), "tcp", net.JoinHostPort(s.address, strconv.Itoa(port)))
		Expect(err).NotTo(HaveOccurred())
		socket, ok := listener.(*net.TCPListener)
		Expect(ok).To(BeTrue())
		port = netPort(listener)
		file, err := socket.File()
		Expect(err).NotTo(HaveOccurred())
		Expect(listener.Close()).To(Succeed())
		setup := agentSetup{Node: s.node, Port: port, PodsDir: p.podsDir(), RelayDir: GinkgoT().TempDir(), PID: p.daemon.PID()}
		setup.Trust, setup.Certificate, setup.Key = authorities.Files(GinkgoT(), s.node)
		s.start(&setup, file)
		stations[p] = s
	}
	return stations
}

func netPort(listener net.Listener) int {
	GinkgoHelper()
	address, ok := listener.Addr().(*net.TCPAddr)
	Expect(ok).To(BeTrue())
	return address.Port
}

func (s *station) start(setup *agentSetup, listener *os.File) {
	GinkgoHelper()
	text, err := json.Marshal(setup)
	Expect(err).NotTo(HaveOccurred())
	s.agent = exec.Command("/proc/self/exe")
	s.agent.Args = []string{agentName, string(text)}
	s.agent.Stderr, s.agent.ExtraFiles = GinkgoWriter, []*os.File{listener}
	orders, err := s.agent.StdinPipe()
	Expect(err).NotTo(HaveOccurred())
	answers, err := s.agent.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(s.agent.Start()).To(Succeed())
	DeferCleanup(func() {
		Expect(orders.Close()).To(Succeed())
		Expect(s.agent.Wait()).To(Succeed())
	})
	Expect(listener.Close()).To(Succeed())
	s.orders, s.answers = json.NewEncoder(orders), json.NewDecoder(answers)
}

func (s *station) order(o agentOrder) {
	GinkgoHelper()
	Expect(s.orders.Encode(o)).To(Succeed())
	answer := agentAnswer{}
	Expect(s.answers.Decode(&answer)).To(Succeed())
	Expect(answer.Error).To(BeEmpty(), "%s on %s", o.Do, s.node)
}

// race is a guest that moves back and forth.
type race struct {
	*move
	stations map[*pod]*station
}

// mover moves the guest once. What it does before it calls go is no part of the migration. It returns the CPU time of what ran for
// that at the source only, beside QEMU and libvirtd, and at the target.
type mover func(tls bool, began func()) (source, target time.Duration)

// run moves the guest once and notes what it took.
func (r *race) run(s *series, tls bool, move mover) {
	GinkgoHelper()
	var begin time.Time
	var before sides
	client := sides{}
	client.source, client.target = move(tls, func() {
		before = sides{r.from.cpu(), r.to.cpu()}
		begin = time.Now()
	})
	s.total = append(s.total, time.Since(begin))
	here, there := r.stations[r.from].watcher, r.stations[r.to].watcher
	var resumed time.Time
	Eventually(func() time.Time { resumed = there.after(&there.resumed, begin); return resumed }).ShouldNot(BeZero())
	stopped := here.after(&here.suspended, begin)
	Expect(stopped).NotTo(BeZero())
	s.downtime = append(s.downtime, resumed.Sub(stopped))
	s.client = append(s.client, client)
	s.cpu = append(s.cpu, sides{r.from.cpu() - before.source + client.source, r.to.cpu() - before.target + client.target})
	r.back(&linux{pod: r.to, conn: r.there, domain: r.guest.domain})
}

// vireo moves the guest by the agents of both sides. The VMI's status is what they would have of the API server.
func (r *race) vireo(tls bool, began func()) (source, target time.Duration) {
	GinkgoHelper()
	from, to := r.stations[r.from], r.stations[r.to]
	config := clusterconfig.Default().Migrations
	disable := !tls
	config.DisableTLS = &disable
	options, _ := policy.Resolve(&config, nil)
	vmi := &v1.VirtualMachineInstance{}
	var named bool
	vmi.Namespace, vmi.Name, named = strings.Cut(r.guest.domain, "_")
	Expect(named).To(BeTrue())
	vmi.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}}
	vmi.Status = v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: from.node, MigrationState: &v1.VirtualMachineInstanceMigrationState{
		MigrationUID: uuid.NewUUID(), SourceNode: from.node, TargetNode: to.node, TargetNodeAddress: to.address, VMIMConfigurationOptions: options,
	}}
	there, err := sharedDomain().Marshal()
	Expect(err).NotTo(HaveOccurred())
	to.order(agentOrder{Do: orderExpect, VMI: vmi, Address: r.address, Domain: there})
	before := sides{cpuOf(from.agent.Process.Pid), cpuOf(to.agent.Process.Pid)}
	began()
	from.order(agentOrder{Do: orderMove, VMI: vmi})
	source, target = cpuOf(from.agent.Process.Pid)-before.source, cpuOf(to.agent.Process.Pid)-before.target
	to.order(agentOrder{Do: orderForget, VMI: vmi})
	return source, target
}

// virsh moves the guest with libvirt's own tool, which is in the launcher's image. It has certificates and the domain's XML already.
func (r *race) virsh(tls bool, began func()) (source, target time.Duration) {
	GinkgoHelper()
	request := r.request()
	if tls {
		r.secure(&request)
	}
	text, err := request.XML.Marshal()
	Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(GinkgoT().TempDir(), "there.xml")
	Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
	rootfs := os.Getenv(libvirtd.RootfsEnv)
	args := []string{
		"--library-path", rootfs + "/usr/lib/x86_64-linux-gnu", rootfs + "/usr/bin/virsh", "--connect", r.from.daemon.URI(),
		"migrate", "--live", "--persistent", "--migrateuri", fmt.Sprintf("tcp://%s:%d", request.Address, hypervisor.MigrationMemoryPort),
		"--listen-address", request.Address, "--xml", file, "--persistent-xml", file,
	}
	if tls {
		args = append(args, "--tls", "--tls-destination", request.TLSName)
	}
	virsh := exec.CommandContext(GinkgoT().Context(), rootfs+"/lib64/ld-linux-x86-64.so.2",
		append(args, request.Domain, r.to.daemon.URI())...)
	virsh.Env = append(os.Environ(), "LIBVIRT_AUTOSTART=0")
	began()
	out, err := virsh.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	return virsh.ProcessState.UserTime() + virsh.ProcessState.SystemTime(), 0
}

// compare moves the guest so many times by either of both, which take turns in both directions.
func (r *race) compare(load string, tls bool, count int) *contest {
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
	return newContest(load, tls, &ours, &theirs)
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
	It("compares ours with virsh's", func() {
		file := os.Getenv(benchEnv)
		if file == "" {
			Skip(benchEnv + " is not set: it names the file for the figures")
		}
		m := newMove()
		r := &race{move: m, stations: startStations(m.from, m.to)}
		all := &contests{}
		for _, load := range []string{idle, dirtying} {
			if load == dirtying {
				m.guest.listen()
				m.guest.start("mkdir -p /tmp/d && mount -t tmpfs d /tmp/d; while :; do dd if=/dev/zero of=/tmp/d/x bs=1M count=16 conv=notrunc 2>/dev/null; done &")
			}
			for _, tls := range []bool{true, false} {
				all.Contests = append(all.Contests, r.compare(load, tls, benchCount()))
			}
		}
		Expect(all.publish(file)).To(Succeed())
	})
})
