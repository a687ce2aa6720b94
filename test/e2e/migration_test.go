// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"cmp"
	"context"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationsv1alpha1 "github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/podproc"
)

// moves is how often the guest moves there and back; `make bench-live` has it move more often, and asks for a report.
var (
	moves       = numberOr("VIREO_E2E_MOVES", 2)
	movesReport = os.Getenv("VIREO_E2E_MOVES_REPORT")
)

// One guest that loses nothing while it moves, and some beside it that cannot or need not move.
var _ = Describe("A guest that moves to another node", Ordered, Serial, func() {
	n := &nomad{name: "nomad", consoles: &everyConsole{seen: map[types.UID]func() string{}}}

	BeforeAll(func(ctx context.Context) {
		needLocalNodes()
		if len(nodes(ctx)) < 2 {
			Skip("a guest needs two nodes to move between")
		}
		n.begin(ctx)
	}, NodeTimeout(8*time.Minute))
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, n.namespace) }, NodeTimeout(time.Minute))

	It("goes there and back, loses no count, no record and no connection, and says where it is", func(ctx context.Context) {
		connection := startTalk(n.life, net.JoinHostPort(guestAddress, strconv.Itoa(echoPort)))
		answers := pings(n.life, guestAddress)
		heard := announcements(n.life, n.address(ctx))
		Eventually(answers.count).WithContext(ctx).WithTimeout(shortTimeout).Should(BeNumerically(">", 10))
		var each []journey
		for range moves {
			before := len(heard())
			answers.restart()
			connection.restart()
			one := n.move(ctx, n.migrate)
			n.expectCounts(ctx)
			one.hear(answers, &connection.silence, heard()[before:])
			Expect(connection.broken()).To(Succeed(), "after %d moves", n.moves)
			Expect(one.RARP).To(BeNumerically(">", 0), "QEMU told nobody that the guest is on %s now", one.To)
			Expect(one.ARP).To(BeNumerically(">", 0), "the guest told no neighbor that it is on %s now", one.To)
			GinkgoWriter.Printf("%+v\n", one)
			each = append(each, one)
		}
		report := makeJourneys(each)
		report.Records, report.Counted = n.expectLog(ctx), n.expectAllCounted()
		AddReportEntry("migrations", report.table())
		if movesReport != "" {
			report.write(movesReport)
		}
	}, SpecTimeout(8*time.Minute+time.Duration(moves)*time.Minute))

	It("has the same disks, and answers everywhere where it answered", func(ctx context.Context) {
		console := openConsole(ctx, n.namespace, n.name)
		console.press("echo DISK-$(cat /mnt/data/count).\n")
		expectSays(ctx, console.Out, `DISK-(\d+)\.`)
		onDisk := diskCount(string(console.Out.Contents()))
		Expect(onDisk).To(BeNumerically("~", n.consoles.latest(), 3))
		console.press("\x1d")
		address, _ := forward(ctx, n.namespace, n.name, ":80")
		expectHello(ctx, address)
		expectAgent(ctx, n.namespace, n.name, shortTimeout)
		Expect(kubectl(ctx, "", "get", "vmim", "-n", n.namespace)).To(MatchRegexp(`(?m)^NAME +PHASE +VMI\n(kubevirt-migrate-vm-\S+ +Succeeded +nomad\n)+$`))
	}, SpecTimeout(4*time.Minute))

	DescribeTable("it stays when the migration is aborted in the middle", n.expectStays,
		Entry("by virtctl migrate-cancel", SpecTimeout(4*time.Minute), func(ctx context.Context) {
			expectVirtctl(ctx, "migrate-cancel", "-n", n.namespace, n.name)
		}),
		Entry("by deleting the migration", SpecTimeout(4*time.Minute), func(ctx context.Context) {
			Expect(k8s.Delete(ctx, n.migration(ctx))).To(Succeed())
		}))

	It("runs at its new node before all of it is there, where that takes too long otherwise", func(ctx context.Context) {
		if _, err := os.Stat(launcherpod.PostCopyDevice); err != nil {
			Skip("this kernel is older than Linux 6.1: " + err.Error())
		}
		n.limit(ctx, "4Mi", func(p *migrationsv1alpha1.MigrationPolicySpec) {
			p.AllowPostCopy, p.CompletionTimeoutPerGiB = ptr.To(true), ptr.To[int64](3)
		})
		n.mode = v1.MigrationPostCopy
		DeferCleanup(func() { n.mode = "" })
		// There and back: the specs after this one have it where it was.
		for range 2 {
			n.move(ctx, n.migrate)
			n.expectCounts(ctx)
		}
		n.expectLog(ctx)
		Eventually(n.events).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(
			ContainSubstring("The migration needs help (post-copy): not completed after 3s"))
	}, SpecTimeout(4*time.Minute))

	It("leaves a node that is drained, and others are shut down as their strategies say", func(ctx context.Context) {
		node := vmi(ctx, n.namespace, n.name).Status.NodeName
		DeferCleanup(func(ctx context.Context) { kubectl(ctx, "", "uncordon", node) }, NodeTimeout(time.Minute))
		drain := []string{"drain", node, "--delete-emptydir-data", "--ignore-daemonsets", "--force"}

		By("being told why one that cannot migrate stays")
		out, err := exec.CommandContext(ctx, kubectlProgram, append(drain, "--pod-selector=vm=stuck", "--timeout=8s")...).CombinedOutput()
		Expect(err).To(HaveOccurred(), "the drain of a guest that cannot migrate ended well")
		Expect(string(out)).To(ContainSubstring("VMI stuck is configured with an eviction strategy but is not live-migratable"))
		explained, _ := runVirtctl(ctx, "explain", "-n", n.namespace, "stuck")
		Expect(explained).To(ContainSubstring("waits for this guest, which cannot migrate"))
		stuck := vmi(ctx, n.namespace, "stuck")
		Expect(stuck.Status.Phase).To(Equal(v1.Running))
		Expect(k8s.Delete(ctx, &v1.VirtualMachine{ObjectMeta: stuck.ObjectMeta})).To(Succeed())

		By("draining the node of everything, over a slow link")
		n.limit(ctx, "64Mi")
		shutDown := map[string]*v1.VirtualMachineInstance{}
		for _, name := range []string{"none", "possible"} {
			shutDown[name] = vmi(ctx, n.namespace, name)
			Expect(shutDown[name].Status.NodeName).To(Equal(node), name)
		}
		n.move(ctx, func(ctx context.Context) { kubectl(ctx, "", append(drain, "--timeout=3m")...) })
		n.expectCounts(ctx)
		n.expectLog(ctx)
		Eventually(n.events).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(
			ContainSubstring("The guest's memory is compressed (zstd): no more than 64Mi may be sent a second."))
		for name, before := range shutDown {
			expectNewInstance(ctx, before)
			Expect(expectPhase(ctx, n.namespace, name, v1.Running).Status.NodeName).NotTo(Equal(node))
		}
	}, SpecTimeout(8*time.Minute))
})

