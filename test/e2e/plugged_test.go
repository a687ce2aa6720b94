// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// plugRounds is how often a volume is plugged and unplugged; `make bench-hotplug` sets a larger number.
var plugRounds = numberOr("VIREO_E2E_PLUGS", 3)

// plugLogger writes the log of readLog to each SCSI disk, from where its earlier log ends, and prints which disks come
// and go. It counts on the console.
//
// The shell that looks for disks uses no other program but usleep, because the disk's arrival is measured.
const plugLogger = `#!/bin/sh
. /etc/init.d/lib
(n=0; while true; do n=$((n+1)); echo "WORK $n." >/dev/console; sleep 1; done) &
log() {
	s=$(serial_of $1); n=0; h=none
	last=$(dd if=/dev/$1 bs=64k count=256 2>/dev/null | tr -d '\0' | tail -n 1)
	[ -z "$last" ] || { n=${last%% *}; h=${last#* * }; h=${h%% *}; }
	say "VIREO-LOG $s from $n"
	while usleep 100000; do
		n=$((n+1)); read up idle </proc/uptime
		h=$(echo "$n $up $h" | sha256sum); h=${h%% *}
		printf '%-511s\n' "$n $up $h"
	done | dd of=/dev/$1 bs=512 seek=$n iflag=fullblock oflag=direct 2>/dev/null
	say "VIREO-UNPLUGGED $s"
	for i in 1 2 3 4 5 6 7 8 9 10; do [ -b /dev/$1 ] && usleep 100000; done
	rmdir /run/log-$1
}
(while usleep 50000; do
	for d in /sys/block/sd*; do
		d=${d##*/}
		[ -b /dev/$d ] && ! [ -d /run/log-$d ] || continue
		say "VIREO-PLUGGED $d"
		mkdir /run/log-$d
		log $d &
	done
done) &
`

// plugReporter prints how the medium of the CD-ROM drive begins, and the sizes of the SCSI disks in sectors, when they
// change.
const plugReporter = `was=nothing
sizes=nothing
(while sleep 1; do
	m=$(dd if=/dev/sr0 bs=2048 count=1 2>/dev/null | head -c 16 | tr -cd 'A-Z0-9-')
	[ "$m" = "$was" ] || { was=$m; say "VIREO-MEDIUM ${m:-none}"; }
	now=$(for d in /sys/block/sd*; do [ -b /dev/${d##*/} ] && echo "$(serial_of ${d##*/})=$(cat $d/size)"; done)
	[ "$now" = "$sizes" ] || { sizes=$now; say "VIREO-SIZES" $now; }
done) &
`

