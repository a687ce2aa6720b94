// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/podproc"
)

// footprint counts what Pods leave on a node if their cleanup fails.
type footprint struct {
	// namespaces is the number of network namespaces minus the number of Pods that need one.
	namespaces int
	// tables are the nftables tables of the node itself.
	tables string
}

func (h *harness) footprints(ctx context.Context) (map[string]footprint, error) {
	pods := &corev1.PodList{}
	if err := h.api.List(ctx, pods); err != nil {
		return nil, err
	}
	all := map[string]footprint{}
	for _, node := range h.cluster.nodes() {
		holder, err := h.cluster.pid(node + "/holder")
		if err != nil {
			return nil, err
		}
		namespaces, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/run/netns/cni-*", holder))
		if err != nil {
			return nil, err
		}
		sandboxes := 0
		for i := range pods.Items {
			if p := &pods.Items[i]; p.Spec.NodeName == node && !p.Spec.HostNetwork && isAlive(p) {
				sandboxes++
			}
		}
		tables, err := h.cluster.enter(ctx, node, "", "nft", "list", "tables")
		if err != nil {
			return nil, err
		}
		all[node] = footprint{namespaces: len(namespaces) - sandboxes, tables: tables}
	}
	return all, nil
}

// leftovers are what a finished migration has left on the nodes.
func (h *harness) leftovers(ctx context.Context) ([]string, error) {
	now, err := h.footprints(ctx)
	if err != nil {
		return nil, err
	}
	var left []string
	for node, is := range now {
		was := h.before[node]
		if is.namespaces > was.namespaces {
			left = append(left, fmt.Sprintf("%d network namespaces of Pods that have ended, on node %s",
				is.namespaces-was.namespaces, node))
		}
		if is.tables != was.tables {
			left = append(left, fmt.Sprintf("nftables on node %s: %q", node, is.tables))
		}
	}
	for _, pod := range h.observer.launcherPods() {
		processes, err := podproc.Of(pod.UID)
		if err != nil {
			return nil, err
		}
		if isAlive(pod) {
			left = append(left, inPod(pod, processes)...)
			continue
		}
		for _, p := range processes {
			left = append(left, fmt.Sprintf("process %d (%s) of Pod %s, which is %s", p.PID, p.Program, pod.Name,
				pod.Status.Phase))
		}
	}
	slices.Sort(left)
	return left, nil
}

// inPod is what a finished migration has left in the Pod that runs the guest.
func inPod(pod *corev1.Pod, processes []podproc.Process) []string {
	var left []string
	for _, p := range processes {
		if p.Program != "libvirtd" {
			continue
		}
		root := fmt.Sprintf("/proc/%d/root", p.PID)
		entries, err := os.ReadDir(filepath.Join(root, launcherpod.MigrationTLSDir))
		if err == nil && len(entries) > 0 {
			left = append(left, fmt.Sprintf("certificate files of a migration in Pod %s", pod.Name))
		}
		// libvirt keeps one file for each running domain.
		if domains, err := filepath.Glob(filepath.Join(root, "run/libvirt*/qemu/run/*.xml")); err == nil && len(domains) > 1 {
			left = append(left, fmt.Sprintf("%d domains in Pod %s: %s", len(domains), pod.Name, strings.Join(domains, ", ")))
		}
	}
	return left
}
