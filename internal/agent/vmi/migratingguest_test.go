// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"fmt"
	"net"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/agentpki"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

// migratingGuest is a guest that is migrated from one node to another, with the agents of both.
type migratingGuest struct {
	*guest
	pki    *agentpki.World
	source *faults
	target *faults

	here, there     *libvirt.Node
	targetPod       atomic.Pointer[corev1.Pod] // The watcher reads it concurrently.
	targetLauncher  *libvirt.Launcher
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
	c := &migratingGuest{guest: makeGuest(changes...), pki: agentpki.New(GinkgoT()), here: libvirt.NewNode(),
		there: libvirt.NewNode()}
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

func (c *migratingGuest) currentTargetLauncher() *libvirt.Launcher {
	pod := c.targetPod.Load()
	if pod == nil {
		return nil
	}
	return c.there.Launcher(pod.UID)
}

func runs(l *libvirt.Launcher) bool {
	d := l.Snapshot()
	return d != nil && d.State == hypervisor.StateRunning
}

// prepare creates the target's Pod with the files of its volumes, as virt-controller does.
func (c *migratingGuest) prepare(volumes ...func(*libvirt.Launcher)) *migratingGuest {
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
func (c *migratingGuest) restart(f **faults, a **agent, node *libvirt.Node) {
	GinkgoHelper()
	old := *f
	if !old.stopped.Swap(true) {
		close(old.ended)
	}
	(*a).stop()
	*f = &faults{node: old.node, ip: old.ip, port: old.port, ended: make(chan struct{}), server: old.server,
		client: old.client}
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

// assignMigration assigns a prepared migration to the agents.
func (c *migratingGuest) assignMigration(changes ...func(*v1.VirtualMachineInstanceMigrationState)) {
	GinkgoHelper()
	c.control(func(s *v1.VirtualMachineInstanceStatus) {
		s.MigrationState = &v1.VirtualMachineInstanceMigrationState{
			MigrationUID: c.uid, SourceNode: c.source.node, SourcePod: c.pod.Name, TargetNode: c.target.node,
			TargetPod: c.targetPod.Load().Name, VMIMConfigurationOptions: &v1.VMIMConfigurationOptions{},
		}
		for _, change := range changes {
			change(s.MigrationState)
		}
	})
}

// setRunning makes a Pod run, as the kubelet does.
func setRunning(pod *corev1.Pod, ip string) {
	GinkgoHelper()
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.Now()}},
	}
	Expect(api.Status().Update(ctx, pod)).To(Succeed())
}