// The guest has one volume of each mode, and keeps a log on both while it is plugged. What lasts minutes has one guest
// for all specs. They are Serial because a replaced agent ends the streams of other specs' guests.
var _ = Describe("A guest that logs to hotplugged volumes", extended(2), kvmLinuxLong(), Serial, Ordered, ContinueOnFailure, func() {
	g := &pluggedGuest{migratingGuest: countingGuest("logs"), places: map[string]string{}}

	BeforeAll(func(ctx context.Context) {
		needLocalNodes()
		g.start(ctx, withEmptyDrive("drive"), withUserData(plugLogger+plugReporter))
	}, nodeTimeout(8*time.Minute))
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, g.namespace) }, nodeTimeout(time.Minute))

	It("keeps both logs while one volume is plugged and unplugged again and again, and the agent is replaced",
		func(ctx context.Context) {
			g.plug(ctx, "files")
			for round := range plugRounds {
				if round == plugRounds/2 {
					kubectl(ctx, "", "delete", "pods", "-n", "kubevirt", "-l", "kubevirt.io=virt-handler",
						"--field-selector", "spec.nodeName="+g.instance.Status.NodeName, "--wait=false")
				}
				g.plug(ctx, "block")
				g.unplug(ctx, "block")
				g.expectLogged(ctx, "files", g.records(ctx, "files"))
			}
			g.plug(ctx, "block")
			g.expectAttached(ctx, "block", "files")
			Expect(launcherPod(ctx, vmi(ctx, g.namespace, g.name)).UID).To(Equal(g.launcher))
			AddReportEntry("logs on hotplugged volumes",
				fmt.Sprintf("%d rounds, %d records on the file system, %d on the device",
					plugRounds, g.records(ctx, "files"), g.records(ctx, "block")))
		}, specTimeout(6*time.Minute+time.Duration(plugRounds)*time.Minute))

	It("has larger disks when the claims grow", func(ctx context.Context) {
		g.needPlugged(ctx, "block", "files")
		// In sectors. An image leaves some of a file system to its metadata.
		for name, size := range map[string]string{"block": "block=131072", "files": `files=12\d{4}`} {
			kubectl(ctx, "", "patch", "-n", g.namespace, "pvc", name, "--patch", `{"spec":{"resources":{"requests":{"storage":"64Mi"}}}}`)
			g.expectPrinted(ctx, "VIREO-SIZES", MatchRegexp(size))
			g.expectLogged(ctx, name, g.records(ctx, name))
		}
	}, specTimeout(4*time.Minute))

	It("keeps its disks and logs in a migration, and releases a disk on the target", func(ctx context.Context) {
		if len(nodes(ctx)) < 2 {
			Skip("migrations need two nodes")
		}
		g.needPlugged(ctx, "block", "files")
		g.expectMigration(ctx, g.migrate)
		g.expectCounts(ctx)
		for _, name := range []string{"block", "files"} {
			g.expectLogged(ctx, name, g.records(ctx, name))
		}
		g.expectAttached(ctx, "block", "files")
		g.unplug(ctx, "block")
		g.plug(ctx, "block")
		g.expectLogged(ctx, "files", g.records(ctx, "files"))
		g.expectAllCounted()
	}, specTimeout(8*time.Minute))

	It("gets a medium in its CD-ROM drive, another one, and none", func(ctx context.Context) {
		g.expectPrinted(ctx, "VIREO-MEDIUM", Equal("none"))
		pod := launcherPod(ctx, vmi(ctx, g.namespace, g.name))
		g.editVolumes(ctx, func(volumes []v1.Volume) []v1.Volume { return append(volumes, medium("disc-1")) })
		g.expectPrinted(ctx, "VIREO-MEDIUM", Equal("VIREO-DISC-1"))
		g.expectVolume(ctx, "drive",
			And(HaveField("Phase", v1.VolumeReady), HaveField("PersistentVolumeClaimInfo.ClaimName", "disc-1")))

		By("replacing it")
		isDrive := func(volume v1.Volume) bool { return volume.Name == "drive" }
		g.editVolumes(ctx, func(volumes []v1.Volume) []v1.Volume {
			volumes[slices.IndexFunc(volumes, isDrive)] = medium("disc-2")
			return volumes
		})
		g.expectPrinted(ctx, "VIREO-MEDIUM", Equal("VIREO-DISC-2"))
		g.expectVolume(ctx, "drive",
			And(HaveField("Phase", v1.VolumeReady), HaveField("PersistentVolumeClaimInfo.ClaimName", "disc-2")))

		By("ejecting it")
		g.editVolumes(ctx, func(volumes []v1.Volume) []v1.Volume { return slices.DeleteFunc(volumes, isDrive) })
		g.expectPrinted(ctx, "VIREO-MEDIUM", Equal("none"))
		g.expectNoVolume(ctx, "drive")
		Expect(launcherPod(ctx, vmi(ctx, g.namespace, g.name)).UID).To(Equal(pod.UID))
		Expect(g.vm(ctx).Status.Conditions).NotTo(ContainElement(HaveField("Type", v1.VirtualMachineRestartRequired)))
	}, specTimeout(8*time.Minute))
})

// pluggedGuest is a guest with hotplugged volumes. Each is on the claim of its name.
type pluggedGuest struct {
	migratingGuest
	// places are the devices and files of the claims on this host.
	places map[string]string
	// launcher is the Pod in which the guest was started.
	launcher types.UID
}