// nomad is the guest that moves.
type nomad struct {
	namespace, name string
	instance        *v1.VirtualMachineInstance
	consoles        *everyConsole
	// life ends with the tests.
	life context.Context
	// log is the device of the shared disk.
	log   string
	moves int
	// network is the one that the memory goes over.
	network v1.MigrationNetworkType
	// mode is how it is to be copied; empty is PreCopy.
	mode v1.MigrationMode
}

// begin starts all guests on one node.
func (n *nomad) begin(ctx context.Context) {
	GinkgoHelper()
	n.namespace = newNamespace(ctx)
	layNetwork(ctx, n.namespace)
	migrateOverWire(ctx)
	n.network = v1.Migration
	other := nodes(ctx)[1]
	kubectl(ctx, "", "cordon", other)
	DeferCleanup(func(ctx context.Context) { kubectl(ctx, "", "uncordon", other) }, NodeTimeout(time.Minute))
	claim := makeClaim(n.namespace, "log", corev1.PersistentVolumeBlock)
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	create(ctx, claim, makeVM(n.namespace, n.name, withEvictionStrategy(v1.EvictionStrategyLiveMigrate), withSecondNIC,
		withClaim("log", "log"), withoutSerial,
		withDisk("data", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("64Mi")}}),
		withUserData(nomadData)))
	n.instance = expectReady(ctx, n.namespace, n.name)
	create(ctx, makeVM(n.namespace, "none", withEvictionStrategy(v1.EvictionStrategyNone)),
		makeVM(n.namespace, "possible", withBridge, withEvictionStrategy(v1.EvictionStrategyLiveMigrateIfPossible)),
		makeVM(n.namespace, "stuck", withBridge, withEvictionStrategy(v1.EvictionStrategyLiveMigrate)))

	var stop context.CancelFunc
	n.life, stop = context.WithCancel(context.Background())
	DeferCleanup(stop)
	go n.consoles.follow(n.life, n.instance)
	Eventually(n.consoles.counted).WithContext(ctx).WithTimeout(bootTimeout).ShouldNot(BeEmpty())
	for _, name := range []string{"none", "possible", "stuck"} {
		expectReady(ctx, n.namespace, name)
	}
	kubectl(ctx, "", "uncordon", other)
	n.log = deviceOf(ctx, n.namespace, "log")
}

