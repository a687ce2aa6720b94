// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler_test

import (
	"errors"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/hypervisor/fake"
)

// quiet is how long a spec looks for what must not happen.
const quiet = time.Second

var _ = Describe("The agent", func() {
	var launchers *fake.Node
	var a *agent
	BeforeEach(func() {
		launchers = fake.NewNode()
		a = startAgent(launchers)
	})

	Describe("starting a guest", func() {
		It("does it in one write and says all about it", func() {
			g := makeGuest().schedule(launchers).handOver()
			vmi := g.expectPhase(v1.Running)
			Expect(a.writes.Load()).To(BeEquivalentTo(1))
			g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionTrue, "")
			g.expectCondition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue, "")
			Expect(vmi.Status.PhaseTransitionTimestamps).To(ContainElement(HaveField("Phase", v1.Running)))
			Expect(vmi.Status.Interfaces).To(ConsistOf(And(HaveField("IP", "10.244.0.5"), HaveField("MAC", "02:00:00:00:00:01"),
				HaveField("Name", "default"), HaveField("InfoSource", "domain"))))
			Expect(vmi.Status.VolumeStatus).To(ConsistOf(
				And(HaveField("Name", "root"), HaveField("Target", "vda")), And(HaveField("Name", "seed"), HaveField("Target", "vdb"))))
			Expect(vmi.Status.Memory.GuestAtBoot.String()).To(Equal("64Mi"))
			Expect(vmi.Status.Machine.Type).NotTo(BeEmpty())
			Expect(vmi.Status.MigrationMethod).To(Equal(v1.BlockMigration))
			Expect(g.launcher.Content("seed.iso")).NotTo(BeEmpty())
			a.expectEvent("Started")
		})

		It("writes nothing in a second reconcile", func() {
			g := makeGuest().schedule(launchers).handOver()
			version := g.expectPhase(v1.Running).ResourceVersion
			for range 5 {
				g.launcher.SetState(hypervisor.StateRunning, "")
			}
			Consistently(func() int32 { return a.writes.Load() }).WithTimeout(quiet).Should(BeEquivalentTo(1))
			Expect(g.read().ResourceVersion).To(Equal(version))
		})

		It("prepares before the hand-over and starts after it", func() {
			g := makeGuest().schedule(launchers)
			Eventually(func() []byte { return g.launcher.Content("seed.iso") }).ShouldNot(BeEmpty())
			Consistently(g.launcher.Starts).WithTimeout(quiet).Should(BeZero())
			Expect(a.writes.Load()).To(BeZero())
			g.handOver().expectPhase(v1.Running)
		})

		It("leaves the guests of other nodes alone", func() {
			g := makeGuest().schedule(launchers)
			before := g.read()
			after := before.DeepCopy()
			after.Status.Phase, after.Status.NodeName = v1.Scheduled, "node-2"
			Expect(api.Status().Patch(ctx, after, client.MergeFrom(before))).To(Succeed())
			Consistently(g.launcher.Starts).WithTimeout(quiet).Should(BeZero())
			Expect(a.writes.Load()).To(BeZero())
		})

		It("starts it paused when asked to", func() {
			g := makeGuest(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.StartStrategy = ptr.To(v1.StartStrategyPaused)
			}).schedule(launchers).handOver()
			g.expectPhase(v1.Running)
			g.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedByUserReason)
			g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, v1.GuestNotRunningReason)
			g.launcher.SetState(hypervisor.StateRunning, "")
			g.expectNoCondition(v1.VirtualMachineInstancePaused)
			g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionTrue, "")
		})

		It("goes on when another writer was faster", func() {
			g := makeGuest().schedule(launchers)
			interfere := func(client.Object) {
				defer GinkgoRecover()
				vmi := g.read()
				vmi.Labels = map[string]string{"changed": "meanwhile"}
				Expect(api.Update(ctx, vmi)).To(Succeed())
			}
			a.beforeWrite.Store(&interfere)
			g.handOver().expectPhase(v1.Running)
			Expect(a.writes.Load()).To(BeEquivalentTo(2))
			Expect(g.launcher.Starts()).To(Equal(1))
		})
	})

	Describe("being told that it cannot be done", func() {
		It("says what is wrong with cloud-init and does not try again", func() {
			g := makeGuest(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Volumes[1].CloudInitNoCloud = &v1.CloudInitNoCloudSource{UserDataBase64: "%%%"}
			}).schedule(launchers).handOver()
			c := g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "InvalidCloudInit")
			Expect(c.Message).To(ContainSubstring("userDataBase64"))
			a.expectEvent("SyncFailed")
			Expect(g.read().Status.Phase).To(Equal(v1.Scheduled))
		})

		It("says what libvirt said and tries again", func() {
			g := makeGuest().schedule(launchers)
			g.launcher.Fail("start", errors.New("no such machine type"))
			g.handOver()
			c := g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "Synchronizing with the Domain failed.")
			Expect(c.Message).To(ContainSubstring("no such machine type"))
			g.launcher.Fail("start", nil)
			g.expectPhase(v1.Running)
			g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
		})
	})

	Describe("losing the hypervisor", func() {
		It("leaves the phase as it is", func() {
			g := makeGuest().schedule(launchers).handOver()
			g.expectPhase(v1.Running)
			g.launcher.Unreachable(fmt.Errorf("%w: connection refused", hypervisor.ErrUnreachable))
			g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "LibvirtUnreachable")
			vmi := g.read()
			Expect(vmi.Status.Phase).To(Equal(v1.Running))
			Expect(vmi.Status.Interfaces).NotTo(BeEmpty())
			g.launcher.Unreachable(nil)
			g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
		})

		It("says nothing while it only connects", func() {
			g := makeGuest().schedule(launchers)
			g.launcher.Unreachable(hypervisor.ErrConnecting)
			g.handOver()
			Consistently(func() int32 { return a.writes.Load() }).WithTimeout(quiet).Should(BeZero())
			g.launcher.Unreachable(nil)
			g.expectPhase(v1.Running)
		})
	})

	Describe("being restarted", func() {
		It("finds a running guest and writes nothing", func() {
			g := makeGuest().schedule(launchers).handOver()
			version := g.expectPhase(v1.Running).ResourceVersion
			a.stop()
			second := startAgent(launchers)
			Consistently(func() int32 { return second.writes.Load() }).WithTimeout(quiet).Should(BeZero())
			Expect(g.launcher.Starts()).To(Equal(1))
			Expect(g.read().ResourceVersion).To(Equal(version))
		})

		It("reports a guest that was started and not reported", func() {
			g := makeGuest().schedule(launchers)
			release := g.launcher.Slow("domain")
			g.handOver()
			a.stop()
			release()
			startAgent(launchers)
			g.expectPhase(v1.Running)
			Expect(g.launcher.Starts()).To(Equal(1))
		})
	})

	Describe("a guest that ends", func() {
		It("is not started again and its end is left to the controller", func() {
			g := makeGuest().schedule(launchers).handOver()
			g.expectPhase(v1.Running)
			g.launcher.Crash()
			g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, v1.GuestNotRunningReason)
			Expect(g.read().Status.Phase).To(Equal(v1.Running))
			a.stop()
			startAgent(launchers)
			Consistently(g.launcher.Starts).WithTimeout(quiet).Should(Equal(1))
		})
	})

	Describe("shutting a guest down", func() {
		deletePod := func(g *guest) {
			GinkgoHelper()
			Expect(api.Delete(ctx, g.pod)).To(Succeed())
		}

		It("presses the power button when the Pod is deleted", func() {
			g := makeGuest().schedule(launchers).handOver()
			g.expectPhase(v1.Running)
			deletePod(g)
			Eventually(func() hypervisor.State { return g.launcher.Snapshot().State }).Should(Equal(hypervisor.StateEnded))
			Expect(g.launcher.Snapshot().Reason).To(Equal("Shutdown"))
			g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, v1.PodTerminatingReason)
			a.expectEvent("ShuttingDown")
		})

		It("presses the power button when the VMI is deleted", func() {
			g := makeGuest(func(vmi *v1.VirtualMachineInstance) {
				vmi.Finalizers = []string{v1.VirtualMachineInstanceFinalizer}
			}).schedule(launchers).handOver()
			g.expectPhase(v1.Running)
			Expect(api.Delete(ctx, g.vmi)).To(Succeed())
			Eventually(g.launcher.Shutdowns).Should(BeNumerically(">=", 1))
		})

		It("pulls the plug when the grace period has passed", func() {
			g := makeGuest().schedule(launchers).handOver()
			g.expectPhase(v1.Running)
			g.launcher.Stubborn()
			deletePod(g)
			Eventually(g.launcher.Shutdowns).Should(Equal(1))
			Expect(g.launcher.Snapshot().State).To(Equal(hypervisor.StateRunning))
			a.ahead.Store(int64(10 * time.Second))
			g.launcher.SetState(hypervisor.StateRunning, "")
			Eventually(g.launcher.Shutdowns).Should(Equal(2))
			Expect(g.launcher.Snapshot().State).To(Equal(hypervisor.StateRunning))
			a.ahead.Store(int64(time.Minute))
			g.launcher.SetState(hypervisor.StateRunning, "")
			Eventually(func() string { return g.launcher.Snapshot().Reason }).Should(Equal("Destroyed"))
		})

		It("does not start a guest whose Pod is being deleted", func() {
			g := makeGuest().schedule(launchers)
			deletePod(g)
			g.handOver()
			g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, v1.PodTerminatingReason)
			Expect(g.launcher.Starts()).To(BeZero())
		})
	})

	Describe("a hostile launcher", func() {
		It("cannot put more into the status than fits", func() {
			g := makeGuest().schedule(launchers).handOver()
			g.expectPhase(v1.Running)
			g.launcher.Alter(func(d *libvirtxml.Domain) {
				d.OS.Type.Machine = strings.Repeat("x\x01\n", 100000)
				d.Devices.Interfaces[0].MAC.Address = "not\x00a MAC"
			})
			Eventually(func() string { return g.read().Status.Machine.Type }).Should(MatchRegexp("^x{100,256}$"))
			Expect(g.read().Status.Interfaces[0].MAC).To(BeEmpty())
		})
	})

	It("tells what the guest agent says", func() {
		g := makeGuest().schedule(launchers).handOver()
		g.expectPhase(v1.Running)
		g.launcher.SetGuest(&hypervisor.GuestInfo{
			OS: hypervisor.GuestOS{ID: "debian", PrettyName: "Debian"},
			Interfaces: []hypervisor.GuestInterface{
				{Name: "enp1s0", MAC: "02:00:00:00:00:01", IPs: []string{"10.0.2.2"}},
				{Name: "docker0", MAC: "02:00:00:00:00:99", IPs: []string{"172.17.0.1"}},
			},
		})
		g.expectCondition(v1.VirtualMachineInstanceAgentConnected, corev1.ConditionTrue, "")
		Eventually(func() string { return g.read().Status.GuestOSInfo.ID }).Should(Equal("debian"))
		Expect(g.read().Status.Interfaces).To(ConsistOf(
			And(HaveField("InterfaceName", "enp1s0"), HaveField("IP", "10.244.0.5"), HaveField("InfoSource", "domain, guest-agent")),
			And(HaveField("InterfaceName", "docker0"), HaveField("IP", "172.17.0.1"), HaveField("InfoSource", "guest-agent")),
		))
	})
})
