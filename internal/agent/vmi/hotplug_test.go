// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/devices"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

// mounts are the hotplugged volumes in the launcher Pods of a node, by name: specs have names of their own.
type mounts struct {
	mu      sync.Mutex
	mounted map[string]types.UID
	// only is set to the one attachment Pod of the launcher Pod that virt-broker accepts.
	only    types.UID
	calls   int
	failure error
	// refused are the failures of single volumes.
	refused map[string]error
	// started are closed when the container of an attachment Pod is started, for which waiting requests wait.
	started map[types.UID]chan struct{}
	waiting int
	// late is after which time the container is started of an attachment Pod whose request was ended, or zero. The
	// connection is not closed by then.
	late time.Duration
}

func (m *mounts) startOf(attachment types.UID) chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.started == nil {
		m.started = map[types.UID]chan struct{}{}
	}
	if m.started[attachment] == nil {
		m.started[attachment] = make(chan struct{})
	}
	return m.started[attachment]
}

// start starts the container of an attachment Pod.
func (m *mounts) start(attachment types.UID) { close(m.startOf(attachment)) }

func (m *mounts) await(ctx context.Context, attachment types.UID) error {
	add := func(n int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.waiting += n
	}
	add(1)
	defer add(-1)
	select {
	case <-m.startOf(attachment):
		return nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	late := m.late
	m.mu.Unlock()
	if late == 0 {
		return ctx.Err()
	}
	time.Sleep(late)
	return nil
}

// startLate has the containers of attachment Pods started just after a request has ended.
func (m *mounts) startLate(late time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late = late
}

// awaited returns how many requests wait.
func (m *mounts) awaited() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waiting
}

func (m *mounts) attach(volume string, attachment types.UID, block bool) error {
	return m.attachAt(path.Base(launcherpod.HotplugDisk(volume, block)), volume, attachment)
}

func (m *mounts) attachAt(entry, volume string, attachment types.UID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calls++; m.failure != nil {
		return m.failure
	}
	if err := m.refused[volume]; err != nil {
		return err
	}
	if m.only != "" && attachment != m.only {
		return fmt.Errorf("Pod %s is not the attachment Pod of volume %s", attachment, volume)
	}
	if m.mounted == nil {
		m.mounted = map[string]types.UID{}
	}
	m.mounted[entry] = attachment
	return nil
}

func (m *mounts) detach(volume string, block bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		return m.failure
	}
	delete(m.mounted, path.Base(launcherpod.HotplugDisk(volume, block)))
	delete(m.mounted, volume)
	return nil
}

// accept makes requests with another attachment Pod fail.
func (m *mounts) accept(only types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.only = only
}

// fail makes requests fail; nil ends that.
func (m *mounts) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failure = err
}

// refuse makes requests for one volume fail; nil ends that.
func (m *mounts) refuse(volume string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused = map[string]error{volume: err}
}

// list returns the mounts in order, each with the UID of its attachment Pod.
func (m *mounts) list() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for name, uid := range m.mounted {
		all = append(all, fmt.Sprintf("%s=%s", name, uid))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (m *mounts) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

// hotplug adds a hotpluggable volume and its disk to a VMI.
func hotplug(name string, device v1.DiskDevice) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		if !slices.ContainsFunc(vmi.Spec.Domain.Devices.Disks, func(d v1.Disk) bool { return d.Name == name }) {
			vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{Name: name, DiskDevice: device})
		}
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
				PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim-" + name},
				Hotpluggable:                      true,
			},
		}})
	}
}

// unplug removes a volume from a VMI, and its disk unless that is a drive.
func unplug(name string) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Volumes = slices.DeleteFunc(vmi.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
		vmi.Spec.Domain.Devices.Disks = slices.DeleteFunc(vmi.Spec.Domain.Devices.Disks, func(d v1.Disk) bool {
			return d.Name == name && d.CDRom == nil
		})
	}
}

var (
	onSCSI  = v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}}
	aDrive  = v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}}
	aLUN    = v1.DiskDevice{LUN: &v1.LunTarget{Bus: v1.DiskBusSCSI}}
	onVirtI = v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}
)

// change changes the spec.
func (g *guest) change(changes ...func(*v1.VirtualMachineInstance)) {
	GinkgoHelper()
	vmi := g.read()
	before := vmi.DeepCopy()
	for _, change := range changes {
		change(vmi)
	}
	Expect(api.Patch(ctx, vmi, client.MergeFrom(before))).To(Succeed())
}