// address is the hardware address on the second network.
func (n *nomad) address(ctx context.Context) string {
	GinkgoHelper()
	for _, nic := range vmi(ctx, n.namespace, n.name).Status.Interfaces {
		if nic.Name == secondNetwork {
			return nic.MAC
		}
	}
	Fail("the guest has no NIC on the second network")
	return ""
}

// migrate asks for a migration as a person does.
func (n *nomad) migrate(ctx context.Context) {
	GinkgoHelper()
	expectVirtctl(ctx, "migrate", "-n", n.namespace, n.name)
}

// migration is the newest of the guest's.
func (n *nomad) migration(ctx context.Context) *v1.VirtualMachineInstanceMigration {
	GinkgoHelper()
	list := &v1.VirtualMachineInstanceMigrationList{}
	Expect(k8s.List(ctx, list, client.InNamespace(n.namespace))).To(Succeed())
	list.Items = slices.DeleteFunc(list.Items, func(m v1.VirtualMachineInstanceMigration) bool { return m.Spec.VMIName != n.name })
	Expect(list.Items).NotTo(BeEmpty())
	newest := slices.MaxFunc(list.Items, func(a, b v1.VirtualMachineInstanceMigration) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return &newest
}

// move waits until a migration that is asked for is over, and checks what is said of it.
func (n *nomad) move(ctx context.Context, ask func(context.Context)) journey {
	GinkgoHelper()
	from := vmi(ctx, n.namespace, n.name)
	start := time.Now()
	ask(ctx)
	var now *v1.VirtualMachineInstance
	Eventually(func(g Gomega) {
		now = vmi(ctx, n.namespace, n.name)
		g.Expect(now.UID).To(Equal(from.UID))
		g.Expect(now.Status.NodeName).NotTo(Equal(from.Status.NodeName), "%+v", now.Status.MigrationState)
		g.Expect(n.migration(ctx).Status.Phase).To(Equal(v1.MigrationSucceeded))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(100 * time.Millisecond).Should(Succeed())
	one := journey{From: from.Status.NodeName, To: now.Status.NodeName, Total: milliseconds(time.Since(start))}
	n.moves++

	migration, state := n.migration(ctx), now.Status.MigrationState
	Expect(state).To(And(HaveField("Completed", true), HaveField("Failed", false), HaveField("MigrationUID", migration.UID),
		HaveField("SourceNode", one.From), HaveField("TargetNode", one.To), HaveField("Mode", cmp.Or(n.mode, v1.MigrationPreCopy)),
		HaveField("StartTimestamp", Not(BeNil())), HaveField("EndTimestamp", Not(BeNil())), HaveField("AbortRequested", false)))
	Expect(state.SourcePod).NotTo(Equal(state.TargetPod))
	Expect(state.MigrationNetworkType).To(Equal(n.network))
	if n.network == v1.Migration {
		expectCameOverWire(ctx, now)
	}
	Eventually(func(g Gomega) {
		now = vmi(ctx, n.namespace, n.name)
		g.Expect(now.Labels).To(HaveKeyWithValue(v1.NodeNameLabel, one.To))
		g.Expect(now.Labels).NotTo(HaveKey(v1.MigrationTargetNodeNameLabel))
		g.Expect(condition(now, v1.VirtualMachineInstanceReady)).To(HaveField("Status", corev1.ConditionTrue))
		g.Expect(condition(now, v1.VirtualMachineInstanceIsMigratable)).To(HaveField("Status", corev1.ConditionTrue))
		vm := &v1.VirtualMachine{}
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(now), vm)).To(Succeed())
		g.Expect(vm.Status.PrintableStatus).To(Equal(v1.VirtualMachineStatusRunning))
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
	Expect(now.Status.Phase).To(Equal(v1.Running))
	Expect(expectOneLauncher(ctx, n.instance).Name).To(Equal(state.TargetPod))
	return one
}

// events are all that was told of the guest.
func (n *nomad) events(ctx context.Context) string {
	return kubectl(ctx, "", "get", "events", "-n", n.namespace)
}

// limit has the guest's migrations follow a policy.
func (n *nomad) limit(ctx context.Context, bandwidth string, change ...func(*migrationsv1alpha1.MigrationPolicySpec)) {
	GinkgoHelper()
	policy := &migrationsv1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: n.namespace}}
	policy.Spec.Selectors = &migrationsv1alpha1.Selectors{VirtualMachineInstanceSelector: map[string]string{"vm": n.name}}
	policy.Spec.BandwidthPerMigration = ptr.To(resource.MustParse(bandwidth))
	for _, do := range change {
		do(&policy.Spec)
	}
	create(ctx, policy)
	DeferCleanup(func(ctx context.Context) error { return k8s.Delete(ctx, policy) }, NodeTimeout(time.Minute))
}

// expectStays begins a migration that takes its time, ends it in the middle, and sees the guest where it was.
func (n *nomad) expectStays(ctx context.Context, abort func(context.Context)) {
	GinkgoHelper()
	n.limit(ctx, "1Mi")
	from := vmi(ctx, n.namespace, n.name)
	n.migrate(ctx)
	migration := n.migration(ctx)
	state := func() *v1.VirtualMachineInstanceMigrationState {
		return vmi(ctx, n.namespace, n.name).Status.MigrationState
	}
	Eventually(state).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(And(
		HaveField("MigrationUID", migration.UID), HaveField("StartTimestamp", Not(BeNil())),
		HaveField("MigrationPolicyName", HaveValue(Equal(n.namespace)))))
	explained, _ := runVirtctl(ctx, "explain", "-n", n.namespace, n.name)
	Expect(explained).To(And(ContainSubstring("migration "+migration.Name+" is "), ContainSubstring("The transfer to node "+state().TargetNode)))
	target := &corev1.Pod{}
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: n.namespace, Name: state().TargetPod}, target)).To(Succeed())
	launchers := podProcesses(target, "virt-launcher")
	Expect(launchers).NotTo(BeEmpty())
	// In the middle of 128 MiB, of which at most 1 MiB is sent per second.
	Eventually(receivedBy).WithArguments(launchers[0].PID).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(
		HaveKeyWithValue(v1.MigrationInterfaceName, BeNumerically(">", 512<<10)))
	abort(ctx)
	Eventually(state).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(And(
		HaveField("Completed", true), HaveField("Failed", true), HaveField("AbortStatus", v1.MigrationAbortSucceeded),
		HaveField("FailureReason", Not(BeEmpty()))))
	GinkgoWriter.Printf("aborted: %+v\n", state())
	Eventually(func(g Gomega) {
		ended := &v1.VirtualMachineInstanceMigration{}
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(migration), ended); client.IgnoreNotFound(err) != nil || err == nil {
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(ended.Status.Phase).To(Equal(v1.MigrationFailed))
		}
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
	Expect(vmi(ctx, n.namespace, n.name).Status.NodeName).To(Equal(from.Status.NodeName))
	Expect(expectOneLauncher(ctx, n.instance).Spec.NodeName).To(Equal(from.Status.NodeName))
	n.expectCounts(ctx)
}

