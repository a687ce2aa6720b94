// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"cmp"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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

// migrations is the number of migrations of the guest; `make bench-live` sets a larger one, and the path of a report.
var (
	migrations       = numberOr("VIREO_E2E_MOVES", 2)
	migrationsReport = os.Getenv("VIREO_E2E_MOVES_REPORT")
)

// One guest migrates without losing anything, and others cannot or need not migrate.
var _ = Describe("A migrating guest", kvmLinux(), Ordered, Serial, func() {
	n := &migratingGuest{name: "migrating", consoles: &consoleLogs{seen: map[types.UID]func() string{}}}

	BeforeAll(func(ctx context.Context) {
		needLocalNodes()
		if len(nodes(ctx)) < 2 {
			Skip("migrations need two nodes")
		}
		n.start(ctx)
	}, nodeTimeout(8*time.Minute))
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, n.namespace) }, nodeTimeout(time.Minute))

	It("keeps its count, its log and its TCP connection, and announces its new node on the network",
		func(ctx context.Context) {
			connection := startEcho(n.background, net.JoinHostPort(guestAddress, strconv.Itoa(echoPort)))
			replies := pings(n.background, guestAddress)
			announced := announcements(n.background, n.address(ctx))
			Eventually(replies.count).WithContext(ctx).WithTimeout(shortTimeout).Should(BeNumerically(">", 10))
			var each []migrationTimes
			for range migrations {
				before := len(announced())
				replies.restart()
				connection.restart()
				times := n.expectMigration(ctx, n.migrate)
				n.expectCounts(ctx)
				times.addGaps(replies, &connection.gaps, announced()[before:])
				Expect(connection.broken()).To(Succeed(), "after %d migrations", n.migrated)
				Expect(times.RARP).To(BeNumerically(">", 0), "QEMU has sent no RARP from node %s", times.To)
				Expect(times.ARP).To(BeNumerically(">", 0), "the guest has sent no ARP from node %s", times.To)
				GinkgoWriter.Printf("%+v\n", times)
				each = append(each, times)
			}
			report := newMigrationReport(each)
			report.Records, report.Counted = n.expectLog(ctx), n.expectAllCounted()
			AddReportEntry("migrations", report.table())
			if migrationsReport != "" {
				report.write(migrationsReport)
			}
		}, specTimeout(8*time.Minute+time.Duration(migrations)*time.Minute))

	It("has the same disks, and responds over console, port-forward and guest agent after the migrations",
		func(ctx context.Context) {
			console, printed := openConsole(ctx, n.namespace, n.name), n.consoles.latest()
			console.press("echo DISK-$(cat /mnt/data/count).\n")
			expectOutput(ctx, console.Out, `DISK-(\d+)\.`)
			onDisk := diskCount(string(console.Out.Contents()))
			// The guest writes a number to the disk and then to the console.
			Expect(onDisk).To(BeNumerically(">=", printed))
			Eventually(n.consoles.latest).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
				Should(BeNumerically(">=", onDisk))
			console.press("\x1d")
			address, _ := forward(ctx, n.namespace, n.name, ":80")
			expectHello(ctx, address)
			expectAgent(ctx, n.namespace, n.name, shortTimeout)
			Expect(kubectl(ctx, "", "get", "vmim", "-n", n.namespace)).To(MatchRegexp(`(?m)^NAME +PHASE +VMI\n(kubevirt-migrate-vm-\S+ +Succeeded +migrating\n)+$`))
		}, specTimeout(4*time.Minute))

	DescribeTable("stays on the source when the migration is aborted during the transfer", n.expectStays,
		Entry("with virtctl migrate-cancel", specTimeout(4*time.Minute), func(ctx context.Context) {
			expectVirtctl(ctx, "migrate-cancel", "-n", n.namespace, n.name)
		}),
		Entry("by deleting the migration", extended(1), specTimeout(4*time.Minute), func(ctx context.Context) {
			Expect(k8s.Delete(ctx, n.migration(ctx))).To(Succeed())
		}))

	It("is switched to post-copy if pre-copy takes too long", extended(3), func(ctx context.Context) {
		needPostCopy()
		n.limit(ctx, "4Mi", func(p *migrationsv1alpha1.MigrationPolicySpec) {
			p.AllowPostCopy, p.CompletionTimeoutPerGiB = ptr.To(true), ptr.To[int64](3)
		})
		n.mode = v1.MigrationPostCopy
		DeferCleanup(func() { n.mode = "" })
		// The guest migrates twice, so that it is on its first node again for the next specs.
		for range 2 {
			n.expectMigration(ctx, n.migrate)
			n.expectCounts(ctx)
		}
		n.expectLog(ctx)
		Eventually(n.events).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(
			ContainSubstring("The migration does not converge (post-copy): not completed after 3s"))
	}, specTimeout(4*time.Minute))

	It("migrates from a drained node, while guests with other eviction strategies are shut down", extended(1),
		func(ctx context.Context) {
			node := vmi(ctx, n.namespace, n.name).Status.NodeName
			DeferCleanup(func(ctx context.Context) { kubectl(ctx, "", "uncordon", node) }, nodeTimeout(time.Minute))
			drain := []string{"drain", node, "--delete-emptydir-data", "--ignore-daemonsets", "--force"}

			By("refusing the eviction of a guest that cannot migrate, with the reason")
			out, err := exec.CommandContext(ctx, kubectlProgram,
				append(drain, "--pod-selector=vm=stuck", "--timeout=8s")...).CombinedOutput()
			Expect(err).To(HaveOccurred(), "the drain of a guest that cannot migrate has succeeded")
			Expect(string(out)).To(
				ContainSubstring("VMI stuck is configured with an eviction strategy but is not live-migratable"))
			explained, _ := runVirtctl(ctx, "explain", "-n", n.namespace, "stuck")
			Expect(explained).To(ContainSubstring("waits for this guest, which cannot migrate"))
			stuck := vmi(ctx, n.namespace, "stuck")
			Expect(stuck.Status.Phase).To(Equal(v1.Running))
			Expect(k8s.Delete(ctx, &v1.VirtualMachine{ObjectMeta: stuck.ObjectMeta})).To(Succeed())

			By("draining the node, with limited bandwidth")
			n.limit(ctx, "64Mi")
			shutDown := map[string]*v1.VirtualMachineInstance{}
			for _, name := range []string{"none", "possible"} {
				shutDown[name] = vmi(ctx, n.namespace, name)
				Expect(shutDown[name].Status.NodeName).To(Equal(node), name)
			}
			n.expectMigration(ctx, func(ctx context.Context) { kubectl(ctx, "", append(drain, "--timeout=3m")...) })
			n.expectCounts(ctx)
			n.expectLog(ctx)
			Eventually(n.events).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(
				ContainSubstring("The guest's memory is compressed (zstd): no more than 64Mi may be sent a second."))
			for name, before := range shutDown {
				expectNewInstance(ctx, before)
				Expect(expectPhase(ctx, n.namespace, name, v1.Running).Status.NodeName).NotTo(Equal(node))
			}
		}, specTimeout(8*time.Minute))
})