// controller changes the status as virt-controller does.
func (g *guest) controller(change func(*v1.VirtualMachineInstanceStatus)) {
	GinkgoHelper()
	Eventually(func() error {
		before := g.read()
		after := before.DeepCopy()
		change(&after.Status)
		_, err := vmistatus.Patch(ctx, api, vmistatus.Controller, before, after)
		return err
	}).Should(Succeed())
}

// attached does what virt-controller does when the attachment Pod of a volume is ready.
func (g *guest) attached(name string, uid types.UID, mode corev1.PersistentVolumeMode) {
	GinkgoHelper()
	g.controller(func(s *v1.VirtualMachineInstanceStatus) { setAttached(s, name, uid, mode) })
}

// setAttached sets the status of a volume whose attachment Pod is ready.
func setAttached(s *v1.VirtualMachineInstanceStatus, name string, uid types.UID, mode corev1.PersistentVolumeMode) {
	v := vmistatus.FindVolume(s, name)
	if v == nil {
		s.VolumeStatus = append(s.VolumeStatus, v1.VolumeStatus{Name: name, Phase: v1.HotplugVolumeAttachedToNode})
		v = &s.VolumeStatus[len(s.VolumeStatus)-1]
	}
	v.HotplugVolume = &v1.HotplugVolumeStatus{AttachPodName: "hp-volume-" + name, AttachPodUID: uid}
	v.PersistentVolumeClaimInfo = &v1.PersistentVolumeClaimInfo{
		ClaimName: "claim-" + name, VolumeMode: &mode, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Capacity:           corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		FilesystemOverhead: ptr.To(v1.Percent("0")),
	}
	vmistatus.SortVolumes(s.VolumeStatus)
}

// attachmentPod creates the attachment Pod of a volume for a launcher Pod. It is not ready.
func (g *guest) attachmentPod(launcher *corev1.Pod, volume string, changes ...func(*corev1.Pod)) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.vmi.Namespace, Name: launcherpod.AttachmentPod(string(launcher.UID), volume),
			Labels:      map[string]string{v1.AppLabel: launcherpod.AttachmentLabelValue},
			Annotations: map[string]string{launcherpod.AttachmentUserAnnotation: string(g.vmi.UID)},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: launcher.Name, UID: launcher.UID, Controller: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName:   launcher.Spec.NodeName,
			Containers: []corev1.Container{{Name: launcherpod.AttachmentContainer, Image: "launcher"}},
			Volumes: []corev1.Volume{{Name: volume, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim-" + volume},
			}}},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	Expect(api.Create(ctx, pod)).To(Succeed())
	DeferCleanup(func() {
		Expect(client.IgnoreNotFound(api.Delete(ctx, pod, client.GracePeriodSeconds(0)))).To(Succeed())
	})
	return pod
}

// setReady does what the kubelet does when the container of an attachment Pod runs.
func setReady(pod *corev1.Pod) {
	GinkgoHelper()
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	Expect(api.Status().Update(ctx, pod)).To(Succeed())
}