// expectCounts waits until the guest has counted further than now.
func (n *nomad) expectCounts(ctx context.Context) {
	GinkgoHelper()
	before := n.consoles.latest()
	Eventually(n.consoles.latest).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(BeNumerically(">", before+1))
}

// expectAllCounted checks that no number is missing, and returns how many there are. A line that the guest began in one
// Pod and ended in another is in neither as a whole.
func (n *nomad) expectAllCounted() int {
	GinkgoHelper()
	all := n.consoles.counted()
	Expect(len(all)).To(BeNumerically(">=", all[len(all)-1]-all[0]+1-n.moves), "numbers are missing after %d moves: %v", n.moves, all)
	return len(all)
}

// expectLog checks the log on the shared disk from outside, while the guest goes on with it.
func (n *nomad) expectLog(ctx context.Context) int {
	GinkgoHelper()
	read := func() int {
		GinkgoHelper()
		entries, err := readLog(ctx, n.log)
		Expect(err).NotTo(HaveOccurred(), "after %d moves", n.moves)
		return len(entries)
	}
	before := read()
	Expect(before).To(BeNumerically(">", 0))
	Eventually(read).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(BeNumerically(">", before))
	return before
}

func withEvictionStrategy(strategy v1.EvictionStrategy) option {
	return func(vm *v1.VirtualMachine) { spec(vm).EvictionStrategy = ptr.To(strategy) }
}