// start creates the claims and starts the guest.
func (g *pluggedGuest) start(ctx context.Context, options ...option) {
	GinkgoHelper()
	g.namespace = newNamespace(ctx)
	keeper := makePeer(g.namespace, "keeper", "", "serve")
	for name, mode := range map[string]corev1.PersistentVolumeMode{
		"block": corev1.PersistentVolumeBlock, "files": corev1.PersistentVolumeFilesystem,
		"disc-1": corev1.PersistentVolumeBlock, "disc-2": corev1.PersistentVolumeFilesystem,
	} {
		claim := sharedClaim(g.namespace, name, mode)
		create(ctx, claim)
		Eventually(func(assert Gomega) {
			assert.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
			assert.Expect(claim.Status.Phase).To(Equal(corev1.ClaimBound), "claim %s", name)
		}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
		if mode == corev1.PersistentVolumeBlock {
			g.places[name] = deviceOf(ctx, g.namespace, name)
			continue
		}
		keeper.Spec.Volumes = append(keeper.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
		tools := &keeper.Spec.Containers[0]
		tools.VolumeMounts = append(tools.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/claims/" + name})
	}
	// The file systems of claims are mounted only in Pods that use them.
	keeper = startPod(ctx, keeper)
	for _, volume := range keeper.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil {
			directory := fmt.Sprintf("/proc/%d/root/claims/%s", podProcess(keeper, "tools").PID, volume.Name)
			g.places[volume.Name] = makeImage(directory)
		}
	}
	for _, name := range []string{"disc-1", "disc-2"} {
		writeMedium(g.places[name], "VIREO-"+strings.ToUpper(name))
	}
	create(ctx, makeVM(g.namespace, g.name, options...))
	g.instance = expectReady(ctx, g.namespace, g.name)
	g.launcher = launcherPod(ctx, g.instance).UID
	g.followCounts(ctx)
}

// sharedClaim returns a claim that is bound at once and can be used on all nodes.
func sharedClaim(namespace, name string, mode corev1.PersistentVolumeMode) *corev1.PersistentVolumeClaim {
	claim := makeClaim(namespace, name, mode)
	claim.Spec.StorageClassName = ptr.To("local-immediate")
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("32Mi")
	return claim
}

// makeImage makes a disk image in the directory of a claim, without which the claim cannot be plugged in, and returns
// its path.
func makeImage(directory string) string {
	GinkgoHelper()
	place := filepath.Join(directory, launcherpod.DiskImage)
	file, err := os.OpenFile(place, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }()
	Expect(file.Truncate(16 << 20)).To(Succeed())
	// Pods of any user may write, whatever the umask is.
	Expect(file.Chmod(0o666)).To(Succeed())
	return place
}

// writeMedium writes a text to the beginning of a device or an image.
func writeMedium(place, text string) {
	GinkgoHelper()
	file, err := os.OpenFile(place, os.O_WRONLY, 0)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }()
	_, err = file.WriteString(text)
	Expect(err).NotTo(HaveOccurred())
	Expect(file.Sync()).To(Succeed())
}

// withEmptyDrive adds a CD-ROM drive without a medium.
func withEmptyDrive(name string) option {
	return func(vm *v1.VirtualMachine) {
		spec(vm).Domain.Devices.Disks = append(spec(vm).Domain.Devices.Disks, v1.Disk{
			Name: name, DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}},
		})
	}
}

// medium is a volume for the drive.
func medium(claim string) v1.Volume {
	return v1.Volume{Name: "drive",
		VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}, Hotpluggable: true,
		}}}
}

