// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler_test

import (
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/fake"
	"github.com/vireo-project/vireo/internal/agent/migration/qemutls"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/agentpki"
)

func itoa(n int) string { return strconv.Itoa(n) }

// migratingGuest is a guest that is migrated from one node to another, with the agents of both.
type migratingGuest struct {
	*guest
	pki    *agentpki.World
	source *faults
	target *faults

	here, there     *fake.Node
	targetPod       atomic.Pointer[corev1.Pod] // The watcher reads it concurrently.
	targetLauncher  *fake.Launcher
	uid             types.UID
	sourceA         *agent
	targetA         *agent
	ranOnBoth       atomic.Bool
	stopWatching    chan struct{}
	watchingStopped chan struct{}
}

var migratingGuests atomic.Int32

// newMigratingGuest starts a guest on a node of its own and an agent on another node.
func newMigratingGuest(changes ...func(*v1.VirtualMachineInstance)) *migratingGuest {
	GinkgoHelper()
	n := int(migratingGuests.Add(1))
	c := &migratingGuest{guest: makeGuest(changes...), pki: agentpki.New(GinkgoT()), here: fake.NewNode(), there: fake.NewNode()}
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	address, ok := probe.Addr().(*net.TCPAddr)
	Expect(ok).To(BeTrue())
	Expect(probe.Close()).To(Succeed())
	faulty := func(node string, last int) *faults {
		return &faults{
			node: node, ip: fmt.Sprintf("127.%d.%d.%d", n/250+1, n%250, last), port: address.Port, ended: make(chan struct{}),
			server: c.pki.Server(node), client: c.pki.Client(node),
		}
	}
	c.source, c.target = faulty(fmt.Sprintf("here-%d", n), 2), faulty(fmt.Sprintf("there-%d", n), 3)
	c.sourceA = startAgentOn(c.source.node, c.here, c.source)
	c.targetA = startAgentOn(c.target.node, c.there, c.target)
	c.scheduleOn(c.source.node, c.here).assign()
	c.expectPhase(v1.Running)
	c.watch()
	return c
}

// watch checks that the guest never runs on both nodes.
func (c *migratingGuest) watch() {
	c.stopWatching, c.watchingStopped = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(c.watchingStopped)
		for {
			select {
			case <-c.stopWatching:
				return
			case <-time.After(200 * time.Microsecond):
			}
			// The source is read first: a guest that does not run there never runs there again once the target's runs.
			if target := c.currentTargetLauncher(); target != nil && runs(target) && runs(c.launcher) && runs(target) {
				c.ranOnBoth.Store(true)
			}
		}
	}()
	DeferCleanup(func() {
		close(c.stopWatching)
		<-c.watchingStopped
		Expect(c.ranOnBoth.Load()).To(BeFalse(), "two guests ran at once")
	})
}

func (c *migratingGuest) currentTargetLauncher() *fake.Launcher {
	pod := c.targetPod.Load()
	if pod == nil {
		return nil
	}
	return c.there.Launcher(pod.UID)
}

func runs(l *fake.Launcher) bool {
	d := l.Snapshot()
	return d != nil && d.State == hypervisor.StateRunning
}

// prepare creates the target's Pod with the files of its volumes, as virt-controller does.
func (c *migratingGuest) prepare(volumes ...func(*fake.Launcher)) *migratingGuest {
	GinkgoHelper()
	c.uid = uuid.NewUUID()
	pod := c.launcherPod(podspec.TargetPodName(c.vmi, c.uid), c.target.node)
	pod.Labels[v1.MigrationJobLabel] = string(c.uid)
	pod.Annotations[v1.MemoryOverheadAnnotationBytes] = "209715200"
	Expect(api.Create(ctx, pod)).To(Succeed())
	DeferCleanup(func() {
		Expect(client.IgnoreNotFound(api.Delete(ctx, pod, client.GracePeriodSeconds(0)))).To(Succeed())
	})
	c.targetLauncher = c.there.Launcher(pod.UID)
	c.targetLauncher.AddFile(launcherpod.ContainerDiskDir("root")+"/disk",
		hypervisor.Volume{Name: "disk.img", Format: hypervisor.FormatRaw, Capacity: 1 << 20})
	for _, add := range volumes {
		add(c.targetLauncher)
	}
	setRunning(pod, "10.244.1.5")
	c.targetPod.Store(pod)
	return c
}