// migratingGuest is a guest that is migrated, with the observations of the specs.
type migratingGuest struct {
	namespace, name string
	instance        *v1.VirtualMachineInstance
	consoles        *consoleLogs
	// background is canceled after the last spec.
	background context.Context
	// log is the device of the disk with the guest's log.
	log      string
	migrated int
	// network is the type of network over which the memory is expected to be sent.
	network v1.MigrationNetworkType
	// mode is the expected migration mode; empty means PreCopy.
	mode v1.MigrationMode
}

// start starts all guests on one node.
func (n *migratingGuest) start(ctx context.Context) {
	GinkgoHelper()
	n.namespace = newNamespace(ctx)
	installSecondNetwork(ctx, n.namespace)
	useMigrationNetwork(ctx)
	n.network = v1.Migration
	other := nodes(ctx)[1]
	kubectl(ctx, "", "cordon", other)
	DeferCleanup(func(ctx context.Context) { kubectl(ctx, "", "uncordon", other) }, nodeTimeout(time.Minute))
	claim := makeClaim(n.namespace, "log", corev1.PersistentVolumeBlock)
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	create(ctx, claim, makeVM(n.namespace, n.name, withEvictionStrategy(v1.EvictionStrategyLiveMigrate), withSecondNIC,
		withClaim("log", "log"), withoutSerial,
		withDisk("data", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("64Mi")}}),
		withUserData(migratingUserData)))
	n.instance = expectReady(ctx, n.namespace, n.name)
	create(ctx, makeVM(n.namespace, "none", withEvictionStrategy(v1.EvictionStrategyNone)),
		makeVM(n.namespace, "possible", withBridge, withEvictionStrategy(v1.EvictionStrategyLiveMigrateIfPossible)),
		makeVM(n.namespace, "stuck", withBridge, withEvictionStrategy(v1.EvictionStrategyLiveMigrate)))

	n.followCounts(ctx)
	for _, name := range []string{"none", "possible", "stuck"} {
		expectReady(ctx, n.namespace, name)
	}
	kubectl(ctx, "", "uncordon", other)
	n.log = deviceOf(ctx, n.namespace, "log")
}