// attaching does what virt-controller does when it has created the attachment Pod of a volume.
func (g *guest) attaching(name string, pod *corev1.Pod, mode corev1.PersistentVolumeMode) {
	GinkgoHelper()
	g.controller(func(s *v1.VirtualMachineInstanceStatus) {
		setAttached(s, name, "", mode)
		v := vmistatus.FindVolume(s, name)
		v.HotplugVolume.AttachPodName = pod.Name
		v.PersistentVolumeClaimInfo.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
}

// ready does what virt-controller does next, when it has seen that the Pod is ready.
func (g *guest) ready(name string, pod *corev1.Pod) {
	GinkgoHelper()
	g.controller(func(s *v1.VirtualMachineInstanceStatus) {
		vmistatus.FindVolume(s, name).HotplugVolume.AttachPodUID = pod.UID
	})
}

// removed does what virt-controller does when the attachment Pod of a volume is gone.
func (g *guest) removed(name string) {
	GinkgoHelper()
	for _, change := range []func(s *v1.VirtualMachineInstanceStatus){
		func(s *v1.VirtualMachineInstanceStatus) {
			vmistatus.FindVolume(s, name).Phase = v1.HotplugVolumeDetaching
		},
		func(s *v1.VirtualMachineInstanceStatus) {
			s.VolumeStatus = slices.DeleteFunc(s.VolumeStatus, func(v v1.VolumeStatus) bool { return v.Name == name })
		},
	} {
		g.controller(change)
	}
}

// volume returns the phase, the reason and the target of a volume, and its message.
func (g *guest) volume(name string) func() string {
	return func() string {
		v := vmistatus.FindVolume(&g.read().Status, name)
		if v == nil {
			return "none"
		}
		return strings.TrimSpace(fmt.Sprintf("%s %s %s: %s", v.Phase, v.Reason, v.Target, v.Message))
	}
}

// has returns the path of a disk's medium in the running domain, "empty" or "none".
func (g *guest) has(name string) func() string {
	return func() string {
		for _, disk := range g.launcher.Snapshot().XML.Devices.Disks {
			if disk.Alias.Name != domain.DiskAlias(name) {
				continue
			}
			switch {
			case disk.Source == nil, disk.Source.File != nil && disk.Source.File.File == "":
				return "empty"
			case disk.Source.Block != nil:
				return disk.Source.Block.Dev
			default:
				return disk.Source.File.File
			}
		}
		return "none"
	}
}

// recorded returns a function that returns all events about volumes from now on.
func (a *agent) recorded() func() string {
	var all []string
	read := func() string {
		for {
			select {
			case event := <-a.recorder.Events:
				if strings.Contains(event, "olume") {
					all = append(all, event)
				}
			default:
				return strings.Join(all, "\n")
			}
		}
	}
	read()
	all = nil
	return read
}

const (
	asFile  = corev1.PersistentVolumeFilesystem
	asBlock = corev1.PersistentVolumeBlock
)

var _ = Describe("The agent and hotplugged volumes", func() {
	var launchers *libvirt.Node
	var a *agent
	BeforeEach(func() {
		launchers = libvirt.NewNode()
		a = startAgent(launchers)
	})
	started := func(changes ...func(*v1.VirtualMachineInstance)) *guest {
		GinkgoHelper()
		g := makeGuest(changes...).schedule(launchers).assign()
		g.expectPhase(v1.Running)
		return g
	}

	It("plugs a file system and a block device, and unplugs them", func() {
		g := started()
		for name, tc := range map[string]struct {
			device v1.DiskDevice
			mode   corev1.PersistentVolumeMode
			target string
		}{"file": {onSCSI, asFile, "sda"}, "lun": {aLUN, asBlock, "sda"}, "virtio": {onVirtI, asBlock, "vdc"}} {
			By(name)
			path := launcherpod.HotplugDisk(name, tc.mode == asBlock)
			recorded := a.recorded()
			g.change(hotplug(name, tc.device))
			g.settle()
			Expect(g.volume(name)()).To(Equal("none"), "virt-controller adds it")
			g.attached(name, "", tc.mode)
			g.settle()
			Expect(g.volume(name)()).To(HavePrefix("AttachedToNode"))
			Expect(a.mounts.list()).To(BeEmpty())

			g.attached(name, "uid-1", tc.mode)
			Eventually(g.volume(name)).Should(
				Equal(fmt.Sprintf("Ready VolumeReady %s: Successfully attach hotplugged volume %s to VM", tc.target, name)))
			Expect(g.has(name)()).To(Equal(path))
			Expect(a.mounts.list()).To(HaveSuffix("=uid-1"))
			Eventually(recorded).Should(
				Equal(fmt.Sprintf("Normal VolumeMountedToPod Volume %[1]s has been mounted in virt-launcher pod\n"+
					"Normal VolumeReady Successfully attach hotplugged volume %[1]s to VM", name)))
			g.settle()
			writes, calls := a.writes.Load(), a.mounts.count()
			g.settle()
			Expect(a.writes.Load()).To(Equal(writes))
			Expect(a.mounts.count()).To(Equal(calls))

			recorded = a.recorded()
			g.change(unplug(name))
			Eventually(g.volume(name)).Should(Equal(
				fmt.Sprintf("UnMountedFromPod VolumeUnMountedFromPod : Volume %s has been unmounted from virt-launcher pod", name)))
			Expect(g.has(name)()).To(Equal("none"))
			Expect(a.mounts.list()).To(BeEmpty())
			Eventually(recorded).Should(Equal(fmt.Sprintf("Normal VolumeUnplugged Volume %[1]s has been unplugged\n"+
				"Normal VolumeUnMountedFromPod Volume %[1]s has been unmounted from virt-launcher pod", name)))
			g.removed(name)
			g.settle()
			Expect(g.volume(name)()).To(Equal("none"))
		}
	})

	It("does not wait for the write that the attachment Pod of a block device is ready, and writes once", func() {
		g := started()
		for name, mode := range map[string]corev1.PersistentVolumeMode{"file": asFile, "block": asBlock} {
			By(name)
			g.settle()
			writes := a.writes.Load()
			g.change(hotplug(name, onSCSI))
			g.settle()
			pod := g.attachmentPod(g.pod, name)
			g.attaching(name, pod, mode)
			g.settle()
			Expect(g.has(name)()).To(Equal("none"))
			Expect(a.mounts.list()).To(BeEmpty())

			setReady(pod)
			if mode == asBlock {
				Eventually(g.has(name)).Should(Equal(launcherpod.HotplugDisk(name, true)))
				Expect(a.mounts.list()).To(HaveSuffix("=" + string(pod.UID)))
			}
			g.settle()
			Expect(g.volume(name)()).To(Equal("AttachedToNode  :"),
				"the phase is virt-controller's until it has written the UID")
			Expect(a.writes.Load()).To(Equal(writes))
			if mode == asFile {
				Expect(a.mounts.list()).To(BeEmpty(), "the Pod may still be creating the image")
			}

			g.ready(name, pod)
			Eventually(g.volume(name)).Should(HavePrefix("Ready VolumeReady sda"))
			g.settle()
			Expect(a.writes.Load()-writes).To(BeEquivalentTo(1), "writes of the agent for a plug")

			g.change(unplug(name))
			Eventually(g.volume(name)).Should(HavePrefix("UnMountedFromPod"))
			Expect(a.mounts.list()).To(BeEmpty())
			g.removed(name)
		}
	})

	It("does not wait for the kubelet's report that the attachment Pod of a block device is ready", func() {
		g := started()
		g.change(hotplug("data", onSCSI), hotplug("more", onSCSI), hotplug("last", onSCSI))
		pods := map[string]*corev1.Pod{}
		for _, name := range []string{"data", "more", "last"} {
			pods[name] = g.attachmentPod(g.pod, name)
			g.attaching(name, pods[name], asBlock)
		}
		Eventually(a.mounts.awaited).Should(Equal(2), "not all of them")
		g.settle()
		Expect(a.mounts.count()).To(BeZero())
		writes := a.writes.Load()
		a.mounts.refuse("more", errors.New("the claim is no block device"))
		// In this order, since either "more" or "last" is not awaited until another one is there, or has failed.
		for _, name := range []string{"data", "more", "last"} {
			a.mounts.start(pods[name].UID)
			if name == "more" {
				continue
			}
			Eventually(g.has(name)).Should(Equal(launcherpod.HotplugDisk(name, true)))
			g.settle()
			Expect(g.volume(name)()).To(Equal("AttachedToNode  :"))
		}
		Expect(a.mounts.list()).To(Equal(fmt.Sprintf("data=%s last=%s", pods["data"].UID, pods["last"].UID)))
		Expect(a.writes.Load()).To(Equal(writes))
		Eventually(a.mounts.count).Should(Equal(3))

		By("trying again what failed, when the Pod is ready")
		g.settle()
		a.mounts.refuse("more", nil)
		for _, pod := range pods {
			setReady(pod)
		}
		Eventually(g.has("more")).Should(Equal(launcherpod.HotplugDisk("more", true)))
		for name, pod := range pods {
			g.ready(name, pod)
			Eventually(g.volume(name)).Should(HavePrefix("Ready VolumeReady"))
		}
		g.settle()
		Expect(a.mounts.count()).To(Equal(4), "each is mounted once")
		Expect(a.mounts.awaited()).To(BeZero())
	})

	It("does not mount what is unplugged before the attachment Pod is started", func() {
		g := started()
		g.change(hotplug("data", onSCSI))
		pod := g.attachmentPod(g.pod, "data")
		g.attaching("data", pod, asBlock)
		Eventually(a.mounts.awaited).Should(Equal(1))
		g.change(unplug("data"))
		Eventually(g.volume("data")).Should(HavePrefix("UnMountedFromPod"))
		Eventually(a.mounts.awaited).Should(BeZero())
		a.mounts.start(pod.UID)
		g.settle()
		Expect(a.mounts.list()).To(BeEmpty())
		Expect(g.has("data")()).To(Equal("none"))
	})

	It("takes away what is mounted while it ends the request", func() {
		g := started()
		g.change(hotplug("data", onSCSI))
		g.attaching("data", g.attachmentPod(g.pod, "data"), asBlock)
		Eventually(a.mounts.awaited).Should(Equal(1))
		a.mounts.startLate(200 * time.Millisecond)
		g.change(unplug("data"))
		Eventually(g.volume("data")).Should(HavePrefix("UnMountedFromPod"))
		Eventually(a.mounts.awaited).Should(BeZero())
		g.settle()
		Expect(a.mounts.list()).To(BeEmpty())
	})

	It("waits for another attachment Pod to be started when it has failed with one", func() {
		g := started()
		a.mounts.refuse("data", errors.New("the claim is no block device"))
		g.change(hotplug("data", onSCSI), hotplug("last", onSCSI), hotplug("more", onSCSI))
		pods := map[string]*corev1.Pod{}
		for _, name := range []string{"data", "last", "more"} {
			pods[name] = g.attachmentPod(g.pod, name)
			g.attaching(name, pods[name], asBlock)
		}
		Eventually(a.mounts.awaited).Should(Equal(2))
		a.mounts.start(pods["data"].UID)
		Eventually(a.mounts.count).Should(Equal(1))
		Eventually(a.mounts.awaited).Should(Equal(2))
		for _, name := range []string{"last", "more"} {
			a.mounts.start(pods[name].UID)
			Eventually(g.has(name)).Should(Equal(launcherpod.HotplugDisk(name, true)))
		}
		Expect(g.has("data")()).To(Equal("none"))
	})

	It("mounts again what is plugged again after it could not be taken away", func() {
		g := started()
		g.change(hotplug("data", onSCSI))
		pod := g.attachmentPod(g.pod, "data")
		g.attaching("data", pod, asBlock)
		Eventually(a.mounts.awaited).Should(Equal(1))
		a.mounts.fail(errors.New("virt-broker is restarting"))
		g.change(unplug("data"))
		Eventually(a.mounts.awaited).Should(BeZero())
		g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, devices.ReasonHotplugVolume)
		Expect(g.volume("data")()).To(Equal("AttachedToNode  :"),
			"the phase is virt-controller's until it has written the UID")
		g.change(hotplug("data", onSCSI))
		Eventually(a.mounts.awaited).Should(Equal(1))
		a.mounts.fail(nil)
		g.settle()
		Expect(g.has("data")()).To(Equal("none"))
		a.mounts.start(pod.UID)
		Eventually(g.has("data")).Should(Equal(launcherpod.HotplugDisk("data", true)))
		Expect(a.mounts.list()).To(Equal("data=" + string(pod.UID)))

		By("not knowing whether it was taken away")
		g.ready("data", pod)
		Eventually(g.volume("data")).Should(HavePrefix("Ready VolumeReady"))
		calls := a.mounts.count()
		a.mounts.fail(errors.New("virt-broker is restarting"))
		g.change(unplug("data"))
		Eventually(g.volume("data")).Should(ContainSubstring("HotplugFailed"))
		g.change(hotplug("data", onSCSI))
		Eventually(a.mounts.count).Should(BeNumerically(">", calls))
	})

	It("takes away what it has mounted before the status said so, and goes on after its own restart", func() {
		g := started()
		g.change(hotplug("data", onSCSI))
		pod := g.attachmentPod(g.pod, "data")
		g.attaching("data", pod, asBlock)
		setReady(pod)
		Eventually(g.has("data")).Should(Equal(launcherpod.HotplugDisk("data", true)))
		a.stop()
		a = startAgent(launchers)
		Eventually(a.mounts.list).Should(Equal("data=" + string(pod.UID)))
		g.change(unplug("data"))
		Eventually(g.volume("data")).Should(HavePrefix("UnMountedFromPod"))
		Expect(g.has("data")()).To(Equal("none"))
		Expect(a.mounts.list()).To(BeEmpty())
	})

	It("reports what fails before the status said that the Pod is ready", func() {
		g := started()
		a.mounts.refuse("data", errors.New("the claim is no block device"))
		g.launcher.Fail("attach more", errors.New("internal error: refused"))
		g.change(hotplug("data", onSCSI), hotplug("more", onSCSI))
		pods := map[string]*corev1.Pod{}
		for _, name := range []string{"data", "more"} {
			pods[name] = g.attachmentPod(g.pod, name)
			g.attaching(name, pods[name], asBlock)
			setReady(pods[name])
		}
		Eventually(a.mounts.list).Should(Equal("more=" + string(pods["more"].UID)))
		g.settle()
		Expect(g.volume("data")()).To(Equal("AttachedToNode  :"))
		for name, pod := range pods {
			g.ready(name, pod)
		}
		Eventually(g.volume("data")).Should(HavePrefix("AttachedToNode HotplugFailed"))
		Eventually(g.volume("more")).Should(HavePrefix("MountedToPod HotplugFailed"))
	})

	It("mounts early only what virt-controller attaches", func() {
		g := started()
		for name, change := range map[string]func(*corev1.Pod){
			"label": func(pod *corev1.Pod) { pod.Labels = nil },
			"user":  func(pod *corev1.Pod) { pod.Annotations[launcherpod.AttachmentUserAnnotation] = "another" },
			"claim": func(pod *corev1.Pod) { pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "another" },
		} {
			g.change(hotplug(name, onSCSI))
			pod := g.attachmentPod(g.pod, name, change)
			g.attaching(name, pod, asBlock)
			setReady(pod)
		}
		g.settle()
		g.settle()
		Expect(a.mounts.count()).To(BeZero())
		Expect(g.volume("label")()).To(Equal("AttachedToNode  :"))
	})

	It("grows a disk to the size of its claim, and again when the claim grows", func() {
		g := started()
		g.launcher.SetDiskSizes(map[string]uint64{"vda": 1 << 20, "vdb": 1 << 20, "sda": 512 << 20})
		g.change(hotplug("data", onSCSI))
		g.attached("data", "uid-1", asFile)
		Eventually(g.volume("data")).Should(HavePrefix("Ready VolumeReady sda"))
		Eventually(g.size).Should(BeEquivalentTo(1 << 30))
		g.expand("2Gi")
		Eventually(g.size).Should(BeEquivalentTo(2 << 30))
	})

	It("mounts all of a utility volume, which is for no disk, and takes it away unless a backup is written to it", func() {
		g := started()
		g.change(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.UtilityVolumes = []v1.UtilityVolume{{Name: "target", Type: ptr.To(v1.Backup)}}
			vmi.Spec.UtilityVolumes[0].ClaimName = "claim-target"
		})
		g.attached("target", "uid-1", asFile)
		const mounted = "MountedToPod VolumeMountedToPod : Volume target has been mounted in virt-launcher pod"
		Eventually(g.volume("target")).Should(Equal(mounted))
		Expect(a.mounts.list()).To(Equal("target=uid-1"))
		Expect(g.has("target")()).To(Equal("none"))
		g.settle()
		writes := a.writes.Load()
		g.settle()
		Expect(a.writes.Load()).To(Equal(writes))

		By("not taking it away during a backup, also after a restart")
		intent := backup.Intent{ID: "a", UtilityVolume: "target", Directory: "vm/b-1", FilePrefix: "b-",
			Volumes: []string{"root"}}
		g.controller(func(s *v1.VirtualMachineInstanceStatus) { s.DiskBackup = intent.Status() })
		Eventually(g.launcher.BackupsBegun).Should(Equal(1))
		a.stop()
		g.change(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.UtilityVolumes = nil })
		a = startAgent(launchers)
		Expect(a.mounts.attachAt("target", "target", "uid-1")).To(Succeed())
		g.settle()
		Expect(g.volume("target")()).To(Equal(mounted))

		g.launcher.EndBackup("")
		Eventually(g.volume("target")).Should(Equal(
			"UnMountedFromPod VolumeUnMountedFromPod : Volume target has been unmounted from virt-launcher pod"))
		Expect(a.mounts.list()).To(BeEmpty())
		g.removed("target")
		g.settle()
		Expect(g.volume("target")()).To(Equal("none"))
	})

	It("starts a guest with all its volumes, and goes on after its own restart", func() {
		g := makeGuest(hotplug("data", onSCSI), hotplug("cd", aDrive)).schedule(launchers).assign()
		g.attached("data", "uid-1", asFile)
		g.settle()
		Expect(g.read().Status.Phase).To(Equal(v1.Scheduled))
		g.attached("cd", "uid-2", asFile)
		g.expectPhase(v1.Running)
		Eventually(g.volume("data")).Should(HavePrefix("Ready VolumeReady sda"))
		Eventually(g.volume("cd")).Should(HavePrefix("Ready VolumeReady sdb"))
		Expect(g.launcher.Starts()).To(Equal(1))

		By("restarting the agent, without access to the Pod")
		a.stop()
		a = startAgent(launchers)
		a.mounts.fail(errors.New("virt-broker is not there"))
		g.settle()
		Expect(g.has("data")()).To(Equal(launcherpod.HotplugDisk("data", false)))
		Expect(g.has("cd")()).To(Equal(launcherpod.HotplugDisk("cd", false)))
		Expect(g.volume("data")()).To(HavePrefix("Ready"))
		g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
		a.mounts.fail(nil)
		g.settle()
		Eventually(a.mounts.list).Should(Equal("cd.img=uid-2 data.img=uid-1"))

		By("losing an attachment Pod")
		g.attached("data", "", asFile)
		g.settle()
		Expect(g.volume("data")()).To(HavePrefix("Ready"))
		g.attached("data", "uid-3", asFile)
		Eventually(a.mounts.list).Should(Equal("cd.img=uid-2 data.img=uid-3"))
		Expect(g.volume("data")()).To(HavePrefix("Ready"))
	})

	It("changes the medium of a drive, and tells of a locked tray", func() {
		drive := func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{Name: "cd", DiskDevice: aDrive})
		}
		g := started(drive)
		Expect(g.has("cd")()).To(Equal("empty"))
		g.change(hotplug("cd", aDrive))
		g.attached("cd", "uid-1", asBlock)
		Eventually(g.volume("cd")).Should(HavePrefix("Ready VolumeReady sda"))
		Expect(g.has("cd")()).To(Equal(launcherpod.HotplugDisk("cd", true)))

		recorded := a.recorded()
		g.launcher.Fail("change cd", errors.New("internal error: tray of device sda is locked"))
		g.change(unplug("cd"))
		Eventually(g.volume("cd")).Should(Equal(
			"Ready HotplugFailed sda: The guest has not released volume cd: unmount it in the guest (internal error: tray of device sda is locked)"))
		Eventually(recorded).Should(ContainSubstring("Warning HotplugFailed The guest has not released volume cd"))
		Expect(a.mounts.list()).To(Equal("cd=uid-1"))
		g.launcher.Fail("change cd", nil)
		a.ahead.Store(int64(time.Minute))
		g.settle()
		Eventually(g.volume("cd")).Should(HavePrefix("UnMountedFromPod"))
		Expect(g.has("cd")()).To(Equal("empty"))
	})

	It("grows a claim plugged by the name of an earlier one to a size that the earlier one had", func() {
		g := started()
		for _, attachment := range []types.UID{"uid-1", "uid-2"} {
			g.launcher.SetDiskSizes(map[string]uint64{"sda": 256 << 20})
			g.change(hotplug("data", onSCSI))
			g.attached("data", attachment, asFile)
			Eventually(g.volume("data")).Should(HavePrefix("Ready"))
			Eventually(g.size).Should(BeEquivalentTo(1<<30), "attachment Pod %s", attachment)
			g.change(unplug("data"))
			Eventually(g.volume("data")).Should(HavePrefix("UnMountedFromPod"))
			g.removed("data")
		}
	})

	It("waits until the guest releases a disk", func() {
		g := started()
		g.change(hotplug("data", onSCSI))
		g.attached("data", "uid-1", asFile)
		Eventually(g.volume("data")).Should(HavePrefix("Ready"))
		g.launcher.HoldDisks()
		g.change(unplug("data"))
		g.settle()
		Expect(g.volume("data")()).To(HavePrefix("Ready VolumeReady"))
		Expect(a.mounts.list()).To(Equal("data.img=uid-1"))
		a.ahead.Store(int64(10 * time.Second))
		g.settle()
		Eventually(g.volume("data")).Should(
			Equal("Ready HotplugFailed sda: The guest has not released volume data: unmount it in the guest"))

		By("wanting it again")
		g.launcher.ReleaseDisk("data")
		Eventually(g.volume("data")).Should(HavePrefix("UnMountedFromPod"))
		g.change(hotplug("data", onSCSI))
		g.settle()
		Expect(g.volume("data")()).To(HavePrefix("UnMountedFromPod"))
		g.removed("data")
		g.attached("data", "uid-2", asFile)
		Eventually(g.volume("data")).Should(HavePrefix("Ready VolumeReady"))
	})

	It("reports what libvirt refuses, and plugs the others", func() {
		g := started()
		g.launcher.Fail("attach data", errors.New("internal error: No more available PCI slots"))
		g.change(hotplug("data", onVirtI), hotplug("more", onSCSI),
			hotplug("sata", v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSATA}}))
		for _, name := range []string{"data", "more", "sata"} {
			g.attached(name, types.UID("uid-"+name), asFile)
		}
		Eventually(g.volume("more")).Should(HavePrefix("Ready"))
		Eventually(g.volume("data")).Should(Equal(
			"MountedToPod HotplugFailed : Volume data could not be attached to the guest: internal error: No more available PCI slots"))
		g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, devices.ReasonHotplugVolume)
		g.launcher.Fail("attach data", nil)
		a.ahead.Store(int64(time.Minute))
		g.settle()
		Eventually(g.volume("data")).Should(HavePrefix("Ready VolumeReady vdc"))
	})

	It("reports what cannot be mounted in the status of its volume, and plugs the others", func() {
		g := started()
		recorded := a.recorded()
		a.mounts.refuse("data", errors.New("disk.img of the claim is no regular file but Lrwxrwxrwx"))
		g.change(hotplug("data", onSCSI), hotplug("more", onSCSI))
		for _, name := range []string{"data", "more"} {
			g.attached(name, types.UID("uid-"+name), asFile)
		}
		Eventually(g.volume("more")).Should(HavePrefix("Ready"))
		Eventually(g.volume("data")).Should(Equal(
			"AttachedToNode HotplugFailed : Cannot mount volume data in the launcher Pod: disk.img of the claim is no regular file but Lrwxrwxrwx"))
		Eventually(recorded).Should(ContainSubstring("Warning HotplugFailed Cannot mount volume data"))
		g.expectCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, devices.ReasonHotplugVolume)
		g.settle()
		writes := a.writes.Load()
		a.ahead.Store(int64(time.Minute))
		g.settle()
		Expect(a.writes.Load()).To(Equal(writes), "the same failure is not written again")

		By("putting an image there")
		a.mounts.refuse("data", nil)
		a.ahead.Store(int64(2 * time.Minute))
		g.settle()
		Eventually(g.volume("data")).Should(HavePrefix("Ready VolumeReady sdb"))
		g.expectNoCondition(v1.VirtualMachineInstanceSynchronized)
	})

	It("waits for a moment until the attachment Pod has created the image", func() {
		missing := &brokerapi.Error{Code: brokerapi.CodeNotFound,
			Message: "open the image of the claim: no such file or directory"}
		g := started()
		recorded := a.recorded()
		a.mounts.refuse("data", missing)
		g.change(hotplug("data", onSCSI))
		g.attached("data", "uid-1", asFile)
		Eventually(a.mounts.count).Should(BeNumerically(">", 1), "it is tried again")
		Expect(g.volume("data")()).To(Equal("AttachedToNode  :"))
		a.mounts.refuse("data", nil)
		Eventually(g.volume("data")).WithTimeout(5 * time.Second).Should(HavePrefix("Ready VolumeReady sda"))
		Expect(recorded()).NotTo(ContainSubstring("Failed"))

		By("reporting an image that is not created")
		a.mounts.refuse("more", missing)
		g.change(hotplug("more", onSCSI))
		g.attached("more", "uid-2", asFile)
		calls := a.mounts.count()
		Eventually(a.mounts.count).Should(BeNumerically(">", calls))
		a.ahead.Store(int64(time.Minute))
		Eventually(g.volume("more")).Should(
			HavePrefix("AttachedToNode HotplugFailed : Cannot mount volume more in the launcher Pod: open the image"))
	})

	It("leaves alone what it has not made", func() {
		g := started()
		g.launcher.Alter(func(d *libvirtxml.Domain) {
			d.Devices.Disks = append(d.Devices.Disks, libvirtxml.DomainDisk{
				Alias: &libvirtxml.DomainAlias{Name: "ua-disk-other"}, Device: "disk",
				Target: &libvirtxml.DomainDiskTarget{Dev: "sdx", Bus: "scsi"},
				Source: &libvirtxml.DomainDiskSource{
					File: &libvirtxml.DomainDiskSourceFile{File: "/var/run/kubevirt-private/other.img"}},
			})
		})
		g.change(hotplug("data", onSCSI))
		g.attached("data", "uid-1", asFile)
		Eventually(g.volume("data")).Should(HavePrefix("Ready"))
		g.change(unplug("data"))
		Eventually(g.volume("data")).Should(HavePrefix("UnMountedFromPod"))
		Expect(g.has("other")()).To(Equal("/var/run/kubevirt-private/other.img"))
	})
})