// migrate prepares a migration and assigns it to the agents, as virt-controller does.
func (c *migratingGuest) migrate(changes ...func(*v1.VirtualMachineInstanceMigrationState)) *migratingGuest {
	GinkgoHelper()
	c.prepare().assignMigration(changes...)
	return c
}

// control writes the status as virt-controller.
func (c *migratingGuest) control(change func(*v1.VirtualMachineInstanceStatus)) {
	GinkgoHelper()
	Eventually(func() error {
		before := c.read()
		after := before.DeepCopy()
		change(&after.Status)
		_, err := vmistatus.Patch(ctx, api, vmistatus.Controller, before, after)
		return err
	}).Should(Succeed())
}

func (c *migratingGuest) state() *v1.VirtualMachineInstanceMigrationState {
	return c.read().Status.MigrationState
}

// expectMigrated waits until the guest runs on the target and the status is complete.
func (c *migratingGuest) expectMigrated() *v1.VirtualMachineInstance {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		vmi := c.read()
		m := vmi.Status.MigrationState
		g.Expect(vmi.Status.NodeName).To(Equal(c.target.node), "%+v", m)
		g.Expect(m.Completed).To(BeTrue())
		g.Expect(m.EndTimestamp).NotTo(BeNil())
		g.Expect(m.TargetNodeDomainDetected).To(BeTrue())
		g.Expect(m.TargetNodeDomainReadyTimestamp).NotTo(BeNil())
		g.Expect(runs(c.targetLauncher)).To(BeTrue())
	}).Should(Succeed())
	vmi := c.read()
	Expect(vmi.Status.MigrationState.Failed).To(BeFalse())
	Expect(vmi.Status.Phase).To(Equal(v1.Running))
	// libvirt reports the end of its QEMU later than the agent.
	Eventually(func() hypervisor.State { return c.launcher.Snapshot().State }).Should(Equal(hypervisor.StateEnded))
	Expect(c.launcher.Transfers()).To(Equal(1))
	return vmi
}

// expectNotMigrated waits until the guest runs on the source and the status is complete.
func (c *migratingGuest) expectNotMigrated() *v1.VirtualMachineInstanceMigrationState {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		m := c.state()
		g.Expect(m.Failed).To(BeTrue(), "%+v", m)
		g.Expect(runs(c.launcher)).To(BeTrue())
		target := c.targetLauncher.Snapshot()
		g.Expect(target.Active()).To(BeFalse())
	}).Should(Succeed())
	vmi := c.read()
	Expect(vmi.Status.NodeName).To(Equal(c.source.node))
	Expect(vmi.Status.MigrationState.EndTimestamp).NotTo(BeNil())
	Expect(vmi.Status.MigrationState.FailureReason).NotTo(BeEmpty())
	Expect(vmi.Status.MigrationState.Completed).To(BeTrue())
	return vmi.Status.MigrationState
}

// restart stops an agent, if it still runs, and starts another one.
func (c *migratingGuest) restart(f **faults, a **agent, node *fake.Node) {
	GinkgoHelper()
	old := *f
	if !old.stopped.Swap(true) {
		close(old.ended)
	}
	(*a).stop()
	*f = &faults{node: old.node, ip: old.ip, port: old.port, ended: make(chan struct{}), server: old.server, client: old.client}
	*a = startAgentOn(old.node, node, *f)
}

func (c *migratingGuest) restartSource() {
	GinkgoHelper()
	c.restart(&c.source, &c.sourceA, c.here)
}

func (c *migratingGuest) restartTarget() {
	GinkgoHelper()
	c.restart(&c.target, &c.targetA, c.there)
}