// countingGuest returns a guest on the Pod network. It is not started yet.
func countingGuest(name string) migratingGuest {
	return migratingGuest{name: name, network: v1.Pod, consoles: &consoleLogs{seen: map[types.UID]func() string{}}}
}

// followCounts follows the guest's console, and waits until the guest counts.
func (n *migratingGuest) followCounts(ctx context.Context) {
	GinkgoHelper()
	var stop context.CancelFunc
	n.background, stop = context.WithCancel(context.Background())
	DeferCleanup(stop)
	go n.consoles.follow(n.background, n.instance)
	Eventually(n.consoles.counted).WithContext(ctx).WithTimeout(bootTimeout).ShouldNot(BeEmpty())
}

// address returns the guest's MAC address on the second network.
func (n *migratingGuest) address(ctx context.Context) string {
	GinkgoHelper()
	for _, nic := range vmi(ctx, n.namespace, n.name).Status.Interfaces {
		if nic.Name == secondNetwork {
			return nic.MAC
		}
	}
	Fail("the guest has no NIC on the second network")
	return ""
}

// migrate requests a migration, as a user does.
func (n *migratingGuest) migrate(ctx context.Context) {
	GinkgoHelper()
	expectVirtctl(ctx, "migrate", "-n", n.namespace, n.name)
}

