// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hostile

import (
	"context"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/scriptedlibvirtd"
)

const honestNamespace, hostileNamespace = "honest", "hostile"

// guest is a VMI with a launcher Pod.
type guest struct {
	world  *world
	vmi    *v1.VirtualMachineInstance
	pod    *corev1.Pod
	daemon *scriptedlibvirtd.Daemon
	// stopped is closed when its domain has ended.
	stopped chan struct{}
}

func (g *guest) key() types.NamespacedName { return client.ObjectKeyFromObject(g.vmi) }

func (g *guest) domain() string { return launcherpod.DomainName(g.vmi.Namespace, g.vmi.Name) }

// schedule creates a VMI with a running launcher Pod on the node, whose libvirtd listens.
func (w *world) schedule(namespace, name string, daemon *scriptedlibvirtd.Daemon) *guest {
	ctx, memory := context.Background(), resource.MustParse("64Mi")
	g := &guest{world: w, daemon: daemon, stopped: make(chan struct{})}
	g.vmi = &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Finalizers: []string{v1.VirtualMachineInstanceFinalizer},
	}}
	g.vmi.Spec.Architecture = "amd64"
	g.vmi.Spec.Domain.Machine = &v1.Machine{Type: "q35"}
	g.vmi.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
	g.vmi.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
	expect(w.t, w.api.Create(ctx, g.vmi))
	g.pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "virt-launcher-" + name, OwnerReferences: ownedBy(g.vmi),
			Labels: map[string]string{v1.AppLabel: launcherpod.AppLabelValue, v1.CreatedByLabel: string(g.vmi.UID)},
		},
		Spec: corev1.PodSpec{NodeName: thisNode,
			Containers: []corev1.Container{{Name: "compute", Image: "example/launcher"}}},
	}
	expect(w.t, w.api.Create(ctx, g.pod))
	before := g.pod.DeepCopy()
	g.pod.Status.Phase = corev1.PodRunning
	g.pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
	}
	expect(w.t, w.api.Status().Patch(ctx, g.pod, client.MergeFrom(before)))
	expect(w.t, daemon.Listen(w.socketOf(g.pod.UID)))
	w.t.Cleanup(daemon.Close)
	return g
}

// assign assigns the Pod to the agent, as virt-controller does when the Pod runs.
func (g *guest) assign(change func(*v1.VirtualMachineInstanceStatus)) {
	before := &v1.VirtualMachineInstance{}
	expect(g.world.t, g.world.api.Get(context.Background(), g.key(), before))
	after := before.DeepCopy()
	after.Status.Phase, after.Status.NodeName = v1.Scheduled, thisNode
	change(&after.Status)
	expect(g.world.t, g.world.api.Status().Patch(context.Background(), after, client.MergeFrom(before)))
}

// honest returns a guest with a launcher that is not hostile.
func (w *world) honest(name string) *guest {
	daemon := scriptedlibvirtd.New()
	g := w.schedule(honestNamespace, name, daemon)
	var ended bool // Changed is called by one goroutine at a time.
	daemon.Changed = func(state, reason int32) {
		if scriptedlibvirtd.Ended(state, reason) && !ended {
			ended = true
			close(g.stopped)
		}
	}
	return g
}

// start assigns the guest, and waits until the agent has started it.
func (g *guest) start() bool {
	g.assign(func(*v1.VirtualMachineInstanceStatus) {})
	return g.world.await(g.key(), "running",
		func(vmi *v1.VirtualMachineInstance) bool { return vmi.Status.Phase == v1.Running })
}

// pause pauses the guest, as the agent's server does for virt-api.
func (g *guest) pause() bool {
	conn, err := g.world.connections.Connect(hypervisor.PodRef{UID: g.pod.UID, VMI: g.key()})
	if err == nil {
		err = conn.Pause(context.Background(), g.domain())
	}
	if err != nil {
		g.world.t.Errorf("pause %s: %v", g.key(), err)
		return false
	}
	return g.world.await(g.key(), "paused", func(vmi *v1.VirtualMachineInstance) bool {
		return vmistatus.IsConditionTrue(&vmi.Status, v1.VirtualMachineInstancePaused)
	})
}

// migrate transfers the guest to another libvirtd.
func (g *guest) migrate() bool {
	conn, err := g.world.connections.Connect(hypervisor.PodRef{UID: g.pod.UID, VMI: g.key()})
	if err == nil {
		err = g.transferBy(conn)
	}
	if err != nil {
		g.world.t.Errorf("migrate %s: %v", g.key(), err)
	}
	return err == nil
}

// transferrer transfers guests.
type transferrer interface {
	Transfer(ctx context.Context, r hypervisor.TransferRequest) error
	Domain(ctx context.Context, name string) (*hypervisor.Domain, error)
}

func (g *guest) transferBy(conn transferrer) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	live, err := conn.Domain(ctx, g.domain())
	if err != nil {
		return err
	}
	target := scriptedlibvirtd.New()
	g.world.t.Cleanup(target.Close)
	return conn.Transfer(ctx, hypervisor.TransferRequest{
		Domain: g.domain(), XML: live.XML, Address: "127.0.0.1",
		DialTarget: func(context.Context) (net.Conn, error) {
			here, there := net.Pipe()
			go target.Serve(there)
			return here, nil
		},
		MaxDowntime: time.Second,
	})
}

// stop deletes the VMI, and waits until the agent has shut the guest down.
func (g *guest) stop() bool {
	expect(g.world.t, g.world.api.Delete(context.Background(), g.vmi))
	select {
	case <-g.stopped:
		return true
	case <-time.After(timeout):
		g.world.t.Errorf("%s has not stopped after %s", g.key(), timeout)
		return false
	}
}

// remove deletes Pod and VMI.
func (g *guest) remove() {
	ctx := context.Background()
	g.daemon.Close()
	expect(g.world.t, client.IgnoreNotFound(g.world.api.Delete(ctx, g.pod, client.GracePeriodSeconds(0))))
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	expect(g.world.t, client.IgnoreNotFound(g.world.api.Patch(ctx, g.vmi.DeepCopy(), patch)))
	expect(g.world.t, client.IgnoreNotFound(g.world.api.Delete(ctx, g.vmi)))
}

// addHostile adds launchers of all kinds in turn, and returns when the agent has called each.
func (w *world) addHostile(count int) []*guest {
	var guests []*guest
	var launchers []*hostile
	for i := range count {
		k, name := kinds[i%len(kinds)], fmt.Sprintf("hostile-%d", i)
		h := newHostile(k, launcherpod.DomainName(hostileNamespace, name))
		g := w.schedule(hostileNamespace, name, h.daemon)
		g.assign(func(status *v1.VirtualMachineInstanceStatus) {
			if k.migrates {
				now := metav1.Now()
				status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
					MigrationUID: types.UID("migration-" + name), SourceNode: thisNode, SourcePod: g.pod.Name, TargetNode: "elsewhere",
					TargetPod: "elsewhere", StartTimestamp: &now,
				}
			}
		})
		guests, launchers = append(guests, g), append(launchers, h)
	}
	for i, h := range launchers {
		select {
		case <-h.engaged:
		case <-time.After(timeout):
			w.t.Fatalf("the agent has not called %s, which %s", guests[i].key(), kinds[i%len(kinds)].name)
		}
	}
	return guests
}