// editVolumes changes the volumes of the VM's template, as a user does.
func (g *pluggedGuest) editVolumes(ctx context.Context, change func([]v1.Volume) []v1.Volume) {
	GinkgoHelper()
	Eventually(func() error {
		vm := g.vm(ctx)
		spec(vm).Volumes = change(spec(vm).Volumes)
		return k8s.Update(ctx, vm)
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
}

// plug plugs a volume, and waits until the guest has it and writes to it.
func (g *pluggedGuest) plug(ctx context.Context, name string) {
	GinkgoHelper()
	before := g.records(ctx, name)
	expectVirtctl(ctx, "addvolume", g.name, "--namespace", g.namespace, "--volume-name", name)
	g.expectVolume(ctx, name, And(HaveField("Phase", v1.VolumeReady), HaveField("Target", Not(BeEmpty())),
		HaveField("HotplugVolume.AttachPodUID", Not(BeEmpty()))))
	g.expectLogged(ctx, name, before)
}

// unplug unplugs a volume, and waits until nothing of it is left.
func (g *pluggedGuest) unplug(ctx context.Context, name string) {
	GinkgoHelper()
	expectVirtctl(ctx, "removevolume", g.name, "--namespace", g.namespace, "--volume-name", name)
	g.expectNoVolume(ctx, name)
	// It would write ten times a second.
	before := g.records(ctx, name)
	Consistently(func() int { return g.records(ctx, name) }).WithContext(ctx).WithTimeout(time.Second).WithPolling(
		pollInterval).
		Should(Equal(before), "the guest still writes to volume %s", name)
}

// needPlugged plugs the volumes that the guest does not have, because an earlier spec has failed.
func (g *pluggedGuest) needPlugged(ctx context.Context, names ...string) {
	GinkgoHelper()
	for _, name := range names {
		if !slices.ContainsFunc(g.vm(ctx).Spec.Template.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name }) {
			g.plug(ctx, name)
		}
	}
}

// expectVolume waits until the status of a volume matches.
func (g *pluggedGuest) expectVolume(ctx context.Context, name string, matcher gomegatypes.GomegaMatcher) {
	GinkgoHelper()
	Eventually(func() []v1.VolumeStatus { return vmi(ctx, g.namespace, g.name).Status.VolumeStatus }).WithContext(ctx).
		WithTimeout(bootTimeout).WithPolling(pollInterval).Should(ContainElement(And(HaveField("Name", name), matcher)))
}

// expectNoVolume waits until the status does not have a volume, and its attachment Pod is gone.
func (g *pluggedGuest) expectNoVolume(ctx context.Context, name string) {
	GinkgoHelper()
	Eventually(func() []v1.VolumeStatus { return vmi(ctx, g.namespace, g.name).Status.VolumeStatus }).WithContext(ctx).
		WithTimeout(bootTimeout).WithPolling(pollInterval).ShouldNot(ContainElement(HaveField("Name", name)))
	Eventually(g.attached).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
		ShouldNot(ContainElement(name))
}

// attached returns the names of the volumes of the attachment Pods.
func (g *pluggedGuest) attached(ctx context.Context) []string {
	GinkgoHelper()
	pods := &corev1.PodList{}
	Expect(k8s.List(ctx, pods, client.InNamespace(g.namespace),
		client.MatchingLabels{v1.AppLabel: launcherpod.AttachmentLabelValue})).To(Succeed())
	var names []string
	for i := range pods.Items {
		names = append(names, pods.Items[i].Spec.Volumes[0].Name)
	}
	slices.Sort(names)
	return names
}

// expectAttached waits until the attachment Pods are those of these volumes, and on the guest's node.
func (g *pluggedGuest) expectAttached(ctx context.Context, names ...string) {
	GinkgoHelper()
	Eventually(g.attached).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Equal(names))
	instance, pods := vmi(ctx, g.namespace, g.name), &corev1.PodList{}
	Expect(k8s.List(ctx, pods, client.InNamespace(g.namespace),
		client.MatchingLabels{v1.AppLabel: launcherpod.AttachmentLabelValue})).To(Succeed())
	for i := range pods.Items {
		Expect(pods.Items[i].Spec.NodeName).To(Equal(instance.Status.NodeName), pods.Items[i].Name)
		g.expectVolume(ctx, pods.Items[i].Spec.Volumes[0].Name, HaveField("HotplugVolume.AttachPodUID", pods.Items[i].UID))
	}
}

// records returns the number of records of the log on a volume, and checks them.
func (g *pluggedGuest) records(ctx context.Context, name string) int {
	GinkgoHelper()
	return records(ctx, g.places[name])
}

// expectLogged waits until the guest has written records to a volume.
func (g *pluggedGuest) expectLogged(ctx context.Context, name string, before int) {
	GinkgoHelper()
	Eventually(func() int { return g.records(ctx, name) }).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(
		pollInterval).
		Should(BeNumerically(">", before), func() string { return "records on volume " + name + "\n" + g.describe(ctx) })
}

// expectPrinted waits until the last line with a prefix matches.
func (g *pluggedGuest) expectPrinted(ctx context.Context, prefix string, matcher gomegatypes.GomegaMatcher) {
	GinkgoHelper()
	last := func() string {
		text := g.consoles.text()
		at := strings.LastIndex(text, prefix+" ")
		if at < 0 {
			return ""
		}
		line, _, _ := strings.Cut(text[at+len(prefix):], "\n")
		return strings.TrimSpace(line)
	}
	Eventually(last).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).
		Should(matcher, func() string { return "what the guest printed last\n" + g.describe(ctx) })
}

// describe returns the statuses of the volumes and what the guest has printed.
func (g *pluggedGuest) describe(ctx context.Context) string {
	status, err := yaml.Marshal(vmi(ctx, g.namespace, g.name).Status.VolumeStatus)
	return string(status) + errText(err) + tail(console(ctx, g.namespace, g.name), 2000)
}
