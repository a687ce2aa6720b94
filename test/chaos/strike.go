// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/chaos/plan"
	"github.com/vireo-project/vireo/test/podproc"
)

// scene is who takes part in a migration.
type scene struct {
	source, target string
	// instance and sourcePod are where the guest is.
	instance, sourcePod types.UID
	// agents are the Pods of the nodes' agents, and controllers those of virt-controller by their names.
	agents, controllers map[string]types.UID
}

func (h *harness) scene(ctx context.Context) (*scene, error) {
	instance := &v1.VirtualMachineInstance{}
	if err := h.api.Get(ctx, client.ObjectKey{Namespace: h.namespace, Name: guestName}, instance); err != nil {
		return nil, err
	}
	s := &scene{source: instance.Status.NodeName, instance: instance.UID, agents: map[string]types.UID{}, controllers: map[string]types.UID{}}
	for _, node := range h.cluster.nodes() {
		if node != s.source {
			s.target = node
		}
	}
	for uid, node := range instance.Status.ActivePods {
		if node == s.source {
			s.sourcePod = uid
		}
	}
	for _, pod := range h.seen.everyPod() {
		if isAlive(pod) && pod.Spec.NodeName == s.source {
			s.sourcePod = pod.UID
		}
	}
	pods, err := h.components(ctx)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		switch pod := &pods[i]; pod.Labels["kubevirt.io"] {
		case "virt-handler":
			s.agents[pod.Spec.NodeName] = pod.UID
		case "virt-controller":
			s.controllers[pod.Name] = pod.UID
		}
	}
	if s.sourcePod == "" || len(s.agents) != 2 || len(s.controllers) == 0 {
		return nil, fmt.Errorf("somebody is missing: %+v", s)
	}
	return s, nil
}

func isAlive(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != podGone
}

// appears is how long a process that is to be killed may take to come into being.
const appears = 3 * time.Second

// strike has a fault happen.
func (h *harness) strike(ctx context.Context, f plan.Fault, s *scene) error {
	agent := func(node string) error {
		return h.killIn(ctx, "virt-handler", func() types.UID { return s.agents[node] })
	}
	source := func(program string) error { return h.killIn(ctx, program, func() types.UID { return s.sourcePod }) }
	target := func(program string) error { return h.killIn(ctx, program, h.seen.targetPod) }
	switch f {
	case plan.SourceAgent:
		return agent(s.source)
	case plan.TargetAgent:
		return agent(s.target)
	case plan.SourceLauncher:
		return source("virt-launcher")
	case plan.TargetLauncher:
		return target("virt-launcher")
	case plan.SourceLibvirtd:
		return source("libvirtd")
	case plan.TargetLibvirtd:
		return target("libvirtd")
	case plan.SourceQEMU:
		return source(qemuProgram)
	case plan.TargetQEMU:
		return target(qemuProgram)
	case plan.Controller:
		return h.killLeader(ctx, s)
	case plan.APIServer:
		return h.damage.kill(h, "kube-apiserver")
	case plan.SourceKubelet:
		return h.damage.kill(h, s.source+"/kubelet")
	case plan.TargetKubelet:
		return h.damage.kill(h, s.target+"/kubelet")
	case plan.CutAgents:
		return h.damage.cut(ctx, h, s.source, betweenAgents)
	case plan.CutQEMUs:
		return h.damage.cut(ctx, h, s.source, betweenQEMUs)
	case plan.CutSource:
		return h.damage.cut(ctx, h, s.source, toAPIServer)
	case plan.CutTarget:
		return h.damage.cut(ctx, h, s.target, toAPIServer)
	}
	return fmt.Errorf("nobody knows how to %s", f)
}

const qemuProgram = "qemu-system-x86_64"

// killIn kills a Pod's process, once there is one.
func (h *harness) killIn(ctx context.Context, program string, pod func() types.UID) error {
	for until := time.Now().Add(appears); ; {
		if uid := pod(); uid != "" {
			all, err := podproc.Of(uid)
			if err != nil {
				return err
			}
			for _, p := range all {
				if p.Program == program {
					h.seen.note("kill %s, process %d of Pod %s", program, p.PID, uid)
					return syscall.Kill(p.PID, syscall.SIGKILL)
				}
			}
		}
		if time.Now().After(until) {
			return fmt.Errorf("%w: %s", errAbsent, program)
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// errAbsent is the end of an attempt to kill what is not there, or no more.
var errAbsent = errors.New("there is no such process")

// targetPod is the launcher Pod that the migration goes to.
func (o *observer) targetPod() types.UID {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, pod := range o.pods {
		if o.isTarget(pod) {
			return pod.UID
		}
	}
	return ""
}

// killLeader kills the virt-controller that leads.
func (h *harness) killLeader(ctx context.Context, s *scene) error {
	lease := &coordinationv1.Lease{}
	if err := h.api.Get(ctx, client.ObjectKey{Namespace: installed, Name: "virt-controller"}, lease); err != nil {
		return err
	}
	leader, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	return h.killIn(ctx, "virt-controller", func() types.UID { return s.controllers[leader] })
}

// damage is what nothing but this test mends.
type damage struct {
	mu sync.Mutex
	// killed are the components that were, and cuts the nodes.
	killed, cuts map[string]bool
}

func (d *damage) kill(h *harness, component string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.killed[component] {
		return fmt.Errorf("%w: %s, which was killed before", errAbsent, component)
	}
	d.killed[component] = true
	h.seen.note("kill %s", component)
	return h.cluster.kill(component)
}

// mend starts what was killed and heals what was cut.
func (d *damage) mend(ctx context.Context, h *harness) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for node := range d.cuts {
		// Also where there is none: the cut may have failed.
		if _, err := h.cluster.enter(ctx, node, "table inet "+cutTable+" {}\ndelete table inet "+cutTable+"\n", "nft", "-f", "-"); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(d.cuts, node)
		h.seen.note("the cut on %s is healed", node)
	}
	if len(d.killed) > 0 {
		err := h.cluster.up(ctx)
		if err == nil {
			h.seen.note("what was killed runs again")
			clear(d.killed)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