// migration returns the guest's newest migration.
func (n *migratingGuest) migration(ctx context.Context) *v1.VirtualMachineInstanceMigration {
	GinkgoHelper()
	list := &v1.VirtualMachineInstanceMigrationList{}
	Expect(k8s.List(ctx, list, client.InNamespace(n.namespace))).To(Succeed())
	list.Items = slices.DeleteFunc(list.Items,
		func(m v1.VirtualMachineInstanceMigration) bool { return m.Spec.VMIName != n.name })
	Expect(list.Items).NotTo(BeEmpty())
	newest := slices.MaxFunc(list.Items, func(a, b v1.VirtualMachineInstanceMigration) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return &newest
}

// expectMigration requests a migration, waits until it has succeeded, and checks the status of VMI and migration.
func (n *migratingGuest) expectMigration(ctx context.Context, request func(context.Context)) migrationTimes {
	GinkgoHelper()
	from := vmi(ctx, n.namespace, n.name)
	start := time.Now()
	request(ctx)
	var now *v1.VirtualMachineInstance
	Eventually(func(g Gomega) {
		now = vmi(ctx, n.namespace, n.name)
		g.Expect(now.UID).To(Equal(from.UID))
		g.Expect(now.Status.NodeName).NotTo(Equal(from.Status.NodeName), "%+v", now.Status.MigrationState)
		// The VMI was read before the migration, so it may not have been completed yet when the migration had succeeded.
		g.Expect(now.Status.MigrationState).To(HaveField("Completed", true))
		g.Expect(n.migration(ctx).Status.Phase).To(Equal(v1.MigrationSucceeded))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(100 * time.Millisecond).Should(Succeed())
	times := migrationTimes{From: from.Status.NodeName, To: now.Status.NodeName, Total: milliseconds(time.Since(start))}
	n.migrated++

	migration, state := n.migration(ctx), now.Status.MigrationState
	Expect(state).To(And(HaveField("Failed", false), HaveField("MigrationUID", migration.UID),
		HaveField("SourceNode", times.From), HaveField("TargetNode", times.To),
		HaveField("Mode", cmp.Or(n.mode, v1.MigrationPreCopy)),
		HaveField("StartTimestamp", Not(BeNil())), HaveField("EndTimestamp", Not(BeNil())),
		HaveField("AbortRequested", false)))
	Expect(state.SourcePod).NotTo(Equal(state.TargetPod))
	Expect(state.MigrationNetworkType).To(Equal(n.network))
	if n.network == v1.Migration {
		expectReceivedOverMigrationNetwork(ctx, now)
	}
	Eventually(func(g Gomega) {
		now = vmi(ctx, n.namespace, n.name)
		g.Expect(now.Labels).To(HaveKeyWithValue(v1.NodeNameLabel, times.To))
		g.Expect(now.Labels).NotTo(HaveKey(v1.MigrationTargetNodeNameLabel))
		g.Expect(condition(now, v1.VirtualMachineInstanceReady)).To(HaveField("Status", corev1.ConditionTrue))
		g.Expect(condition(now, v1.VirtualMachineInstanceIsMigratable)).To(HaveField("Status", corev1.ConditionTrue))
		vm := &v1.VirtualMachine{}
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(now), vm)).To(Succeed())
		g.Expect(vm.Status.PrintableStatus).To(Equal(v1.VirtualMachineStatusRunning))
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
	Expect(now.Status.Phase).To(Equal(v1.Running))
	Expect(expectOneLauncher(ctx, n.instance).Name).To(Equal(state.TargetPod))
	return times
}

// needPostCopy skips a spec on a machine whose kernel does not support post-copy without privileges.
func needPostCopy() {
	GinkgoHelper()
	if _, err := os.Stat(launcherpod.PostCopyDevice); err != nil {
		Skip("this kernel is older than Linux 6.1: " + err.Error())
	}
}

// events returns the namespace's events.
func (n *migratingGuest) events(ctx context.Context) string {
	return kubectl(ctx, "", "get", "events", "-n", n.namespace)
}

// limit creates a migration policy that limits the guest's bandwidth until the spec ends.
func (n *migratingGuest) limit(
	ctx context.Context, bandwidth string, change ...func(*migrationsv1alpha1.MigrationPolicySpec),
) {
	GinkgoHelper()
	policy := &migrationsv1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: n.namespace}}
	policy.Spec.Selectors = &migrationsv1alpha1.Selectors{VirtualMachineInstanceSelector: map[string]string{"vm": n.name}}
	policy.Spec.BandwidthPerMigration = ptr.To(resource.MustParse(bandwidth))
	for _, do := range change {
		do(&policy.Spec)
	}
	create(ctx, policy)
	DeferCleanup(func(ctx context.Context) error { return k8s.Delete(ctx, policy) }, nodeTimeout(time.Minute))
}

// expectStays starts a slow migration, aborts it during the transfer, and checks that the guest runs on the source.
func (n *migratingGuest) expectStays(ctx context.Context, abort func(context.Context)) {
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
	Expect(explained).To(And(ContainSubstring("migration "+migration.Name+" is "),
		ContainSubstring("The transfer to node "+state().TargetNode)))
	target := &corev1.Pod{}
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: n.namespace, Name: state().TargetPod}, target)).To(Succeed())
	launchers := podProcesses(target, "virt-launcher")
	Expect(launchers).NotTo(BeEmpty())
	// The transfer of 128 MiB is in progress. At most 1 MiB is sent per second.
	Eventually(receivedBy).WithArguments(launchers[0].PID).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(
		pollInterval).Should(
		HaveKeyWithValue(v1.MigrationInterfaceName, BeNumerically(">", 512<<10)))
	abort(ctx)
	Eventually(state).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(And(
		HaveField("Completed", true), HaveField("Failed", true), HaveField("AbortStatus", v1.MigrationAbortSucceeded),
		HaveField("FailureReason", Not(BeEmpty()))))
	GinkgoWriter.Printf("aborted: %+v\n", state())
	Eventually(func(g Gomega) {
		ended := &v1.VirtualMachineInstanceMigration{}
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(migration), ended); client.IgnoreNotFound(err) != nil ||
			err == nil {
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(ended.Status.Phase).To(Equal(v1.MigrationFailed))
		}
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
	Expect(vmi(ctx, n.namespace, n.name).Status.NodeName).To(Equal(from.Status.NodeName))
	Expect(expectOneLauncher(ctx, n.instance).Spec.NodeName).To(Equal(from.Status.NodeName))
	n.expectCounts(ctx)
}

