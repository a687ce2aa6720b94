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
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/hypervisor/fake"
	"github.com/vireo-project/vireo/internal/handler/migrationtls"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/agentpki"
)

func itoa(n int) string { return strconv.Itoa(n) }

// migratingGuest is a guest that moves from one node to another, with the agents of both.
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

// newMigratingGuest brings a guest to life on a node of its own, beside another node.
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
	c.scheduleOn(c.source.node, c.here).handOver()
	c.expectPhase(v1.Running)
	c.watch()
	return c
}

// watch looks for the one thing that must never happen.
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
			// The source first: what does not run there now never runs there again once the target's does.
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

// prepare makes the target's Pod, as the controller does, with what its volumes hold.
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

// move hands the migration to the agents, as the controller does.
func (c *migratingGuest) move(changes ...func(*v1.VirtualMachineInstanceMigrationState)) *migratingGuest {
	GinkgoHelper()
	c.prepare().moveOn(changes...)
	return c
}

// control writes what the controller writes.
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

// expectMoved waits until the guest is there, and everything says so.
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
	// libvirt notices the end of its QEMU later than the agent.
	Eventually(func() hypervisor.State { return c.launcher.Snapshot().State }).Should(Equal(hypervisor.StateEnded))
	Expect(c.launcher.Copies()).To(Equal(1))
	return vmi
}

// expectStayed waits until the guest runs where it was, and everything says so.
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

// restart ends an agent's process, if it has not ended yet, and starts another one.
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