// withoutSerial takes the serial from the last disk: the small guest lets such a disk alone.
func withoutSerial(vm *v1.VirtualMachine) {
	disks := spec(vm).Domain.Devices.Disks
	disks[len(disks)-1].Serial = ""
}

// withBridge binds the NIC on the Pods' network such that the guest cannot migrate.
func withBridge(vm *v1.VirtualMachine) {
	spec(vm).Domain.Devices.Interfaces[0].InterfaceBindingMethod = v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}
}

// deviceOf is the device of a claim's volume on this machine.
func deviceOf(ctx context.Context, namespace, name string) string {
	GinkgoHelper()
	claim, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, claim)).To(Succeed())
	Expect(k8s.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, volume)).To(Succeed())
	switch source := volume.Spec.PersistentVolumeSource; {
	case source.Local != nil:
		return source.Local.Path
	case source.HostPath != nil:
		return source.HostPath.Path
	}
	Fail("the volume of claim " + name + " is not on this machine")
	return ""
}

// diskCount is the number after DISK- in what a console showed.
func diskCount(screen string) int {
	_, rest, _ := strings.Cut(screen, "\nDISK-")
	digits, _, _ := strings.Cut(rest, ".")
	n, _ := strconv.Atoi(digits)
	return n
}

// expectOneLauncher waits until one launcher Pod of a VMI is left, with no process of another, and returns it.
func expectOneLauncher(ctx context.Context, instance *v1.VirtualMachineInstance) *corev1.Pod {
	GinkgoHelper()
	pods := &corev1.PodList{}
	former := map[types.UID]string{}
	Eventually(func(g Gomega) {
		g.Expect(k8s.List(ctx, pods, client.InNamespace(instance.Namespace), client.MatchingLabels{v1.CreatedByLabel: string(instance.UID)})).To(Succeed())
		for i := range pods.Items {
			former[pods.Items[i].UID] = pods.Items[i].Name
		}
		g.Expect(pods.Items).To(HaveLen(1))
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
	delete(former, pods.Items[0].UID)
	for uid, name := range former {
		Expect(podproc.Of(uid)).To(BeEmpty(), "processes of Pod %s are left", name)
	}
	return &pods.Items[0]
}
