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
	source *fate
	target *fate

	here, there     *fake.Node
	targetPod       atomic.Pointer[corev1.Pod] // The watcher reads it beside the test.
	arriving        *fake.Launcher
	uid             types.UID
	sourceA         *agent
	targetA         *agent
	twoAtOnce       atomic.Bool
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
	mortal := func(node string, last int) *fate {
		return &fate{
			node: node, ip: fmt.Sprintf("127.%d.%d.%d", n/250+1, n%250, last), port: address.Port, died: make(chan struct{}),
			server: c.pki.Server(node), client: c.pki.Client(node),
		}
	}
	c.source, c.target = mortal(fmt.Sprintf("here-%d", n), 2), mortal(fmt.Sprintf("there-%d", n), 3)
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
			if arriving := c.arrivingNow(); arriving != nil && runs(arriving) && runs(c.launcher) && runs(arriving) {
				c.twoAtOnce.Store(true)
			}
		}
	}()
	DeferCleanup(func() {
		close(c.stopWatching)
		<-c.watchingStopped
		Expect(c.twoAtOnce.Load()).To(BeFalse(), "two guests ran at once")
	})
}

func (c *migratingGuest) arrivingNow() *fake.Launcher {
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
func (c *migratingGuest) prepare(holds ...func(*fake.Launcher)) *migratingGuest {
	GinkgoHelper()
	c.uid = uuid.NewUUID()
	pod := c.launcherPod(podspec.TargetPodName(c.vmi, c.uid), c.target.node)
	pod.Labels[v1.MigrationJobLabel] = string(c.uid)
	pod.Annotations[v1.MemoryOverheadAnnotationBytes] = "209715200"
	Expect(api.Create(ctx, pod)).To(Succeed())
	DeferCleanup(func() {
		Expect(client.IgnoreNotFound(api.Delete(ctx, pod, client.GracePeriodSeconds(0)))).To(Succeed())
	})
	c.arriving = c.there.Launcher(pod.UID)
	c.arriving.AddFile(launcherpod.ContainerDiskDir("root")+"/disk",
		hypervisor.Volume{Name: "disk.img", Format: hypervisor.FormatRaw, Capacity: 1 << 20})
	for _, add := range holds {
		add(c.arriving)
	}
	setRunning(pod, "10.244.1.5")
	c.targetPod.Store(pod)
	return c
}

// move assigns the migration to the agents, as virt-controller does.
func (c *migratingGuest) move(changes ...func(*v1.VirtualMachineInstanceMigrationState)) *migratingGuest {
	GinkgoHelper()
	c.prepare().moveOn(changes...)
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

// expectMoved waits until the guest runs on the target and the status is complete.
func (c *migratingGuest) expectMoved() *v1.VirtualMachineInstance {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		vmi := c.read()
		m := vmi.Status.MigrationState
		g.Expect(vmi.Status.NodeName).To(Equal(c.target.node), "%+v", m)
		g.Expect(m.Completed).To(BeTrue())
		g.Expect(m.EndTimestamp).NotTo(BeNil())
		g.Expect(m.TargetNodeDomainDetected).To(BeTrue())
		g.Expect(m.TargetNodeDomainReadyTimestamp).NotTo(BeNil())
		g.Expect(runs(c.arriving)).To(BeTrue())
	}).Should(Succeed())
	vmi := c.read()
	Expect(vmi.Status.MigrationState.Failed).To(BeFalse())
	Expect(vmi.Status.Phase).To(Equal(v1.Running))
	// libvirt reports the end of its QEMU later than the agent.
	Eventually(func() hypervisor.State { return c.launcher.Snapshot().State }).Should(Equal(hypervisor.StateEnded))
	Expect(c.launcher.Transfers()).To(Equal(1))
	return vmi
}

// expectStayed waits until the guest runs on the source and the status is complete.
func (c *migratingGuest) expectStayed() *v1.VirtualMachineInstanceMigrationState {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		m := c.state()
		g.Expect(m.Failed).To(BeTrue(), "%+v", m)
		g.Expect(runs(c.launcher)).To(BeTrue())
		arrived := c.arriving.Snapshot()
		g.Expect(arrived.Active()).To(BeFalse())
	}).Should(Succeed())
	vmi := c.read()
	Expect(vmi.Status.NodeName).To(Equal(c.source.node))
	Expect(vmi.Status.MigrationState.EndTimestamp).NotTo(BeNil())
	Expect(vmi.Status.MigrationState.FailureReason).NotTo(BeEmpty())
	Expect(vmi.Status.MigrationState.Completed).To(BeTrue())
	return vmi.Status.MigrationState
}