var _ = Describe("A guest that moves to another node", func() {
	It("runs there and nowhere else, and the agent there is its agent", func() {
		c := newMigratingGuest().move()
		vmi := c.expectMoved()
		Expect(vmi.Status.MigrationState.StartTimestamp).NotTo(BeNil())
		Expect(vmi.Status.MigrationState.Mode).To(Equal(v1.MigrationPreCopy))
		Expect(vmi.Status.MigrationState.TargetNodeAddress).To(Equal(c.target.ip))
		c.sourceA.expectEvent("is migrating")
		c.sourceA.expectEvent("migrated to node " + c.target.node)
		c.targetA.expectEvent("Normal PreparingTarget Migration Target is listening at " + c.target.ip + ", on ports: 49152,49153")
		c.targetA.expectEvent("Target Prepared")
		By("saying what changes from now on")
		c.arriving.SetState(hypervisor.StatePaused, hypervisor.PausedIOError)
		c.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedIOErrorReason)
		c.arriving.SetState(hypervisor.StateRunning, "")
		c.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionTrue, "")
		Expect(c.read().Status.Interfaces).To(ContainElement(HaveField("IP", "10.244.1.5")))
		By("having the memory overhead of its new Pod")
		Eventually(func() *v1.MemoryStatus { return c.read().Status.Memory }).
			Should(HaveField("MemoryOverhead.String()", "200Mi"))
		By("leaving no certificates behind")
		Eventually(c.arriving.MigrationTLS).Should(BeNil())
		Eventually(c.launcher.MigrationTLS).Should(BeNil())
		Expect(c.arriving.Starts()).To(BeZero())
		Expect(c.launcher.Starts()).To(Equal(1))
		By("being forgotten with the Pod that it left, and not before")
		Expect(c.sourceA.guests.Remembers(c.uid)).To(BeTrue())
		c.removePod()
		Eventually(c.sourceA.guests.Remembers).WithArguments(c.uid).Should(BeFalse())
	})

	It("leaves no certificates behind when the agent ends before it has removed them", func() {
		c := newMigratingGuest().move()
		c.expectMoved()
		Eventually(c.arriving.MigrationTLS).Should(BeNil())
		Expect(c.arriving.PutMigrationTLS(ctx, migrationtls.Files{CA: []byte("left")})).To(Succeed())
		c.restartTarget()
		Eventually(c.arriving.MigrationTLS).Should(BeNil())
	})

	It("is prepared for before the migration is handed to the agents, and not started", func() {
		c := newMigratingGuest().prepare()
		Eventually(func() []byte { return c.arriving.Content("seed.iso") }).ShouldNot(BeEmpty())
		Expect(c.arriving.Starts()).To(BeZero())
		Expect(c.target.had()).To(BeEmpty())
	})

	It("costs few writes", func() {
		c := newMigratingGuest()
		before := c.sourceA.writes.Load()
		c.move().expectMoved()
		// The start, and the owner unless the target was quicker; ready to receive, seen, runs, the owner, and what is different there.
		Expect(c.sourceA.writes.Load() - before).To(BeNumerically("<=", 3))
		Expect(c.targetA.writes.Load()).To(BeNumerically("<=", 7))
	})

	It("stays when the target cannot take it", func() {
		c := newMigratingGuest().prepare()
		c.arriving.Fail("prepare", errLost)
		c.moveOn()
		Expect(c.expectStayed().FailureReason).To(ContainSubstring("lost"))
		c.sourceA.expectEvent("Warning Migrated VirtualMachineInstance migration uid " + string(c.uid) + " failed. reason:Live migration failed: ")
		By("moving at the second attempt")
		c.arriving.Fail("prepare", nil)
		Expect(api.Delete(ctx, c.targetPod.Load(), client.GracePeriodSeconds(0))).To(Succeed())
		c.prepare().moveOn()
		Eventually(func(g Gomega) {
			g.Expect(c.read().Status.NodeName).To(Equal(c.target.node))
			g.Expect(runs(c.arriving)).To(BeTrue())
		}).Should(Succeed())
	})

	DescribeTable("stays when libvirt fails", func(where, call string) {
		c := newMigratingGuest().prepare()
		if where == "source" {
			c.launcher.Fail(call, errLost)
		} else {
			c.arriving.Fail(call, errLost)
		}
		c.moveOn()
		c.expectStayed()
	},
		Entry("at the beginning", "source", "begin"),
		Entry("while copying", "source", "perform"),
		Entry("when the target is to complete it", "target", "finish"),
	)

	// lasting gives the guest EFI variables that last, in a claim of its node's own.
	lasting := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{SecureBoot: new(false), Persistent: new(true)}}}
		vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "old", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "old"}}}
	}
	moveState := func(m *v1.VirtualMachineInstanceMigrationState) {
		m.SourcePersistentStatePVCName, m.TargetPersistentStatePVCName = "old", "new"
	}

	It("takes the state of its machine along, before it can be the target's", func() {
		c := newMigratingGuest(lasting).prepare()
		c.launcher.SetNVRAM([]byte("boot from the disk"))
		c.moveOn(moveState)
		vmi := c.expectMoved()
		Expect(string(c.arriving.NVRAM())).To(Equal("boot from the disk"))
		Expect(vmi.Status.VolumeStatus).To(ContainElement(HaveField("Name", "new")))
		Expect(vmi.Status.VolumeStatus).NotTo(ContainElement(HaveField("Name", "old")))
	})

	DescribeTable("stays when the state of its machine cannot be moved", func(where, call string) {
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
		Entry("as it cannot be read", "source", "nvram"),
		Entry("as it cannot be written", "target", "state"),
	)

	// onClaim puts the guest's data on a claim, which it is to leave for another.
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

	It("moves to another claim, and tells the size of its disk before and after", func() {
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

	It("stays, and is told why, when the other claim is too small", func() {
		c := newMigratingGuest(onClaim)
		c.control(moveData)
		c.prepare(func(target *fake.Launcher) {
			target.AddFile(launcherpod.DiskDir("data"), hypervisor.Volume{Name: launcherpod.DiskImage, Format: hypervisor.FormatRaw, Capacity: 1 << 20})
		})
		c.moveOn()
		Expect(c.expectStayed().FailureReason).To(ContainSubstring(`the guest's disk has 1073741824 bytes, and disk.img on claim "new" only 1048576`))
		Expect(c.read().Status.MigratedVolumes).To(HaveLen(1))
	})

	It("goes on here, and never there, when it is not known whether the target has it", func() {
		c := newMigratingGuest().prepare()
		c.arriving.LoseAnswer("finish")
		c.moveOn()
		c.expectStayed()
	})

	It("moves when only the last answer of libvirt gets lost", func() {
		c := newMigratingGuest().prepare()
		c.launcher.LoseAnswer("confirm")
		c.moveOn()
		c.expectMoved()
	})

	It("runs as soon as the source's QEMU has ended, though libvirt has not noticed that", func() {
		c := newMigratingGuest().prepare()
		reached, release := c.launcher.Slow("notice")
		defer release()
		c.moveOn()
		Eventually(reached).Should(BeClosed())
		Eventually(func() bool { return runs(c.arriving) }).Should(BeTrue())
		Eventually(func() string { return c.read().Status.NodeName }).Should(Equal(c.target.node))
		By("leaving the source's domain to libvirt, whose last word the launcher's Pod ends with")
		Consistently(func() hypervisor.State { return c.launcher.Snapshot().State }).WithTimeout(time.Second).Should(Equal(hypervisor.StatePaused))
		release()
		c.expectMoved()
		Expect(c.launcher.Snapshot().Reason).To(Equal("Migrated"))
	})

	It("leaves the source's domain to libvirt also when its agent ends before libvirt has noticed", func() {
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

	It("stays when somebody asks for that", func() {
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

	It("stays when somebody asks for that before it begins", func() {
		c := newMigratingGuest().move(func(m *v1.VirtualMachineInstanceMigrationState) { m.AbortRequested = true })
		Expect(c.expectStayed().AbortStatus).To(Equal(v1.MigrationAbortSucceeded))
		Expect(c.launcher.Copies()).To(BeZero())
	})

	It("runs when the release is lost, by what the status says", func() {
		c := newMigratingGuest()
		c.source.loseReleases.Store(true)
		c.move().expectMoved()
	})

	It("runs while the API server does not answer, and is claimed later", func() {
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

	It("stays suspended as long as libvirt has the job of an agent that is gone, and goes on after that", func() {
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

	It("is paused there if its user has paused it here", func() {
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

	It("does not wait for ever for a copy that gets nowhere", func() {
		c := newMigratingGuest().prepare()
		_, release := c.launcher.Slow("perform")
		defer release()
		c.launcher.SetProgress(hypervisor.CopyProgress{Memory: hypervisor.CopyAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.moveOn(func(m *v1.VirtualMachineInstanceMigrationState) {
			second := int64(1)
			m.VMIMConfigurationOptions.CompletionTimeoutPerGiB = &second
		})
		Expect(c.expectStayed().FailureReason).To(ContainSubstring("not completed after 1 seconds"))
	})

	It("gives up at once a copy that has stalled and would take too long to end, with the feature gate", func() {
		c := newMigratingGuest().prepare()
		c.sourceA.detectsStalls.Store(true)
		_, release := c.launcher.Slow("perform")
		defer release()
		progress := hypervisor.CopyProgress{Iteration: 1, Memory: hypervisor.CopyAmount{
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

	It("stands still for the rest if it may be disturbed", func() {
		c := newMigratingGuest().prepare()
		_, release := c.launcher.Slow("perform")
		c.launcher.SetProgress(hypervisor.CopyProgress{Memory: hypervisor.CopyAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
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

// moveOn hands the migration to the agents whose target is prepared.
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

var _ = Describe("A guest that the target runs before all of it has arrived", func() {
	slow := func(m *v1.VirtualMachineInstanceMigrationState) {
		allowed, second := true, int64(2)
		m.VMIMConfigurationOptions.AllowPostCopy, m.VMIMConfigurationOptions.CompletionTimeoutPerGiB = &allowed, &second
	}

	It("is said to be so before it is", func() {
		c := newMigratingGuest().prepare()
		_, release := c.launcher.Slow("perform")
		c.launcher.SetProgress(hypervisor.CopyProgress{Memory: hypervisor.CopyAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.launcher.Fail("postcopy", errLost)
		c.moveOn(slow)
		Eventually(func() v1.MigrationMode { return c.state().Mode }).Should(Equal(v1.MigrationPostCopy))
		Expect(c.launcher.PostCopyStarted()).To(BeFalse())
		c.launcher.Fail("postcopy", nil)
		Eventually(c.launcher.PostCopyStarted).Should(BeTrue())
		release()
		c.expectMoved()
	})

	It("is not where its node does not let QEMU do that, which is said", func() {
		c := newMigratingGuest().prepare()
		c.target.noPostCopy = true
		_, release := c.launcher.Slow("perform")
		defer release()
		c.launcher.SetProgress(hypervisor.CopyProgress{Memory: hypervisor.CopyAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.moveOn(slow)
		Expect(c.expectStayed().FailureReason).To(ContainSubstring("not completed after 2 seconds"))
		Expect(c.launcher.PostCopyStarted()).To(BeFalse())
		c.sourceA.expectEvent("goes on without post-copy")
	})

	It("has a source that is left to serve it", func() {
		c := newMigratingGuest().prepare()
		_, copied := c.launcher.Slow("perform")
		reached, release := c.arriving.Slow("finish")
		c.launcher.SetProgress(hypervisor.CopyProgress{Memory: hypervisor.CopyAmount{Total: 1 << 30, Processed: 1, Remaining: 1 << 30}})
		c.moveOn(slow)
		Eventually(c.launcher.PostCopyStarted).Should(BeTrue())
		copied()
		Eventually(reached).Should(BeClosed())
		By("the target saying that it runs the guest")
		Eventually(func() error { return vmistatus.HandOver(ctx, api, c.read()) }).Should(Succeed())
		Consistently(func() hypervisor.State {
			c.launcher.Nudge()
			return c.launcher.Snapshot().State
		}, "1s").Should(Equal(hypervisor.StatePaused))
		release()
		c.expectMoved()
	})
})

var _ = Describe("An agent that ends between any two actions of a migration", func() {
	// expectOneEnd: the guest runs in one place, and the status agrees.
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
		Expect(c.launcher.Copies()).To(BeNumerically("<=", 1))
	}

	// die lets an agent have one more effect in each round, until the migration ends before it dies.
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

// setRunning makes a Pod run, as its kubelet does.
func setRunning(pod *corev1.Pod, ip string) {
	GinkgoHelper()
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
	}
	Expect(api.Status().Update(ctx, pod)).To(Succeed())
}
