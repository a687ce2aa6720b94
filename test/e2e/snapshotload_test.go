// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// loadSnapshots is how many snapshots are taken of a guest that writes, with its agent and without it.
var loadSnapshots = numberOr("VIREO_E2E_LOAD_SNAPSHOTS", 30)

// loadBatch is how many restored disks one guest checks.
const loadBatch = 15

// chainWriter, on the guest "writer", appends records to a file on the disk "log", and writes them to the blocks of the
// disk "raw", which has no file system. A record has its number, and a sum of that and of the record before, so that a
// lost or changed one is noticed. Each has reached both disks before the next is written, and then /run/written has its
// number. On other guests it reads such disks, and prints how many records there are, or which one is broken.
const chainWriter = `#!/bin/sh
. /etc/init.d/lib
check() {
	local sum= n=0 i s
	while read -r i s; do
		[ -n "$i" ] || break
		n=$((n + 1))
		sum=$(echo "$n $sum" | sha256sum | cut -c1-64)
		[ "$i $s" = "$n $sum" ] || { say "VIREO-CHAIN $1 broken at $n: $i $s"; return; }
	done
	say "VIREO-CHAIN $1 whole $n"
}
for disk in $(ls /sys/block); do
	serial=$(serial_of "$disk" 2>/dev/null)
	case $(hostname)/$serial in
	writer/log) files=/mnt/log ;;
	writer/raw) umount /mnt/raw; raw=/dev/$disk ;;
	*/log* | */files*) check "$serial" <"/mnt/$serial/chain" ;;
	*/raw* | */blocks*) tr -d '\0' <"/dev/$disk" | check "$serial" ;;
	esac
done
[ -n "$raw" ] || exit 0
dd if=/dev/zero of="$raw" bs=64k conv=fsync 2>/dev/null
(sum=
n=0
while usleep 10000; do
	n=$((n + 1))
	sum=$(echo "$n $sum" | sha256sum | cut -c1-64)
	echo "$n $sum" | dd of="$files/chain" oflag=append conv=fsync,notrunc 2>/dev/null
	echo "$n $sum" | dd of="$raw" bs=4096 seek=$n conv=fsync,notrunc 2>/dev/null
	echo $n >/run/written.new && mv /run/written.new /run/written
done) &
say "VIREO-CHAIN begins"
`