// restart stops an agent, if it still runs, and starts another one.
func (c *migratingGuest) restart(f **fate, a **agent, node *fake.Node) {
	GinkgoHelper()
	old := *f
	if !old.dead.Swap(true) {
		close(old.died)
	}
	(*a).stop()
	*f = &fate{node: old.node, ip: old.ip, port: old.port, died: make(chan struct{}), server: old.server, client: old.client}
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
	It("runs on the target only, and the target's agent owns it", func() {
		c := newMigratingGuest().move()
		vmi := c.expectMoved()
		Expect(vmi.Status.MigrationState.StartTimestamp).NotTo(BeNil())
		Expect(vmi.Status.MigrationState.Mode).To(Equal(v1.MigrationPreCopy))
		Expect(vmi.Status.MigrationState.TargetNodeAddress).To(Equal(c.target.ip))
		c.sourceA.expectEvent("is migrating")
		c.sourceA.expectEvent("migrated to node " + c.target.node)
		c.targetA.expectEvent("Normal PreparingTarget Migration Target is listening at " + c.target.ip + ", on ports: 49152,49153")
		c.targetA.expectEvent("Target Prepared")
		By("updating what differs on the target")
		c.arriving.SetState(hypervisor.StatePaused, hypervisor.PausedIOError)
		c.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedIOErrorReason)
		c.arriving.SetState(hypervisor.StateRunning, "")
		c.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionTrue, "")
		Expect(c.read().Status.Interfaces).To(ContainElement(HaveField("IP", "10.244.1.5")))
		By("reporting the memory overhead of its new Pod")
		Eventually(func() *v1.MemoryStatus { return c.read().Status.Memory }).
			Should(HaveField("MemoryOverhead.String()", "200Mi"))
		By("removing the certificates")
		Eventually(c.arriving.MigrationTLS).Should(BeNil())
		Eventually(c.launcher.MigrationTLS).Should(BeNil())
		Expect(c.arriving.Starts()).To(BeZero())
		Expect(c.launcher.Starts()).To(Equal(1))
		By("forgetting the transfer with the source's Pod, and not before")
		Expect(c.sourceA.guests.Remembers(c.uid)).To(BeTrue())
		c.removePod()
		Eventually(c.sourceA.guests.Remembers).WithArguments(c.uid).Should(BeFalse())
	})

	It("has no certificates left if the agent ends before it has removed them", func() {
		c := newMigratingGuest().move()
		c.expectMoved()
		Eventually(c.arriving.MigrationTLS).Should(BeNil())
		Expect(c.arriving.PutMigrationTLS(ctx, qemutls.Files{CA: []byte("left")})).To(Succeed())
		c.restartTarget()
		Eventually(c.arriving.MigrationTLS).Should(BeNil())
	})

	It("is prepared and not started before the migration is assigned to the agents", func() {
		c := newMigratingGuest().prepare()
		Eventually(func() []byte { return c.arriving.Content("seed.iso") }).ShouldNot(BeEmpty())
		Expect(c.arriving.Starts()).To(BeZero())
		Expect(c.target.had()).To(BeEmpty())
	})

	It("causes few writes", func() {
		c := newMigratingGuest()
		before := c.sourceA.writes.Load()
		c.move().expectMoved()
		// Source: the start, and the owner unless the target was faster. Target: ready to receive, domain found, running, the owner, and
		// what differs there.
		Expect(c.sourceA.writes.Load() - before).To(BeNumerically("<=", 3))
		Expect(c.targetA.writes.Load()).To(BeNumerically("<=", 7))
	})

	It("stays if the target cannot prepare for it", func() {
		c := newMigratingGuest().prepare()
		c.arriving.Fail("prepare", errLost)
		c.moveOn()
		Expect(c.expectStayed().FailureReason).To(ContainSubstring("lost"))
		c.sourceA.expectEvent("Warning Migrated VirtualMachineInstance migration uid " + string(c.uid) + " failed. reason:Live migration failed: ")
		By("migrating in the second attempt")
		c.arriving.Fail("prepare", nil)
		Expect(api.Delete(ctx, c.targetPod.Load(), client.GracePeriodSeconds(0))).To(Succeed())
		c.prepare().moveOn()
		Eventually(func(g Gomega) {
			g.Expect(c.read().Status.NodeName).To(Equal(c.target.node))
			g.Expect(runs(c.arriving)).To(BeTrue())
		}).Should(Succeed())
	})

	DescribeTable("stays if libvirt fails", func(where, call string) {
		c := newMigratingGuest().prepare()
		if where == "source" {
			c.launcher.Fail(call, errLost)
		} else {
			c.arriving.Fail(call, errLost)
		}
		c.moveOn()
		c.expectStayed()
	},
		Entry("at the start", "source", "begin"),
		Entry("during the transfer", "source", "perform"),
		Entry("at the completion on the target", "target", "finish"),
	)

	// lasting gives the guest persistent EFI variables, in a claim of each node.
	lasting := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{SecureBoot: new(false), Persistent: new(true)}}}
		vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "old", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "old"}}}
	}
	moveState := func(m *v1.VirtualMachineInstanceMigrationState) {
		m.SourcePersistentStatePVCName, m.TargetPersistentStatePVCName = "old", "new"
	}

	It("has its persistent state on the target before the target can own it", func() {
		c := newMigratingGuest(lasting).prepare()
		c.launcher.SetNVRAM([]byte("boot from the disk"))
		c.moveOn(moveState)
		vmi := c.expectMoved()
		Expect(string(c.arriving.NVRAM())).To(Equal("boot from the disk"))
		Expect(vmi.Status.VolumeStatus).To(ContainElement(HaveField("Name", "new")))
		Expect(vmi.Status.VolumeStatus).NotTo(ContainElement(HaveField("Name", "old")))
	})

	DescribeTable("stays if its persistent state cannot be transferred", func(where, call string) {
		c := newMigratingGuest(lasting).prepare()
		c.launcher.SetNVRAM([]byte("boot from the disk"))
		if where == "source" {
			c.launcher.Fail(call, errLost)
		} else {
			c.arriving.Fail(call, errLost)
		}
		c.moveOn(moveState)
		Expect(c.expectStayed().FailureReason).To(ContainSubstring("lost"))
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
		c.arriving.AddFile(dir, hypervisor.Volume{Name: launcherpod.DiskImage, Format: hypervisor.FormatRaw, Capacity: 2 << 30})
		c.moveOn()
		vmi := c.expectMoved()
		Expect(vmi.Status.MigratedVolumes).To(BeEmpty())
		for _, v := range vmi.Status.VolumeStatus {
			if v.Name == "data" {
				Expect(v.PersistentVolumeClaimInfo.ClaimName).To(Equal("new"))
			}
		}
		Expect(size()).To(BeEquivalentTo(1 << 30))
	})

	It("stays, with a reason, if the other claim is too small", func() {
		c := newMigratingGuest(onClaim)
		c.control(moveData)
		c.prepare(func(target *fake.Launcher) {
			target.AddFile(launcherpod.DiskDir("data"), hypervisor.Volume{Name: launcherpod.DiskImage, Format: hypervisor.FormatRaw, Capacity: 1 << 20})
		})
		c.moveOn()
		Expect(c.expectStayed().FailureReason).To(ContainSubstring(`the guest's disk has 1073741824 bytes, and disk.img on claim "new" only 1048576`))
		Expect(c.read().Status.MigratedVolumes).To(HaveLen(1))
	})

	It("continues on the source, and never on the target, if it is not known whether the transfer is complete", func() {
		c := newMigratingGuest().prepare()
		c.arriving.LoseResponse("finish")
		c.moveOn()
		c.expectStayed()
	})

	It("is migrated if only the last response of libvirt is lost", func() {
		c := newMigratingGuest().prepare()
		c.launcher.LoseResponse("confirm")
		c.moveOn()
		c.expectMoved()
	})

	It("runs as soon as the source's QEMU has ended, although libvirt has not noticed that", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.launcher.Slow("notice")
		defer release()
		c.moveOn()
		Eventually(reached).Should(BeClosed())
		Eventually(func() bool { return runs(c.arriving) }).Should(BeTrue())
		Eventually(func() string { return c.read().Status.NodeName }).Should(Equal(c.target.node))
		By("not destroying the source's domain, which libvirt ends")
		Consistently(func() hypervisor.State { return c.launcher.Snapshot().State }).WithTimeout(time.Second).Should(Equal(hypervisor.StatePaused))
		release()
		c.expectMoved()
		Expect(c.launcher.Snapshot().Reason).To(Equal("Migrated"))
	})

	It("does not destroy the source's domain if its agent ends before libvirt has noticed", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.launcher.Slow("notice")
		defer release()
		c.moveOn()
		Eventually(reached).Should(BeClosed())
		Eventually(func() string { return c.read().Status.NodeName }).Should(Equal(c.target.node))
		c.restartSource()
		c.expectMoved()
		Expect(c.launcher.Snapshot().Reason).To(Equal("Migrated"))
	})

	It("stays if the migration is canceled", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.launcher.Slow("perform")
		defer release()
		c.moveOn()
		Eventually(reached).Should(BeClosed())
		c.control(func(s *v1.VirtualMachineInstanceStatus) { s.MigrationState.AbortRequested = true })
		m := c.expectStayed()
		Expect(m.AbortStatus).To(Equal(v1.MigrationAbortSucceeded))
		Expect(m.FailureReason).To(Equal("Live migration aborted"))
		c.sourceA.expectEvent("Normal Migrating VirtualMachineInstance is aborting migration.")
		c.sourceA.expectEvent("failed. reason:Live migration aborted")
	})

	It("stays if the migration is canceled before its start", func() {
		c := newMigratingGuest().move(func(m *v1.VirtualMachineInstanceMigrationState) { m.AbortRequested = true })
		Expect(c.expectStayed().AbortStatus).To(Equal(v1.MigrationAbortSucceeded))
		Expect(c.launcher.Transfers()).To(BeZero())
	})

	It("runs according to the status if the release is lost", func() {
		c := newMigratingGuest()
		c.source.loseReleases.Store(true)
		c.move().expectMoved()
	})

	It("runs while the API server does not respond, and is claimed later", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.launcher.Slow("confirm")
		c.moveOn()
		Eventually(reached).Should(BeClosed())
		c.source.noAPI.Store(true)
		c.target.noAPI.Store(true)
		release()
		Eventually(func() bool { return runs(c.arriving) }).Should(BeTrue())
		Expect(c.read().Status.NodeName).To(Equal(c.source.node))
		c.source.noAPI.Store(false)
		c.target.noAPI.Store(false)
		c.expectMoved()
	})

	It("stays suspended as long as libvirt has the job of an agent that has ended, and is resumed after that", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.arriving.Slow("finish")
		defer release()
		c.launcher.Linger()
		c.moveOn()
		Eventually(reached).Should(BeClosed())
		c.restartSource()
		Consistently(func() bool { return runs(c.launcher) || runs(c.arriving) }, "2s").Should(BeFalse())
		c.launcher.Notice()
		c.expectStayed()
	})

	It("is paused on the target if its user has paused it on the source", func() {
		c := newMigratingGuest()
		c.launcher.SetState(hypervisor.StatePaused, hypervisor.PausedByUser)
		c.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedByUserReason)
		c.move()
		Eventually(func(g Gomega) {
			vmi := c.read()
			g.Expect(vmi.Status.NodeName).To(Equal(c.target.node))
			g.Expect(vmi.Status.MigrationState.TargetNodeDomainReadyTimestamp).NotTo(BeNil())
		}).Should(Succeed())
		Consistently(func() bool { return runs(c.arriving) }, "500ms").Should(BeFalse())
		Expect(vmistatus.IsConditionTrue(&c.read().Status, v1.VirtualMachineInstancePaused)).To(BeTrue())
	})

	It("cancels a transfer that makes no progress", func() {
		c := newMigratingGuest().prepare()
		_, release := c.launcher.Slow("perform")
		defer release()
		c.launcher.SetProgress(hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.moveOn(func(m *v1.VirtualMachineInstanceMigrationState) {
			second := int64(1)
			m.VMIMConfigurationOptions.CompletionTimeoutPerGiB = &second
		})
		Expect(c.expectStayed().FailureReason).To(ContainSubstring("not completed after 1 seconds"))
	})

	It("cancels a stalled transfer at once, with the feature gate", func() {
		c := newMigratingGuest().prepare()
		c.sourceA.detectsStalls.Store(true)
		_, release := c.launcher.Slow("perform")
		defer release()
		progress := hypervisor.TransferProgress{Iteration: 1, Memory: hypervisor.TransferAmount{
			Total: 1 << 30, Processed: 1, Remaining: 100 << 20, BytesPerSecond: 10 << 20,
		}}
		c.launcher.SetProgress(progress)
		c.moveOn(func(m *v1.VirtualMachineInstanceMigrationState) {
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
		Expect(c.expectStayed().FailureReason).To(HavePrefix("Migration aborted: estimated downtime"))
	})

	It("is paused for the rest of the transfer if workload disruption is allowed", func() {
		c := newMigratingGuest().prepare()
		_, release := c.launcher.Slow("perform")
		c.launcher.SetProgress(hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.moveOn(func(m *v1.VirtualMachineInstanceMigrationState) {
			allowed, second := true, int64(3)
			m.VMIMConfigurationOptions.AllowWorkloadDisruption, m.VMIMConfigurationOptions.CompletionTimeoutPerGiB = &allowed, &second
		})
		Eventually(func() v1.MigrationMode { return c.state().Mode }).Should(Equal(v1.MigrationPaused))
		Eventually(c.launcher.MaxDowntime).Should(Equal(2000 * time.Second))
		release()
		c.expectMoved()
	})
})

// moveOn assigns a prepared migration to the agents.
func (c *migratingGuest) moveOn(changes ...func(*v1.VirtualMachineInstanceMigrationState)) {
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

	It("is reported as such before the switch", func() {
		c := newMigratingGuest().prepare()
		_, release := c.launcher.Slow("perform")
		c.launcher.SetProgress(hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.launcher.Fail("postcopy", errLost)
		c.moveOn(slow)
		Eventually(func() v1.MigrationMode { return c.state().Mode }).Should(Equal(v1.MigrationPostCopy))
		Expect(c.launcher.PostCopyStarted()).To(BeFalse())
		c.launcher.Fail("postcopy", nil)
		Eventually(c.launcher.PostCopyStarted).Should(BeTrue())
		release()
		c.expectMoved()
	})

	It("is not switched to post-copy on a node that does not allow it, which is reported", func() {
		c := newMigratingGuest().prepare()
		c.target.noPostCopy = true
		_, release := c.launcher.Slow("perform")
		defer release()
		c.launcher.SetProgress(hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.moveOn(slow)
		Expect(c.expectStayed().FailureReason).To(ContainSubstring("not completed after 2 seconds"))
		Expect(c.launcher.PostCopyStarted()).To(BeFalse())
		c.sourceA.expectEvent("goes on without post-copy")
	})

	It("has a source that still serves its memory", func() {
		c := newMigratingGuest().prepare()
		_, copied := c.launcher.Slow("perform")
		reached, release := c.arriving.Slow("finish")
		c.launcher.SetProgress(hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.moveOn(slow)
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
		c.expectMoved()
	})
})

var _ = Describe("An agent that ends between any two actions of a migration", func() {
	// expectOneEnd checks that the guest runs on one node, according to the status.
	expectOneEnd := func(c *migratingGuest) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			vmi := c.read()
			m := vmi.Status.MigrationState
			g.Expect(m.Completed).To(BeTrue(), "source %v, target %v, %+v", c.source.had(), c.target.had(), m)
			g.Expect(m.Failed).To(Equal(vmi.Status.NodeName == c.source.node))
			g.Expect(runs(c.launcher)).To(Equal(m.Failed))
			g.Expect(runs(c.arriving)).To(Equal(!m.Failed))
			keeper := c.arriving
			if m.Failed {
				keeper = c.launcher
			}
			g.Expect(keeper.MigrationTLS()).To(BeNil(), "certificates where the guest is; source %v, target %v", c.source.had(), c.target.had())
		}).Should(Succeed())
		Expect(c.launcher.Transfers()).To(BeNumerically("<=", 1))
	}

	// die lets an agent have one more effect in each round, until the migration ends before the agent.
	die := func(who string) {
		moved, stayed := 0, 0
		for n := int32(1); ; n++ {
			Expect(n).To(BeNumerically("<", 20))
			c := newMigratingGuest()
			mortal := c.source
			if who == "target" {
				mortal = c.target
			}
			mortal.left.Store(n)
			c.move()
			died := false
			Eventually(func() bool {
				select {
				case <-mortal.died:
					died = true
				default:
				}
				return died || (c.state().Completed && (c.state().Failed || c.state().TargetNodeDomainReadyTimestamp != nil))
			}).Should(BeTrue())
			if !died {
				Expect(moved).To(BeNumerically(">", 0))
				AddReportEntry(fmt.Sprintf("%s: %d ends, %d moved and %d stayed", who, n-1, moved, stayed))
				return
			}
			if who == "target" {
				c.restartTarget()
			} else {
				c.restartSource()
			}
			expectOneEnd(c)
			if c.state().Failed {
				stayed++
			} else {
				moved++
			}
			c.sourceA.stop()
			c.targetA.stop()
		}
	}

	It("at the source", func() { die("source") })
	It("at the target", func() { die("target") })
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