// expectCounts waits until the guest has continued counting.
func (n *migratingGuest) expectCounts(ctx context.Context) {
	GinkgoHelper()
	before := n.consoles.latest()
	Eventually(n.consoles.latest).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
		Should(BeNumerically(">", before+1))
}

// expectAllCounted checks that no number is missing, and returns their count. A line that the guest wrote partly in one
// Pod and partly in another is in neither log as a whole.
func (n *migratingGuest) expectAllCounted() int {
	GinkgoHelper()
	all := n.consoles.counted()
	Expect(len(all)).To(BeNumerically(">=", all[len(all)-1]-all[0]+1-n.migrated),
		"numbers are missing after %d migrations: %v", n.migrated, all)
	return len(all)
}

// expectLog checks the log on the shared disk from this host while the guest continues it, and returns the number of
// records.
func (n *migratingGuest) expectLog(ctx context.Context) int {
	GinkgoHelper()
	read := func() int { return records(ctx, n.log) }
	before := read()
	Expect(before).To(BeNumerically(">", 0))
	Eventually(read).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
		Should(BeNumerically(">", before))
	return before
}

func withEvictionStrategy(strategy v1.EvictionStrategy) option {
	return func(vm *v1.VirtualMachine) { spec(vm).EvictionStrategy = ptr.To(strategy) }
}

// withoutSerial removes the serial from the last disk: the small guest does not write to such a disk.
func withoutSerial(vm *v1.VirtualMachine) {
	disks := spec(vm).Domain.Devices.Disks
	disks[len(disks)-1].Serial = ""
}

// withBridge connects the interface on the Pod network with a bridge, so that the guest cannot migrate.
func withBridge(vm *v1.VirtualMachine) {
	spec(vm).Domain.Devices.Interfaces[0].InterfaceBindingMethod = v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}
}

// deviceOf returns the path of a claim's volume on this host.
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
	case source.CSI != nil && source.CSI.Driver == "csi.vireo.local":
		return filepath.Join("/var/lib/vireo-cluster/volumes/volumes", source.CSI.VolumeHandle, "disk")
	}
	Fail("the volume of claim " + name + " is not on this host")
	return ""
}

// diskCount returns the number after DISK- in the output of a console.
func diskCount(screen string) int {
	_, rest, _ := strings.Cut(screen, "\nDISK-")
	digits, _, _ := strings.Cut(rest, ".")
	n, _ := strconv.Atoi(digits)
	return n
}

// expectOneLauncher waits until only one launcher Pod of a VMI, and no process of another, exists, and returns it.
func expectOneLauncher(ctx context.Context, instance *v1.VirtualMachineInstance) *corev1.Pod {
	GinkgoHelper()
	pods := &corev1.PodList{}
	former := map[types.UID]string{}
	Eventually(func(g Gomega) {
		g.Expect(k8s.List(ctx, pods, client.InNamespace(instance.Namespace),
			client.MatchingLabels{v1.CreatedByLabel: string(instance.UID)})).To(Succeed())
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