var _ = Describe("A guest that is migrated to another node", func() {
	It("runs on the target only, and is owned by the target's agent", func() {
		c := newMigratingGuest().migrate()
		vmi := c.expectMigrated()
		Expect(vmi.Status.MigrationState.StartTimestamp).NotTo(BeNil())
		Expect(vmi.Status.MigrationState.Mode).To(Equal(v1.MigrationPreCopy))
		Expect(vmi.Status.MigrationState.TargetNodeAddress).To(Equal(c.target.ip))
		c.sourceA.expectEvent("is migrating")
		c.sourceA.expectEvent("migrated to node " + c.target.node)
		c.targetA.expectEvent("Normal PreparingTarget Migration Target is listening at " + c.target.ip + ", on ports: 49152,49153")
		c.targetA.expectEvent("Target Prepared")
		By("updating what differs on the target")
		c.targetLauncher.SetState(hypervisor.StatePaused, hypervisor.PausedIOError)
		c.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedIOErrorReason)
		c.targetLauncher.SetState(hypervisor.StateRunning, "")
		c.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionTrue, "")
		Expect(c.read().Status.Interfaces).To(ContainElement(HaveField("IP", "10.244.1.5")))
		By("reporting the memory overhead of its new Pod")
		Eventually(func() *v1.MemoryStatus { return c.read().Status.Memory }).
			Should(HaveField("MemoryOverhead.String()", "200Mi"))
		By("removing the certificates")
		Eventually(c.targetLauncher.MigrationTLS).Should(BeNil())
		Eventually(c.launcher.MigrationTLS).Should(BeNil())
		Expect(c.targetLauncher.Starts()).To(BeZero())
		Expect(c.launcher.Starts()).To(Equal(1))
		By("keeping the record of the transfer until the source's Pod is removed")
		Expect(c.sourceA.guests.Remembers(c.uid)).To(BeTrue())
		c.removePod()
		Eventually(c.sourceA.guests.Remembers).WithArguments(c.uid).Should(BeFalse())
	})

	It("has its certificates removed by a restarted agent", func() {
		c := newMigratingGuest().migrate()
		c.expectMigrated()
		Eventually(c.targetLauncher.MigrationTLS).Should(BeNil())
		Expect(c.targetLauncher.PutMigrationTLS(ctx, qemutls.Files{CA: []byte("left")})).To(Succeed())
		c.restartTarget()
		Eventually(c.targetLauncher.MigrationTLS).Should(BeNil())
	})

	It("is prepared and not started before the migration is assigned to the agents", func() {
		c := newMigratingGuest().prepare()
		Eventually(func() []byte { return c.targetLauncher.Content("seed.iso") }).ShouldNot(BeEmpty())
		Expect(c.targetLauncher.Starts()).To(BeZero())
		Expect(c.target.executed()).To(BeEmpty())
	})

	It("causes few writes", func() {
		c := newMigratingGuest()
		before := c.sourceA.writes.Load()
		c.migrate().expectMigrated()
		// Source: the start, and the owner unless the target was faster. Target: ready to receive, domain found, running, the owner, and
		// what differs there.
		Expect(c.sourceA.writes.Load() - before).To(BeNumerically("<=", 3))
		Expect(c.targetA.writes.Load()).To(BeNumerically("<=", 7))
	})

	It("stays on the source if the target's preparation fails", func() {
		c := newMigratingGuest().prepare()
		c.targetLauncher.Fail("prepare", errLost)
		c.assignMigration()
		Expect(c.expectNotMigrated().FailureReason).To(ContainSubstring("lost"))
		c.sourceA.expectEvent("Warning Migrated VirtualMachineInstance migration uid " + string(c.uid) + " failed. reason:Live migration failed: ")
		By("migrating with the second migration")
		c.targetLauncher.Fail("prepare", nil)
		Expect(api.Delete(ctx, c.targetPod.Load(), client.GracePeriodSeconds(0))).To(Succeed())
		c.prepare().assignMigration()
		Eventually(func(g Gomega) {
			g.Expect(c.read().Status.NodeName).To(Equal(c.target.node))
			g.Expect(runs(c.targetLauncher)).To(BeTrue())
		}).Should(Succeed())
	})

	DescribeTable("stays on the source if libvirt fails", func(where, call string) {
		c := newMigratingGuest().prepare()
		if where == "source" {
			c.launcher.Fail(call, errLost)
		} else {
			c.targetLauncher.Fail(call, errLost)
		}
		c.assignMigration()
		c.expectNotMigrated()
	},
		Entry("at the start", "source", "begin"),
		Entry("during the transfer", "source", "perform"),
		Entry("at the completion on the target", "target", "finish"),
	)

	// persistentEFI gives the guest persistent EFI variables, in a claim of each node.
	persistentEFI := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{SecureBoot: new(false), Persistent: new(true)}}}
		vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "old", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "old"}}}
	}
	moveState := func(m *v1.VirtualMachineInstanceMigrationState) {
		m.SourcePersistentStatePVCName, m.TargetPersistentStatePVCName = "old", "new"
	}

	It("has its persistent state on the target before ownership is transferred", func() {
		c := newMigratingGuest(persistentEFI).prepare()
		c.launcher.SetNVRAM([]byte("boot from the disk"))
		c.assignMigration(moveState)
		vmi := c.expectMigrated()
		Expect(string(c.targetLauncher.NVRAM())).To(Equal("boot from the disk"))
		Expect(vmi.Status.VolumeStatus).To(ContainElement(HaveField("Name", "new")))
		Expect(vmi.Status.VolumeStatus).NotTo(ContainElement(HaveField("Name", "old")))
	})

	DescribeTable("stays on the source if its persistent state cannot be transferred", func(where, call string) {
		c := newMigratingGuest(persistentEFI).prepare()
		c.launcher.SetNVRAM([]byte("boot from the disk"))
		if where == "source" {
			c.launcher.Fail(call, errLost)
		} else {
			c.targetLauncher.Fail(call, errLost)
		}
		c.assignMigration(moveState)
		Expect(c.expectNotMigrated().FailureReason).To(ContainSubstring("lost"))
		Expect(c.read().Status.VolumeStatus).To(ContainElement(HaveField("Name", "old")))
	},
		Entry("because it cannot be read", "source", "nvram"),
		Entry("because it cannot be written", "target", "state"),
	)

	// onClaim puts the guest's data on a claim that is migrated to another claim.
	onClaim := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
				PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "new"},
			},
		}})
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{
			Name: "data", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}},
		})
		vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "data", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
			ClaimName: "old", Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		}}}
	}
	moveData := func(s *v1.VirtualMachineInstanceStatus) {
		s.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "data",
			SourcePVCInfo:      &v1.PersistentVolumeClaimInfo{ClaimName: "old"},
			DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "new"}}}
	}

	It("is migrated to another claim, and reports the size of its disk before and after", func() {
		c := newMigratingGuest(onClaim)
		size := func() int64 {
			for _, v := range c.read().Status.VolumeStatus {
				if v.Name == "data" {
					return v.Size
				}
			}
			return 0
		}
		Eventually(size).Should(BeEquivalentTo(1 << 30))
		c.control(moveData)
		c.prepare()
		dir := launcherpod.DiskDir("data")
		c.targetLauncher.AddFile(dir, hypervisor.Volume{Name: launcherpod.DiskImage, Format: hypervisor.FormatRaw, Capacity: 2 << 30})
		c.assignMigration()
		vmi := c.expectMigrated()
		Expect(vmi.Status.MigratedVolumes).To(BeEmpty())
		for _, v := range vmi.Status.VolumeStatus {
			if v.Name == "data" {
				Expect(v.PersistentVolumeClaimInfo.ClaimName).To(Equal("new"))
			}
		}
		Expect(size()).To(BeEquivalentTo(1 << 30))
	})

	It("stays on the source, with a reason, if the other claim is too small", func() {
		c := newMigratingGuest(onClaim)
		c.control(moveData)
		c.prepare(func(target *fake.Launcher) {
			target.AddFile(launcherpod.DiskDir("data"), hypervisor.Volume{Name: launcherpod.DiskImage, Format: hypervisor.FormatRaw, Capacity: 1 << 20})
		})
		c.assignMigration()
		Expect(c.expectNotMigrated().FailureReason).To(ContainSubstring(`the guest's disk has 1073741824 bytes, and disk.img on claim "new" only 1048576`))
		Expect(c.read().Status.MigratedVolumes).To(HaveLen(1))
	})

	It("continues on the source, and never on the target, if it is not known whether the transfer is complete", func() {
		c := newMigratingGuest().prepare()
		c.targetLauncher.LoseResponse("finish")
		c.assignMigration()
		c.expectNotMigrated()
	})

	It("is reported as undecided by both agents while the source cannot record that it stays", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.targetLauncher.Slow("finish")
		c.targetLauncher.LoseResponse("finish")
		c.assignMigration()
		Eventually(reached).Should(BeClosed())
		c.source.noAPI.Store(true)
		release()
		Eventually(c.sourceA.guests.Waiting).Should(ConsistOf(HaveField("Owner", true)))
		Eventually(c.targetA.guests.Waiting).Should(ConsistOf(HaveField("Owner", true)))
		c.source.noAPI.Store(false)
		c.expectNotMigrated()
		Eventually(c.sourceA.guests.Waiting).Should(BeEmpty())
		Eventually(c.targetA.guests.Waiting).Should(BeEmpty())
	})

	It("is migrated if only libvirt's last response is lost", func() {
		c := newMigratingGuest().prepare()
		c.launcher.LoseResponse("confirm")
		c.assignMigration()
		c.expectMigrated()
	})

	It("runs on the target as soon as the source's QEMU has ended, before libvirt reports that", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.launcher.Slow("notice")
		defer release()
		c.assignMigration()
		Eventually(reached).Should(BeClosed())
		Eventually(func() bool { return runs(c.targetLauncher) }).Should(BeTrue())
		Eventually(func() string { return c.read().Status.NodeName }).Should(Equal(c.target.node))
		By("not destroying the source's domain, which libvirt ends")
		Consistently(func() hypervisor.State { return c.launcher.Snapshot().State }).WithTimeout(time.Second).Should(Equal(hypervisor.StatePaused))
		release()
		c.expectMigrated()
		Expect(c.launcher.Snapshot().Reason).To(Equal("Migrated"))
	})

	It("does not have the source's domain destroyed if its agent restarts before libvirt reports the end of QEMU", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.launcher.Slow("notice")
		defer release()
		c.assignMigration()
		Eventually(reached).Should(BeClosed())
		Eventually(func() string { return c.read().Status.NodeName }).Should(Equal(c.target.node))
		c.restartSource()
		c.expectMigrated()
		Expect(c.launcher.Snapshot().Reason).To(Equal("Migrated"))
	})

	It("stays on the source if the migration is canceled", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.launcher.Slow("perform")
		defer release()
		c.assignMigration()
		Eventually(reached).Should(BeClosed())
		c.control(func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState.AbortRequested = true })
		m := c.expectNotMigrated()
		Expect(m.AbortStatus).To(Equal(v1.MigrationAbortSucceeded))
		Expect(m.FailureReason).To(Equal("Live migration aborted"))
		c.sourceA.expectEvent("Normal Migrating VirtualMachineInstance is aborting migration.")
		c.sourceA.expectEvent("failed. reason:Live migration aborted")
	})

	It("stays on the source if the migration is canceled before its start", func() {
		c := newMigratingGuest().migrate(func(m *v1.VirtualMachineInstanceMigrationState) { m.AbortRequested = true })
		Expect(c.expectNotMigrated().AbortStatus).To(Equal(v1.MigrationAbortSucceeded))
		Expect(c.launcher.Transfers()).To(BeZero())
	})

	It("runs on the target according to the status if the release is lost", func() {
		c := newMigratingGuest()
		c.source.loseReleases.Store(true)
		c.migrate().expectMigrated()
	})

	It("runs on the target while the API server does not respond, and is owned by the target later", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.launcher.Slow("confirm")
		c.assignMigration()
		Eventually(reached).Should(BeClosed())
		c.source.noAPI.Store(true)
		c.target.noAPI.Store(true)
		release()
		Eventually(func() bool { return runs(c.targetLauncher) }).Should(BeTrue())
		Expect(c.read().Status.NodeName).To(Equal(c.source.node))
		c.source.noAPI.Store(false)
		c.target.noAPI.Store(false)
		c.expectMigrated()
	})

	It("stays suspended while libvirt has the job of an agent that has ended, and is resumed on the source after that", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.targetLauncher.Slow("finish")
		defer release()
		c.launcher.KeepJob()
		c.assignMigration()
		Eventually(reached).Should(BeClosed())
		c.restartSource()
		Consistently(func() bool { return runs(c.launcher) || runs(c.targetLauncher) }, "2s").Should(BeFalse())
		Expect(c.sourceA.guests.Waiting()).To(ConsistOf(HaveField("Owner", true)))
		c.launcher.EndJob()
		c.expectNotMigrated()
		Eventually(c.sourceA.guests.Waiting).Should(BeEmpty())
	})

	It("stays paused on the target if a user paused it on the source", func() {
		c := newMigratingGuest()
		c.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedByUser)
		c.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedByUserReason)
		c.migrate()
		Eventually(func(g Gomega) {
			vmi := c.read()
			g.Expect(vmi.Status.NodeName).To(Equal(c.target.node))
			g.Expect(vmi.Status.MigrationState.TargetNodeDomainReadyTimestamp).NotTo(BeNil())
		}).Should(Succeed())
		Consistently(func() bool { return runs(c.targetLauncher) }, "500ms").Should(BeFalse())
		Expect(vmistatus.IsConditionTrue(&c.read().Status, v1.VirtualMachineInstancePaused)).To(BeTrue())
	})

	It("stays on the source if the transfer makes no progress", func() {
		c := newMigratingGuest().prepare()
		_, release := c.launcher.Slow("perform")
		defer release()
		c.launcher.SetProgress(hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.assignMigration(func(m *v1.VirtualMachineInstanceMigrationState) {
			second := int64(1)
			m.VMIMConfigurationOptions.CompletionTimeoutPerGiB = &second
		})
		Expect(c.expectNotMigrated().FailureReason).To(ContainSubstring("not completed after 1 seconds"))
	})

	It("stays on the source if the transfer stalls and the feature gate is enabled", func() {
		c := newMigratingGuest().prepare()
		c.sourceA.detectsStalls.Store(true)
		_, release := c.launcher.Slow("perform")
		defer release()
		progress := hypervisor.TransferProgress{Iteration: 1, Memory: hypervisor.TransferAmount{
			Total: 1 << 30, Processed: 1, Remaining: 100 << 20, BytesPerSecond: 10 << 20,
		}}
		c.launcher.SetProgress(progress)
		c.assignMigration(func(m *v1.VirtualMachineInstanceMigrationState) {
			downtime, window := uint64(900), uint64(0)
			m.VMIMConfigurationOptions.MaxDowntimeMs = &downtime
			m.VMIMConfigurationOptions.ExperimentalMigrationOptions = &v1.ExperimentalMigrationOptions{
				StallDetector: &v1.StallDetectorOptions{StallProgressTimeout: &window},
			}
		})
		Eventually(func() bool {
			progress.Iteration++
			c.launcher.SetProgress(progress)
			return c.state().Failed
		}).Should(BeTrue())
		Expect(c.expectNotMigrated().FailureReason).To(HavePrefix("Migration aborted: estimated downtime"))
	})

	It("is paused during the transfer if workload disruption is allowed", func() {
		c := newMigratingGuest().prepare()
		_, release := c.launcher.Slow("perform")
		c.launcher.SetProgress(hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.assignMigration(func(m *v1.VirtualMachineInstanceMigrationState) {
			allowed, second := true, int64(3)
			m.VMIMConfigurationOptions.AllowWorkloadDisruption, m.VMIMConfigurationOptions.CompletionTimeoutPerGiB = &allowed, &second
		})
		Eventually(func() v1.MigrationMode { return c.state().Mode }).Should(Equal(v1.MigrationPaused))
		Eventually(c.launcher.MaxDowntime).Should(Equal(2000 * time.Second))
		release()
		c.expectMigrated()
	})
})

