// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationsv1alpha1 "github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/chaos/oracle"
	"github.com/vireo-project/vireo/test/chaos/trace"
)

// harness is the state that all runs share.
type harness struct {
	options
	cluster   *localCluster
	api       client.WithWatch
	clientset kubernetes.Interface
	trace     *trace.Trace
	observer  *observer
	stop      context.CancelFunc
	// disk is the path of the guest's disk, and chain the log that was read from it.
	disk  string
	chain *oracle.Chain
	// before is the footprint of each node before the guest was created.
	before map[string]footprint
	// damage is the faults that are not repaired yet.
	damage damage
}

// newHarness starts a guest. If it returns a harness, also with an error, the caller must call cleanUp.
func newHarness(ctx context.Context, o options, cluster *localCluster) (*harness, error) {
	h := &harness{
		options: o, cluster: cluster, observer: newObserver(o.namespace), chain: &oracle.Chain{},
		damage: damage{killed: map[string]bool{}, cuts: map[string]bool{}},
	}
	if err := h.connect(); err != nil {
		return nil, err
	}
	if err := h.removeOld(ctx); err != nil {
		return nil, err
	}
	var programs []string
	for _, node := range cluster.nodes() {
		found, err := trace.Programs(cluster.containerd(node))
		if err != nil {
			return nil, err
		}
		programs = append(programs, found...)
	}
	var err error
	if h.before, err = h.footprints(ctx); err != nil {
		return nil, err
	}
	if h.trace, err = trace.Start(programs); err != nil {
		return nil, err
	}
	following, stop := context.WithCancel(context.Background())
	h.stop = stop
	go h.observer.readTrace(h.trace)
	h.observer.follow(following, h.api, h.namespace)
	if err := h.awaitReady(ctx); err != nil {
		return h, err
	}
	return h, h.setUp(ctx)
}

func (h *harness) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", h.cluster.kubeconfig())
	if err != nil {
		return err
	}
	config.QPS, config.Burst, config.Timeout = 200, 400, 0
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme,
		migrationsv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	if h.api, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	h.clientset, err = kubernetes.NewForConfig(config)
	return err
}

// restart replaces the guest after a run that may have left it in an undefined state.
func (h *harness) restart(ctx context.Context) error {
	if err := h.removeOld(ctx); err != nil {
		return err
	}
	h.disk, h.chain = "", &oracle.Chain{}
	if err := h.awaitReady(ctx); err != nil {
		return err
	}
	return h.setUp(ctx)
}

// removeOld deletes the namespace with everything in it, and the migration policy.
func (h *harness) removeOld(ctx context.Context) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: h.namespace}}
	until := time.Now().Add(3 * time.Minute)
	for {
		if err := h.api.Get(ctx, client.ObjectKeyFromObject(namespace), namespace); client.IgnoreNotFound(err) == nil &&
			err != nil {
			return client.IgnoreNotFound(h.api.Delete(ctx, h.policy()))
		}
		_ = h.api.DeleteAllOf(ctx, &v1.VirtualMachine{}, client.InNamespace(h.namespace))
		_ = h.api.DeleteAllOf(ctx, &v1.VirtualMachineInstanceMigration{}, client.InNamespace(h.namespace))
		left := &v1.VirtualMachineInstanceList{}
		if err := h.api.List(ctx, left, client.InNamespace(h.namespace)); err == nil && len(left.Items) == 0 {
			_ = h.api.Delete(ctx, namespace)
		}
		if time.Now().After(until) {
			return fmt.Errorf("namespace %s is still being deleted", h.namespace)
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// cleanUp repairs all faults, and removes the guest and the trace.
func (h *harness) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	err := errors.Join(h.damage.repair(ctx, h), h.removeOld(ctx))
	h.stop()
	return errors.Join(err, h.trace.Stop())
}

// awaitReady waits until all nodes and components are ready.
func (h *harness) awaitReady(ctx context.Context) error {
	until := time.Now().Add(3 * time.Minute)
	for {
		missing, err := h.notReady(ctx)
		if err == nil && len(missing) == 0 {
			return nil
		}
		if time.Now().After(until) {
			return errors.Join(fmt.Errorf("the cluster is not ready: %s", strings.Join(missing, "; ")), err)
		}
		if err := pause(ctx, 250*time.Millisecond); err != nil {
			return err
		}
	}
}

// notReady lists the nodes and the Pods of components that are not ready. It deletes Pods in CrashLoopBackOff: the
// back-off is a result of the frequent kills of this test only.
func (h *harness) notReady(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var missing []string
	nodes := &corev1.NodeList{}
	if err := h.api.List(ctx, nodes); err != nil {
		return nil, err
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		if !ready || node.Labels[v1.NodeSchedulable] != "true" {
			missing = append(missing,
				fmt.Sprintf("node %s (ready %t, schedulable %q)", node.Name, ready, node.Labels[v1.NodeSchedulable]))
		}
	}
	pods, err := h.components(ctx)
	if err != nil {
		return nil, err
	}
	// A Pod that was deleted may not have been replaced yet.
	for i := range nodes.Items {
		for _, role := range []string{"virt-handler", "virt-broker"} {
			if !slices.ContainsFunc(pods, func(p corev1.Pod) bool {
				return p.Labels["kubevirt.io"] == role && p.Spec.NodeName == nodes.Items[i].Name
			}) {
				missing = append(missing, fmt.Sprintf("%s of node %s", role, nodes.Items[i].Name))
			}
		}
	}
	for i := range pods {
		pod := &pods[i]
		if crashLoops(pod) {
			if err := h.api.Delete(ctx, pod, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
				return nil, err
			}
		}
		ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if !ready || pod.DeletionTimestamp != nil {
			missing = append(missing, "Pod "+pod.Name)
		}
	}
	return missing, nil
}

// installNamespace is the namespace that Vireo is installed in.
const installNamespace = "kubevirt"

func (h *harness) components(ctx context.Context) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	err := h.api.List(ctx, pods, client.InNamespace(installNamespace), client.HasLabels{"kubevirt.io"})
	return pods.Items, err
}

func crashLoops(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff"
	})
}

// hostExists reports whether a process exists on the host.
func hostExists(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil
}
