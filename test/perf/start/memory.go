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
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// atRest is how long components are watched while nothing happens.
const atRest = 20 * time.Second

// guestBoot is how long the guest may run before its overhead is read: it has booted and touched its devices.
const guestBoot = 15 * time.Second

// clockTicks is USER_HZ, which Linux fixes at 100 for everything that /proc shows.
const clockTicks = 100

// errNotLocal means that the cluster's processes are not on this machine, so their memory cannot be read.
var errNotLocal = errors.New("the Pod's processes are not on this machine: memory can be measured on the local cluster only")

// memory starts a VM with 1 vCPU and the given guest memory and reads what its processes hold beside that.
func (b *bench) memory(ctx context.Context, r *result) error {
	vm := b.vm("memory", b.guestMiB)
	if _, err := b.start(ctx, vmRunning, false, vm); err != nil {
		return err
	}
	time.Sleep(guestBoot)
	pods := &corev1.PodList{}
	if err := b.api.List(ctx, pods, client.InNamespace(b.namespace), client.MatchingLabels{"kubevirt.io": "virt-launcher"}); err != nil {
		return err
	}
	for i := range pods.Items {
		if pods.Items[i].Status.Phase != corev1.PodRunning {
			continue
		}
		request := pods.Items[i].Spec.Containers[0].Resources.Requests[corev1.ResourceMemory]
		r.ReservedOverheadMiB = float64(request.Value()-b.guestMiB<<20) / (1 << 20)
		if err := b.podMemory(&pods.Items[i], r); err != nil {
			return err
		}
	}
	return b.remove(ctx, vm)
}

func (b *bench) podMemory(pod *corev1.Pod, r *result) error {
	processes, err := podProcesses(string(pod.UID))
	if err != nil {
		return err
	}
	if len(processes) == 0 {
		return errNotLocal
	}
	for pid, command := range processes {
		total, guest, err := pss(pid, b.guestMiB<<20)
		if err != nil {
			return err
		}
		mib := float64(total-guest) / (1 << 20)
		r.UsedOverheadMiB += mib
		switch command {
		case "virt-launcher":
			r.LauncherPSSMiB = mib
			rss, err := rssBytes(pid)
			if err != nil {
				return err
			}
			r.LauncherRSSMiB = float64(rss) / (1 << 20)
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
		processes, err := podProcesses(string(pods.Items[i].UID))
		if err != nil {
			return err
		}
		for pid, command := range processes {
			if strings.HasPrefix(command, "virt-") {
				names[pid] = command
				if before[pid], err = cpuTicks(pid); err != nil {
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

// podProcesses finds the processes whose cgroup carries a Pod's UID, and their programs.
func podProcesses(uid string) (map[int]string, error) {
	directories, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	found := map[int]string{}
	for _, directory := range directories {
		cgroup, err := os.ReadFile(filepath.Join(directory, "cgroup"))
		if err != nil || !(bytes.Contains(cgroup, []byte(uid)) || bytes.Contains(cgroup, []byte(strings.ReplaceAll(uid, "-", "_")))) {
			continue
		}
		executable, err := os.Readlink(filepath.Join(directory, "exe"))
		if err != nil || filepath.Base(executable) == "pause" {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(directory))
		if err != nil {
			return nil, err
		}
		found[pid] = filepath.Base(executable)
	}
	return found, nil
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

// cpuTicks is user plus system time. The name in field 2 may hold blanks, so count from its closing bracket.
func cpuTicks(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	return user + system, err
}