var _ = Describe("A guest with a hotplugged volume that is migrated", func() {
	It("keeps the volume, of an attachment Pod on the target", func() {
		c := newMigratingGuest()
		c.change(hotplug("data", onSCSI), hotplug("late", onSCSI))
		c.attached("data", "uid-source", asFile)
		Eventually(c.volume("data")).Should(HavePrefix("Ready"))
		c.prepare().assignMigration()
		target := c.targetPod.Load()
		Consistently(func() string { return c.state().TargetNodeAddress }).WithTimeout(2 * time.Second).Should(BeEmpty())

		attachment := c.attachmentPod(target, "data")
		c.targetA.mounts.accept(attachment.UID)
		setReady(attachment)
		c.expectMigrated()
		Expect(c.targetA.mounts.list()).To(Equal("data.img=" + string(attachment.UID)))
		Expect(c.volume("data")()).To(HavePrefix("Ready"))
		Expect(c.targetLauncher.Snapshot().XML.Devices.Disks).To(HaveLen(3))

		By("unplugging it there")
		c.attached("data", attachment.UID, asFile)
		c.change(unplug("data"))
		Eventually(c.volume("data")).Should(HavePrefix("UnMountedFromPod"))
		Expect(c.targetA.mounts.list()).To(BeEmpty())
	})
})
