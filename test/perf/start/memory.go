// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/podproc"
)

// atRest is how long components are watched while nothing happens.
const atRest = 20 * time.Second

// guestBoot is how long the guest may run before its overhead is read: it has booted and touched its devices.
const guestBoot = 15 * time.Second

// clockTicks is USER_HZ, which Linux fixes at 100 for everything that /proc shows.
const clockTicks = 100

// errNotLocal means that the cluster's processes are not on this machine, so their memory cannot be read.
var errNotLocal = errors.New(
	"the Pod's processes are not on this machine: memory can be measured on the local cluster only")

// memory starts a VM with 1 vCPU and the given guest memory and reads the memory that its processes use beside that.
func (b *bench) memory(ctx context.Context, r *result) error {
	vm := b.vm("memory", b.guestMiB)
	if _, err := b.start(ctx, vmRunning, vm); err != nil {
		return err
	}
	time.Sleep(guestBoot)
	pods := &corev1.PodList{}
	if err := b.api.List(ctx, pods, client.InNamespace(b.namespace),
		client.MatchingLabels{v1.AppLabel: launcherpod.AppLabelValue}); err != nil {
		return err
	}
	for i := range pods.Items {
		if pods.Items[i].Status.Phase != corev1.PodRunning {
			continue
		}
		var requested int64
		for _, container := range pods.Items[i].Spec.Containers {
			requested += container.Resources.Requests.Memory().Value()
		}
		r.ReservedOverheadMiB = float64(requested-b.guestMiB<<20) / (1 << 20)
		if err := b.reservedParts(ctx, vm, &pods.Items[i], r); err != nil {
			return err
		}
		if err := b.podMemory(&pods.Items[i], r); err != nil {
			return err
		}
	}
	return b.remove(ctx, vm)
}

// reservedParts is the part of the reserved overhead that is meant for each process.
func (b *bench) reservedParts(ctx context.Context, vm *v1.VirtualMachine, pod *corev1.Pod, r *result) error {
	_, kvm := pod.Spec.Containers[0].Resources.Limits["devices.kubevirt.io/kvm"]
	vmi := &v1.VirtualMachineInstance{}
	if err := b.api.Get(ctx, client.ObjectKeyFromObject(vm), vmi); err != nil {
		return err
	}
	r.ReservedPartsMiB = map[string]float64{}
	for _, part := range podspec.MemoryOverheadParts(vmi, podspec.Config{UseEmulation: !kvm}) {
		process := part.Name
		if process != podspec.PartLauncher && process != podspec.PartLibvirtd {
			process = podspec.PartQEMU // the rest is QEMU's, or the kernel's on its behalf
		}
		r.ReservedPartsMiB[process] += float64(part.Bytes) / (1 << 20)
	}
	for _, container := range pod.Spec.Containers {
		if container.Name == launcherpod.ConsoleLogContainer {
			r.ReservedPartsMiB[podspec.PartConsoleLog] = float64(container.Resources.Requests.Memory().Value()) / (1 << 20)
		}
	}
	return nil
}

func (b *bench) podMemory(pod *corev1.Pod, r *result) error {
	processes, err := podproc.Of(pod.UID)
	if err != nil {
		return err
	}
	if len(processes) == 0 {
		return errNotLocal
	}
	for _, process := range processes {
		total, guest, err := pss(process.PID, b.guestMiB<<20)
		if err != nil {
			return err
		}
		mib := float64(total-guest) / (1 << 20)
		r.UsedOverheadMiB += mib
		switch process.Program {
		case "virt-launcher":
			r.LauncherPSSMiB = mib
			rss, err := rssBytes(process.PID)
			if err != nil {
				return err
			}
			r.LauncherRSSMiB = float64(rss) / (1 << 20)
		case podspec.PartConsoleLog:
			r.ConsoleLogPSSMiB = mib
		case "libvirtd":
			r.LibvirtdPSSMiB = mib
		case "qemu-system-x86_64":
			r.QEMUOverheadMiB = mib
		}
	}
	return nil
}

// components reads memory and CPU of our own Pods while nothing happens.
func (b *bench) components(ctx context.Context, r *result) error {
	pods := &corev1.PodList{}
	if err := b.api.List(ctx, pods, client.InNamespace("kubevirt")); err != nil {
		return err
	}
	before := map[int]int64{}
	names := map[int]string{}
	for i := range pods.Items {
		processes, err := podproc.Of(pods.Items[i].UID)
		if err != nil {
			return err
		}
		for _, process := range processes {
			// A probe may be a process of the same program, which ends soon.
			if strings.HasPrefix(process.Program, "virt-") && *podproc.Oldest(processes, process.Program) == process {
				names[process.PID] = process.Program
				if before[process.PID], err = cpuTicks(process.PID); err != nil {
					return err
				}
			}
		}
	}
	if len(names) == 0 {
		return errNotLocal
	}
	time.Sleep(atRest)
	r.Components = map[string]component{}
	for pid, name := range names {
		after, err := cpuTicks(pid)
		if err != nil {
			return err
		}
		rss, err := rssBytes(pid)
		if err != nil {
			return err
		}
		// Of several replicas or nodes the largest counts.
		c := r.Components[name]
		c.RSSMiB = max(c.RSSMiB, float64(rss)/(1<<20))
		c.CPUPercent = max(c.CPUPercent, float64(after-before[pid])/clockTicks/atRest.Seconds()*100)
		r.Components[name] = c
	}
	return nil
}

// pss sums a process's proportional memory, and separately that of the mapping which is the guest's memory: the
// one whose size is exactly the guest's.
func pss(pid int, guestBytes int64) (total, guest int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0, 0, err
	}
	isGuest := false
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "Size:":
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, 0, err
			}
			isGuest = kib<<10 == guestBytes
		case "Pss:":
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, 0, err
			}
			total += kib << 10
			if isGuest {
				guest += kib << 10
			}
		}
	}
	return total, guest, lines.Err()
}

func rssBytes(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// cpuTicks is user plus system time.
func cpuTicks(pid int) (int64, error) {
	fields, err := podproc.Stat(pid)
	if err != nil {
		return 0, err
	}
	user, err := strconv.ParseInt(fields[13], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[14], 10, 64)
	return user + system, err
}
