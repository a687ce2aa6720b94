// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("The agent", func() {
	var launchers *libvirt.Node
	var a *agent
	BeforeEach(func() {
		launchers = libvirt.NewNode()
		a = startAgent(launchers)
	})

	Describe("starting a guest", func() {
		It("writes the complete status in one write", func() {
			g := makeGuest().schedule(launchers).assign()
			vmi := g.expectPhase(v1.Running)
			Expect(a.writes.Load()).To(BeEquivalentTo(1))
			g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionTrue, "")
			g.expectCondition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue, "")
			Expect(vmi.Status.PhaseTransitionTimestamps).To(ContainElement(HaveField("Phase", v1.Running)))
			Expect(vmi.Status.Interfaces).To(ConsistOf(And(HaveField("IP", "10.244.0.5"), HaveField("MAC", "02:00:00:00:00:01"),
				HaveField("Name", "default"), HaveField("InfoSource", "domain"))))
			Expect(vmi.Status.VolumeStatus).To(ConsistOf(
				And(HaveField("Name", "root"), HaveField("Target", "vda")),
				And(HaveField("Name", "seed"), HaveField("Target", "vdb"))))
			Expect(vmi.Status.Memory.GuestAtBoot.String()).To(Equal("64Mi"))
			Expect(vmi.Status.Memory.MemoryOverhead.String()).To(Equal("100Mi"))
			Expect(vmi.Status.Machine.Type).NotTo(BeEmpty())
			Expect(vmi.Status.MigrationMethod).To(Equal(v1.BlockMigration))
			Expect(vmi.Status.SelinuxContext).To(Equal("system_u:object_r:container_file_t:s0:c1,c2"))
			Expect(g.launcher.Content("seed.iso")).NotTo(BeEmpty())
			a.expectEvent("Started")
		})

		It("writes nothing in a second reconcile", func() {
			g := makeGuest().schedule(launchers).assign()
			version := g.expectPhase(v1.Running).ResourceVersion
			g.settle()
			Expect(a.writes.Load()).To(BeEquivalentTo(1))
			Expect(g.read().ResourceVersion).To(Equal(version))
		})

		It("prepares before the VMI is assigned, and starts the guest after that", func() {
			g := makeGuest().schedule(launchers)
			Eventually(func() []byte { return g.launcher.Content("seed.iso") }).ShouldNot(BeEmpty())
			g.settle()
			Expect(g.launcher.Starts()).To(BeZero())
			Expect(a.writes.Load()).To(BeZero())
			g.assign().expectPhase(v1.Running)
		})

		It("ignores the guests of other nodes", func() {
			g := makeGuest().schedule(launchers)
			before := g.read()
			after := before.DeepCopy()
			after.Status.Phase, after.Status.NodeName = v1.Scheduled, "node-2"
			Expect(api.Status().Patch(ctx, after, client.MergeFrom(before))).To(Succeed())
			g.settle()
			Expect(g.launcher.Starts()).To(BeZero())
			Expect(a.writes.Load()).To(BeZero())
		})

		It("starts the guest paused if spec.startStrategy is Paused", func() {
			g := makeGuest(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.StartStrategy = ptr.To(v1.StartStrategyPaused)
			}).schedule(launchers).assign()
			g.expectPhase(v1.Running)
			g.expectCondition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedByUserReason)
			g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, v1.GuestNotRunningReason)
			g.launcher.SetState(hypervisor.StateRunning, "")
			g.expectNoCondition(v1.VirtualMachineInstancePaused)
			g.expectCondition(v1.VirtualMachineInstanceReady, corev1.ConditionTrue, "")
		})

		It("sets the priority of a realtime guest's vCPUs, and records an event for a failure", func() {
			var calls atomic.Int32
			set := func(vcpus []uint) error {
				defer GinkgoRecover()
				Expect(vcpus).To(Equal([]uint{0}))
				if calls.Add(1) == 1 {
					return errors.New("no time left for it")
				}
				return nil
			}
			a.setRealtime.Store(&set)
			g := makeGuest(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Domain.CPU = &v1.CPU{Cores: 2, DedicatedCPUPlacement: true, Realtime: &v1.Realtime{Mask: "0-1,^1"}}
			}).schedule(launchers).assign()
			g.expectPhase(v1.Running)
			a.expectEvent("no time left for it")
			g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
			g.settle()
			Expect(calls.Load()).To(BeEquivalentTo(2))
			Expect(g.launcher.Starts()).To(Equal(1))
		})

		It("reports the guest agent of a realtime guest whose priority cannot be set", func() {
			set := func([]uint) error { return errors.New("not permitted") }
			a.setRealtime.Store(&set)
			g := makeGuest(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Domain.CPU = &v1.CPU{Cores: 2, DedicatedCPUPlacement: true, Realtime: &v1.Realtime{}}
			}).schedule(launchers).assign()
			g.expectPhase(v1.Running)
			g.launcher.SetGuest(&hypervisor.GuestInfo{OS: hypervisor.GuestOS{ID: "debian"}})
			Eventually(func() string { return g.read().Status.GuestOSInfo.ID }).Should(Equal("debian"))
		})

		It("retries after a conflict", func() {
			g := makeGuest().schedule(launchers)
			interfere := func(ctx context.Context) error {
				return api.Patch(ctx, g.vmi.DeepCopy(), client.RawPatch(types.MergePatchType,
					[]byte(`{"metadata":{"labels":{"changed":"meanwhile"}}}`)))
			}
			a.beforeWrite.Store(&interfere)
			g.assign().expectPhase(v1.Running)
			Eventually(a.writes.Load).Should(BeEquivalentTo(1), "the rejected write does not count")
			Expect(g.launcher.Starts()).To(Equal(1))
		})
	})

	Describe("a spec that cannot be satisfied", func() {
		It("reports an error in cloud-init and does not retry", func() {
			g := makeGuest(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Volumes[1].CloudInitNoCloud = &v1.CloudInitNoCloudSource{UserDataBase64: "%%%"}
			}).schedule(launchers).assign()
			c := g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "InvalidCloudInit")
			Expect(c.Message).To(ContainSubstring("userDataBase64"))
			a.expectEvent("SyncFailed")
			Expect(g.read().Status.Phase).To(Equal(v1.Scheduled))
		})

		It("reports a missing key of a cloud-init Secret and continues when it exists", func() {
			g := makeGuest(userDataFrom("login")).schedule(launchers).
				writeVolume(media.SecretVolume, "seed-udata", map[string]string{"password": "x"}).assign()
			c := g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "InvalidCloudInit")
			Expect(c.Message).To(And(ContainSubstring(`Secret "login"`), ContainSubstring(`"userdata"`)))
			a.expectEvent("SyncFailed")
			g.settle()
			Expect(a.writes.Load()).To(BeEquivalentTo(1), "a repeated wait is not a change")
			// There is no event: the agent retries.
			g.writeVolume(media.SecretVolume, "seed-udata", map[string]string{"userdata": "#from-secret"})
			g.expectPhase(v1.Running)
			g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
			Expect(g.launcher.Content("seed.iso")).To(ContainSubstring("#from-secret"))
		})

		It("repeats the preparation if the domain lacks something", func() {
			a.networks.missing.Store(true)
			g := makeGuest().schedule(launchers).assign()
			g.expectPhase(v1.Running)
			g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
			a.expectEvent("the tap of interface")
		})

		It("does not start a guest while one of its Pod interfaces is missing", func() {
			missing := error(&outcome.Retry{
				Reason: agentvmi.ReasonMissingPodInterface, After: 10 * time.Millisecond,
				Err: errors.New("the Pod has no interface pod16477688c0e"),
			})
			a.networks.failure.Store(&missing)
			g := makeGuest().schedule(launchers).assign()
			c := g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "MissingPodInterface")
			Expect(c.Message).To(ContainSubstring("pod16477688c0e"))
			Expect(g.read().Status.Phase).To(Equal(v1.Scheduled))
			a.networks.failure.Store(nil)
			g.expectPhase(v1.Running)
			g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
		})

		It("names damaged persistent state, and does not start the guest with it", func() {
			g := makeGuest(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
			}).schedule(launchers)
			g.launcher.Fail("check state", fmt.Errorf("%w: swtpm/x/tpm2/tpm2-00.permall is empty", hypervisor.ErrStateDamaged))
			g.assign()
			c := g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "PersistentStateDamaged")
			Expect(c.Message).To(And(ContainSubstring("tpm2-00.permall is empty"), ContainSubstring("delete the claim")))
			Expect(g.launcher.Starts()).To(BeZero())
			Expect(g.read().Status.Phase).To(Equal(v1.Scheduled))
			g.launcher.Fail("check state", nil)
			g.launcher.Notify()
			g.expectPhase(v1.Running)
			g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
		})

		It("reports an unsupported field and does not retry", func() {
			g := makeGuest(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Domain.LaunchSecurity = &v1.LaunchSecurity{}
			}).schedule(launchers).assign()
			c := g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "InvalidDomain")
			Expect(c.Message).To(ContainSubstring("spec.domain.launchSecurity"))
		})

		It("reports the error also if the first write fails", func() {
			refuse := func(context.Context) error { return apierrors.NewInternalError(errors.New("etcd is away")) }
			a.beforeWrite.Store(&refuse)
			g := makeGuest(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Volumes[1].CloudInitNoCloud = &v1.CloudInitNoCloudSource{UserDataBase64: "%%%"}
			}).schedule(launchers).assign()
			g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "InvalidCloudInit")
			a.expectEvent("SyncFailed")
		})

		It("reports an error of libvirt and retries", func() {
			g := makeGuest().schedule(launchers)
			g.launcher.Fail("start", errors.New("no such machine type"))
			g.assign()
			c := g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
				"Synchronizing with the Domain failed.")
			Expect(c.Message).To(ContainSubstring("no such machine type"))
			g.launcher.Fail("start", nil)
			g.expectPhase(v1.Running)
			g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
		})
	})

	Describe("an unreachable hypervisor", func() {
		It("does not change the phase", func() {
			g := makeGuest().schedule(launchers).assign()
			g.expectPhase(v1.Running)
			g.launcher.Unreachable(fmt.Errorf("%w: connection refused", hypervisor.ErrUnreachable))
			g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "LibvirtUnreachable")
			vmi := g.read()
			Expect(vmi.Status.Phase).To(Equal(v1.Running))
			Expect(vmi.Status.Interfaces).NotTo(BeEmpty())
			g.launcher.Unreachable(nil)
			g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
		})

		It("does not change the phase before the start either", func() {
			g := makeGuest().schedule(launchers)
			g.launcher.Unreachable(fmt.Errorf("%w: connection refused", hypervisor.ErrUnreachable))
			g.assign()
			c := g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "LibvirtUnreachable")
			Expect(c.Message).To(ContainSubstring("connection refused"))
			Expect(g.read().Status.Phase).To(Equal(v1.Scheduled))
			g.launcher.Unreachable(nil)
			g.expectPhase(v1.Running)
		})

		DescribeTable("starts the guest once although a response is lost", func(call string) {
			g := makeGuest().schedule(launchers)
			g.launcher.LoseResponse(call)
			g.assign()
			// The restored connection is an event.
			Eventually(func() v1.VirtualMachineInstancePhase {
				g.launcher.Notify()
				return g.read().Status.Phase
			}).Should(Equal(v1.Running))
			Expect(g.launcher.Starts()).To(Equal(1))
		},
			Entry("to the start", "start"),
			Entry("to an upload", "upload"),
		)

		It("reports nothing while it connects", func() {
			g := makeGuest().schedule(launchers)
			g.launcher.Unreachable(hypervisor.ErrConnecting)
			g.assign()
			g.settle()
			Expect(a.writes.Load()).To(BeZero())
			g.launcher.Unreachable(nil)
			g.expectPhase(v1.Running)
		})
	})

	Describe("a hostile launcher", func() {
		It("cannot exceed the limits of the status", func() {
			g := makeGuest().schedule(launchers).assign()
			g.expectPhase(v1.Running)
			g.launcher.Alter(func(d *libvirtxml.Domain) {
				d.OS.Type.Machine = strings.Repeat("x\x01\n", 100000)
				d.Devices.Interfaces[0].MAC.Address = "not\x00a MAC"
			})
			Eventually(func() string { return g.read().Status.Machine.Type }).Should(MatchRegexp("^x{100,256}$"))
			Expect(g.read().Status.Interfaces[0].MAC).To(BeEmpty())
		})
	})

	It("reports the guest agent", func() {
		g := makeGuest().schedule(launchers).assign()
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
			And(HaveField("InterfaceName", "enp1s0"), HaveField("IP", "10.244.0.5"),
				HaveField("InfoSource", "domain, guest-agent")),
			And(HaveField("InterfaceName", "docker0"), HaveField("IP", "172.17.0.1"), HaveField("InfoSource", "guest-agent")),
		))
	})

	Describe("the guest's IPv6 gateway", func() {
		It("is advertised as long as the Pod exists", func() {
			g := makeGuest().schedule(launchers).assign()
			g.expectPhase(v1.Running)
			Expect(a.networks.advertises(g.pod.UID)).To(BeTrue())
			g.removePod()
			Eventually(func() bool { return a.networks.advertises(g.pod.UID) }).Should(BeFalse())
		})

		It("is advertised again by the next agent", func() {
			g := makeGuest().schedule(launchers).assign()
			g.expectPhase(v1.Running)
			a.stop()
			second := startAgent(launchers)
			Eventually(func() bool { return second.networks.advertises(g.pod.UID) }).Should(BeTrue())
		})

		It("is advertised again while the guest shuts down", func() {
			g := makeGuest().schedule(launchers).assign()
			g.expectPhase(v1.Running)
			g.launcher.IgnoreShutdown()
			a.stop()
			g.deletePod()
			second := startAgent(launchers)
			Eventually(func() bool { return second.networks.advertises(g.pod.UID) }).Should(BeTrue())
		})

		It("is not advertised for a guest that has ended", func() {
			g := makeGuest().schedule(launchers).assign()
			g.expectPhase(v1.Running)
			g.launcher.Crash()
			a.stop()
			second := startAgent(launchers)
			g.settle()
			Expect(second.networks.advertises(g.pod.UID)).To(BeFalse())
		})
	})

	Describe("a stale cache", func() {
		It("does not cause a report about a VMI whose Pod was removed", func() {
			g := makeGuest().schedule(launchers).assign()
			g.expectPhase(v1.Running)
			g.removePod()
			Eventually(func() bool { return a.networks.advertises(g.pod.UID) }).Should(BeFalse())
			opens, version := g.launcher.Opens(), g.read().ResourceVersion
			g.launcher.Crash()
			// The crash has been handled when a later guest runs.
			makeGuest().schedule(launchers).assign().expectPhase(v1.Running)
			Expect(g.read().ResourceVersion).To(Equal(version))
			Expect(g.launcher.Opens()).To(Equal(opens), "the agent still connects to a Pod that was removed")
		})

		It("distinguishes two VMIs of the same name", func() {
			old := makeGuest().schedule(launchers).assign()
			old.expectPhase(v1.Running)
			Expect(api.Delete(ctx, old.vmi)).To(Succeed())
			next := makeGuest(func(vmi *v1.VirtualMachineInstance) { vmi.Name = old.vmi.Name })
			Expect(api.Create(ctx, next.vmi)).To(Succeed())
			DeferCleanup(func() { Expect(client.IgnoreNotFound(api.Delete(ctx, next.vmi))).To(Succeed()) })
			version := next.assign().read().ResourceVersion
			old.settle()
			Expect(next.read().ResourceVersion).To(Equal(version), "the old Pod's guest is reported for the new VMI")
			Eventually(func() string { return old.launcher.Snapshot().Reason }).
				Should(Equal("Destroyed"), "the old and the new guest would both run")
			Expect(old.launcher.Shutdowns()).To(BeZero())
		})
	})
})