// The specs take many minutes, so that `make test-e2e` never runs them, and `make test-e2e-all` does.
var _ = Describe("Snapshots of a guest that writes", Label("extended"), func() {
	It("have all that had reached the disks, up to the thaw with an agent and up to a crash without one, and so do clones of clones", func(ctx context.Context) {
		needSnapshots(ctx)
		namespace, name := newNamespace(ctx), "writer"
		create(ctx, makeClaim(namespace, "log", corev1.PersistentVolumeFilesystem),
			makeClaim(namespace, "raw", corev1.PersistentVolumeBlock),
			makeVM(namespace, name, withMemory("256Mi"), withGracePeriod(60), withClaim("log", "log"), withClaim("raw", "raw"),
				withUserData(chainWriter)))
		expectReady(ctx, namespace, name)
		expectAgent(ctx, namespace, name, bootTimeout)
		expectConsole(ctx, namespace, name, bootTimeout, ContainSubstring("VIREO-CHAIN begins"))
		t := openConsole(ctx, namespace, name)

		withAgent := takeUnderLoad(ctx, t, namespace, name, "agent", snapshotv1beta1.VMSnapshotGuestAgentIndication)
		t.press("killall qemu-ga\n")
		Eventually(func() *v1.VirtualMachineInstanceCondition {
			return condition(vmi(ctx, namespace, name), v1.VirtualMachineInstanceAgentConnected)
		}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
			Should(Or(BeNil(), HaveField("Status", corev1.ConditionFalse)))
		without := takeUnderLoad(ctx, t, namespace, name, "crash", snapshotv1beta1.VMSnapshotNoGuestAgentIndication)

		By("cloning the guest, the clone, and its clone")
		written := writtenBy(ctx, t)
		t.Kill()
		source := name
		for i := range 3 {
			target := fmt.Sprintf("clone%d", i+1)
			clone := makeClone(namespace, target, source, target)
			create(ctx, clone)
			expectClone(ctx, clone, HaveField("Phase", clonev1beta1.Succeeded))
			// Its claims are bound when it starts, as its storage class says, and the next clone waits for that.
			setRunStrategy(ctx, namespace, target, v1.RunStrategyAlways)
			expectReady(ctx, namespace, target)
			expectChain(ctx, namespace, target, "raw", written)
			source = target
		}
		for i := range 3 {
			Expect(k8s.Delete(ctx, readVM(ctx, namespace, fmt.Sprintf("clone%d", i+1)))).To(Succeed())
		}
		stopped := vmi(ctx, namespace, name)
		setRunStrategy(ctx, namespace, name, v1.RunStrategyHalted)
		expectGone(ctx, stopped)

		By("checking the restored disks of both kinds")
		checkRestored(ctx, namespace, "files", "log", withAgent)
		checkRestored(ctx, namespace, "blocks", "raw", withAgent)
		checkRestored(ctx, namespace, "blocks", "raw", without)
	}, specTimeout(70*time.Minute))
})

// takenUnderLoad is a snapshot, and the number of records that had reached the disks before it was requested.
type takenUnderLoad struct {
	name    string
	written int
}

// takeUnderLoad takes snapshots of a guest that runs chainWriter.
func takeUnderLoad(
	ctx context.Context, t *terminal, namespace, vm, prefix string, indication snapshotv1beta1.Indication,
) []takenUnderLoad {
	GinkgoHelper()
	By(fmt.Sprintf("taking %d snapshots with the indication %s", loadSnapshots, indication))
	var all []takenUnderLoad
	for i := range loadSnapshots {
		taken := takenUnderLoad{name: fmt.Sprintf("%s%02d", prefix, i), written: writtenBy(ctx, t)}
		create(ctx, makeSnapshot(namespace, taken.name, vm))
		Expect(expectSnapshot(ctx, namespace, taken.name).Status.Indications).To(ContainElement(indication))
		all = append(all, taken)
	}
	return all
}

var writtenLine = regexp.MustCompile(`WRITTEN-(\d+)-\d+-BY-NOW`)

// writtenBy returns the number of the last record that has reached the disks, by the console of the guest.
func writtenBy(ctx context.Context, t *terminal) int {
	GinkgoHelper()
	seen := len(writtenLine.FindAllSubmatch(t.Out.Contents(), -1))
	t.press("echo WRITTEN-$(cat /run/written)-$((1+1))-BY-NOW\n")
	var all [][][]byte
	Eventually(func() int {
		all = writtenLine.FindAllSubmatch(t.Out.Contents(), -1)
		return len(all)
	}).WithContext(ctx).WithTimeout(shortTimeout).Should(BeNumerically(">", seen))
	n, err := strconv.Atoi(string(all[len(all)-1][1]))
	Expect(err).NotTo(HaveOccurred())
	return n
}

// checkRestored restores snapshots to VMs of their own, and has guests check a volume of each.
func checkRestored(ctx context.Context, namespace, serial, volume string, all []takenUnderLoad) {
	GinkgoHelper()
	for from := 0; from < len(all); from += loadBatch {
		claims, least := map[string]string{}, map[string]int{}
		for _, taken := range all[from:min(from+loadBatch, len(all))] {
			target := "restored-" + serial + "-" + taken.name
			restore := makeRestore(namespace, target, target, taken.name)
			create(ctx, restore)
			expectRestored(ctx, restore)
			disk := serial + "-" + taken.name
			claims[disk], least[disk] = claimOfVolume(readVM(ctx, namespace, target), volume), taken.written
		}
		checkDisks(ctx, namespace, claims, least)
		for _, taken := range all[from:min(from+loadBatch, len(all))] {
			Expect(client.IgnoreNotFound(k8s.Delete(ctx, readVM(ctx, namespace, "restored-"+serial+"-"+taken.name)))).
				To(Succeed())
		}
	}
}

// checkDisks starts a guest with claims by the serials of their disks, and expects of each at least a number of
// records, all whole.
func checkDisks(ctx context.Context, namespace string, claims map[string]string, least map[string]int) {
	GinkgoHelper()
	name := "checker"
	options := []option{withMemory("256Mi"), withUserData(chainWriter)}
	for serial, claim := range claims {
		options = append(options, withClaim(serial, claim))
	}
	checker := makeVM(namespace, name, options...)
	create(ctx, checker)
	instance := expectReady(ctx, namespace, name)
	for serial, written := range least {
		expectChain(ctx, namespace, name, serial, written)
	}
	Expect(k8s.Delete(ctx, checker, client.PropagationPolicy("Foreground"))).To(Succeed())
	expectGone(ctx, instance)
	expectGone(ctx, checker)
}

// expectChain expects that a guest has found at least a number of records on a disk, all whole.
func expectChain(ctx context.Context, namespace, name, serial string, least int) {
	GinkgoHelper()
	pattern := regexp.MustCompile(`VIREO-CHAIN ` + serial + ` (whole|broken at) (\d+)`)
	var found []string
	Eventually(func() []string {
		found = pattern.FindStringSubmatch(console(ctx, namespace, name))
		return found
	}).WithContext(ctx).WithTimeout(15 * time.Minute).WithPolling(pollInterval).ShouldNot(BeEmpty())
	Expect(found[1]).To(Equal("whole"), "%s", found[0])
	n, err := strconv.Atoi(found[2])
	Expect(err).NotTo(HaveOccurred())
	Expect(n).To(BeNumerically(">=", least), "%s", found[0])
	AddReportEntry("records", fmt.Sprintf("%s on %s: %d, %d of them before the snapshot", serial, name, n, least))
}

// claimOfVolume returns the claim of a VM's volume.
func claimOfVolume(vm *v1.VirtualMachine, volume string) string {
	GinkgoHelper()
	for i := range spec(vm).Volumes {
		if spec(vm).Volumes[i].Name == volume {
			return spec(vm).Volumes[i].WrittenClaim()
		}
	}
	Fail("VM " + vm.Name + " has no volume " + volume)
	return ""
}