// assignMigration assigns a prepared migration to the agents.
func (c *migratingGuest) assignMigration(changes ...func(*v1.VirtualMachineInstanceMigrationState)) {
	GinkgoHelper()
	c.control(func(s *v1.VirtualMachineInstanceStatus) {
		s.MigrationState = &v1.VirtualMachineInstanceMigrationState{
			MigrationUID: c.uid, SourceNode: c.source.node, SourcePod: c.pod.Name, TargetNode: c.target.node, TargetPod: c.targetPod.Load().Name,
			VMIMConfigurationOptions: &v1.VMIMConfigurationOptions{},
		}
		for _, change := range changes {
			change(s.MigrationState)
		}
	})
}

var _ = Describe("A guest in a post-copy", func() {
	slow := func(m *v1.VirtualMachineInstanceMigrationState) {
		allowed, second := true, int64(2)
		m.VMIMConfigurationOptions.AllowPostCopy, m.VMIMConfigurationOptions.CompletionTimeoutPerGiB = &allowed, &second
	}

	It("is reported as in post-copy before the switch", func() {
		c := newMigratingGuest().prepare()
		_, release := c.launcher.Slow("perform")
		c.launcher.SetProgress(hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.launcher.Fail("postcopy", errLost)
		c.assignMigration(slow)
		Eventually(func() v1.MigrationMode { return c.state().Mode }).Should(Equal(v1.MigrationPostCopy))
		Expect(c.launcher.PostCopyStarted()).To(BeFalse())
		c.launcher.Fail("postcopy", nil)
		Eventually(c.launcher.PostCopyStarted).Should(BeTrue())
		release()
		c.expectMigrated()
	})

	It("is not switched to post-copy if the target's node does not allow it, which is recorded as an event", func() {
		c := newMigratingGuest().prepare()
		c.target.noPostCopy = true
		_, release := c.launcher.Slow("perform")
		defer release()
		c.launcher.SetProgress(hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.assignMigration(slow)
		Expect(c.expectNotMigrated().FailureReason).To(ContainSubstring("not completed after 2 seconds"))
		Expect(c.launcher.PostCopyStarted()).To(BeFalse())
		c.sourceA.expectEvent("continues without post-copy")
	})

	It("keeps its source, which still serves memory", func() {
		c := newMigratingGuest().prepare()
		_, copied := c.launcher.Slow("perform")
		reached, release := c.targetLauncher.Slow("finish")
		c.launcher.SetProgress(hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.assignMigration(slow)
		Eventually(c.launcher.PostCopyStarted).Should(BeTrue())
		copied()
		Eventually(reached).Should(BeClosed())
		By("reporting that the target runs the guest")
		Eventually(func() error { return vmistatus.TransferOwnership(ctx, api, c.read()) }).Should(Succeed())
		Consistently(func() hypervisor.State {
			c.launcher.Notify()
			return c.launcher.Snapshot().State
		}, "1s").Should(Equal(hypervisor.StatePaused))
		release()
		c.expectMigrated()
	})
})

var _ = Describe("An agent that ends between any two actions of a migration", func() {
	// expectConsistent checks that the guest runs on one node, according to the status.
	expectConsistent := func(c *migratingGuest) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			vmi := c.read()
			m := vmi.Status.MigrationState
			g.Expect(m.Completed).To(BeTrue(), "source %v, target %v, %+v", c.source.executed(), c.target.executed(), m)
			g.Expect(m.Failed).To(Equal(vmi.Status.NodeName == c.source.node))
			g.Expect(runs(c.launcher)).To(Equal(m.Failed))
			g.Expect(runs(c.targetLauncher)).To(Equal(!m.Failed))
			owner := c.targetLauncher
			if m.Failed {
				owner = c.launcher
			}
			g.Expect(owner.MigrationTLS()).To(BeNil(), "certificates in the guest's Pod; source %v, target %v", c.source.executed(), c.target.executed())
		}).Should(Succeed())
		Expect(c.launcher.Transfers()).To(BeNumerically("<=", 1))
	}

	// endAfterEach ends an agent after one more effect in each round, until the migration is completed before that.
	endAfterEach := func(side string) {
		migrated, notMigrated := 0, 0
		for n := int32(1); ; n++ {
			Expect(n).To(BeNumerically("<", 20))
			c := newMigratingGuest()
			faulty := c.source
			if side == "target" {
				faulty = c.target
			}
			faulty.left.Store(n)
			c.migrate()
			ended := false
			Eventually(func() bool {
				select {
				case <-faulty.ended:
					ended = true
				default:
				}
				return ended || (c.state().Completed && (c.state().Failed || c.state().TargetNodeDomainReadyTimestamp != nil))
			}).Should(BeTrue())
			if !ended {
				Expect(migrated).To(BeNumerically(">", 0))
				AddReportEntry(fmt.Sprintf("%s: %d ends, %d migrated and %d not migrated", side, n-1, migrated, notMigrated))
				return
			}
			if side == "target" {
				c.restartTarget()
			} else {
				c.restartSource()
			}
			expectConsistent(c)
			if c.state().Failed {
				notMigrated++
			} else {
				migrated++
			}
			c.sourceA.stop()
			c.targetA.stop()
		}
	}

	It("at the source", func() { endAfterEach("source") })
	It("at the target", func() { endAfterEach("target") })
})

// setRunning makes a Pod run, as the kubelet does.
func setRunning(pod *corev1.Pod, ip string) {
	GinkgoHelper()
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
	}
	Expect(api.Status().Update(ctx, pod)).To(Succeed())
}
