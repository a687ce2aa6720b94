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

// participants are the nodes and Pods that take part in a migration.
type participants struct {
	source, target string
	// instance is the UID of the VMI, and sourcePod the Pod that runs the guest.
	instance, sourcePod types.UID
	// agents and brokers are the Pods of virt-handler and virt-broker by node, and controllers those of virt-controller by
	// name.
	agents, brokers, controllers map[string]types.UID
	// leader is the Pod of the leading virt-controller.
	leader string
}

func (h *harness) participants(ctx context.Context) (*participants, error) {
	instance := &v1.VirtualMachineInstance{}
	if err := h.api.Get(ctx, client.ObjectKey{Namespace: h.namespace, Name: guestName}, instance); err != nil {
		return nil, err
	}
	s := &participants{
		source: instance.Status.NodeName, instance: instance.UID,
		agents: map[string]types.UID{}, brokers: map[string]types.UID{}, controllers: map[string]types.UID{},
	}
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
	for _, pod := range h.observer.launcherPods() {
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
		case agentProgram:
			s.agents[pod.Spec.NodeName] = pod.UID
		case "virt-broker":
			s.brokers[pod.Spec.NodeName] = pod.UID
		case "virt-controller":
			s.controllers[pod.Name] = pod.UID
		}
	}
	if s.leader, err = h.leader(ctx); err != nil {
		return nil, err
	}
	if s.sourcePod == "" || len(s.agents) != 2 || len(s.brokers) != 2 || len(s.controllers) == 0 {
		return nil, fmt.Errorf("a Pod that takes part in migrations is missing: %+v", s)
	}
	return s, nil
}

func isAlive(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != podGone
}

// appearTimeout is how long to wait for a process that is to be killed.
const appearTimeout = 3 * time.Second

// nodeProcess is a process that every node has.
type nodeProcess struct {
	program string
	// onTarget says that the one of the target node is killed, otherwise that of the source node.
	onTarget bool
}

// nodeProcesses are the processes of node agents and their brokers that faults kill.
var nodeProcesses = map[plan.Fault]nodeProcess{
	plan.SourceAgent: {agentProgram, false}, plan.TargetAgent: {agentProgram, true},
	plan.SourceBroker: {"virt-broker", false}, plan.TargetBroker: {"virt-broker", true},
	plan.SourceNetwork: {"virt-network-broker", false}, plan.TargetNetwork: {"virt-network-broker", true},
}

// inject injects a fault.
func (h *harness) inject(ctx context.Context, f plan.Fault, s *participants) error {
	if process, is := nodeProcesses[f]; is {
		return h.killNodeProcess(ctx, process, s)
	}
	source := func(program string) error { return h.killIn(ctx, program, func() types.UID { return s.sourcePod }) }
	target := func(program string) error { return h.killIn(ctx, program, h.observer.targetPod) }
	switch f {
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
	return fmt.Errorf("unknown fault %q", f)
}

const (
	agentProgram = "virt-handler"
	qemuProgram  = "qemu-system-x86_64"
)

// killNodeProcess kills a process of a node's agent or of its broker.
func (h *harness) killNodeProcess(ctx context.Context, p nodeProcess, s *participants) error {
	node, pods := s.source, s.brokers
	if p.onTarget {
		node = s.target
	}
	if p.program == agentProgram {
		pods = s.agents
	}
	return h.killIn(ctx, p.program, func() types.UID { return pods[node] })
}

// killIn kills a process of a Pod, and waits for the process to appear.
func (h *harness) killIn(ctx context.Context, program string, pod func() types.UID) error {
	for until := time.Now().Add(appearTimeout); ; {
		if uid := pod(); uid != "" {
			all, err := podproc.Of(uid)
			if err != nil {
				return err
			}
			if p := podproc.Oldest(all, program); p != nil {
				h.observer.note("kill %s, process %d of Pod %s", program, p.PID, uid)
				return syscall.Kill(p.PID, syscall.SIGKILL)
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

// errAbsent means that a process to kill did not exist, or had ended.
var errAbsent = errors.New("no such process")

// targetPod is the target of the migration, empty if there is none yet.
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

// leader returns the Pod of the leading virt-controller.
func (h *harness) leader(ctx context.Context) (string, error) {
	lease := &coordinationv1.Lease{}
	if err := h.api.Get(ctx, client.ObjectKey{Namespace: installNamespace, Name: "virt-controller"}, lease); err != nil {
		return "", err
	}
	pod, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	return pod, nil
}

// killLeader kills the leading virt-controller: the one that led when the run began, if the API server was killed
// before.
func (h *harness) killLeader(ctx context.Context, s *participants) error {
	leader, err := h.leader(ctx)
	if err != nil {
		leader = s.leader
	}
	return h.killIn(ctx, "virt-controller", func() types.UID { return s.controllers[leader] })
}

// damage is the faults that only this test repairs.
type damage struct {
	mu sync.Mutex
	// killed are the killed components, and cuts the nodes with broken connections.
	killed, cuts map[string]bool
}

func (d *damage) kill(h *harness, component string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.killed[component] {
		return fmt.Errorf("%w: %s, which is already killed", errAbsent, component)
	}
	d.killed[component] = true
	h.observer.note("kill %s", component)
	return h.cluster.kill(component)
}

// repair restores the connections and starts the killed components.
func (d *damage) repair(ctx context.Context, h *harness) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for node := range d.cuts {
		// The table may be missing, as the cut may have failed: the first line makes the deletion succeed.
		if _, err := h.cluster.enter(ctx, node, "table inet "+cutTable+" {}\ndelete table inet "+cutTable+"\n", "nft", "-f",
			"-"); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(d.cuts, node)
		h.observer.note("connections restored on %s", node)
	}
	if len(d.killed) > 0 {
		err := h.cluster.start(ctx)
		if err == nil {
			h.observer.note("the killed components run again")
			clear(d.killed)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
