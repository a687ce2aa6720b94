// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	instancetypev1beta1 "github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/auditlog"
	"github.com/vireo-project/vireo/test/quantile"
)

// smallGuestMiB is the memory of the guests whose start is timed.
const smallGuestMiB = 128

// The states that end a start, as sightings name them.
const (
	podRunning = "running"
	vmRunning  = "vmi Running"
)

// startSteps are the states of a start in their order. Kubernetes reports a Pod as running a while after its processes
// have started, which continue meanwhile.
var startSteps = []string{
	"vmi created", "pod created", "pod scheduled", stepConnected, "pod running", "vmi Scheduled", stepDefined,
	stepGuestRuns, vmRunning, "vmi Ready",
}

// The steps that virt-launcher's log contains.
const (
	stepConnected = "libvirtd's socket up"
	stepDefined   = "domain defined"
	stepGuestRuns = "domain started"
)

// launcherSteps reads from a launcher's log when its libvirtd was up and the domain was defined and started.
func (b *bench) launcherSteps(ctx context.Context) error {
	pods := &corev1.PodList{}
	if err := b.api.List(ctx, pods, client.InNamespace(b.namespace), client.HasLabels{v1.CreatedByLabel}); err != nil {
		return err
	}
	clientset, err := kubernetes.NewForConfig(b.rest)
	if err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		text, err := clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
			Container: launcherpod.ComputeContainer,
		}).DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("read the log of %s: %w", pod.Name, err)
		}
		for step, when := range stepsOfLog(text) {
			b.log.see(pod.Annotations[v1.DomainAnnotation], step, when)
		}
	}
	return nil
}

// stepsOfLog finds the milestones among virt-launcher's own lines; the others are the guest's.
func stepsOfLog(text []byte) map[string]time.Time {
	steps := map[string]string{
		launcherpod.LogConnected: stepConnected, launcherpod.LogDefined: stepDefined, launcherpod.LogGuestRuns: stepGuestRuns,
	}
	found := map[string]time.Time{}
	for line := range bytes.Lines(text) {
		var entry struct {
			Time    time.Time `json:"ts"`
			Message string    `json:"msg"`
		}
		if json.Unmarshal(line, &entry) != nil {
			continue
		}
		if step, ok := steps[entry.Message]; ok {
			found[step] = entry.Time
		}
	}
	return found
}

// warmUp starts and removes one of each, so that images are in page caches and watches are warm.
func (b *bench) warmUp(ctx context.Context, _ *result) error {
	vm, pod := b.vm("warm-up", smallGuestMiB), b.pod("warm-up-pod")
	if _, err := b.start(ctx, vmRunning, vm); err != nil {
		return err
	}
	if _, err := b.start(ctx, podRunning, pod); err != nil {
		return err
	}
	return b.remove(ctx, vm, pod)
}

func (b *bench) pods(prefix string) []client.Object {
	all := make([]client.Object, 0, b.count)
	for i := range b.count {
		all = append(all, b.pod(fmt.Sprintf("%s%d", prefix, i)))
	}
	return all
}

func (b *bench) vms(prefix string) []client.Object {
	all := make([]client.Object, 0, b.count)
	for i := range b.count {
		all = append(all, b.vm(fmt.Sprintf("%s%d", prefix, i), smallGuestMiB))
	}
	return all
}

func (b *bench) podsOneByOne(ctx context.Context, r *result) error {
	s, err := b.oneByOne(ctx, podRunning, func(context.Context) error { return nil }, b.pods("pod-one")...)
	r.Pod = quantile.Milliseconds(s.durations())
	return err
}

func (b *bench) podsAtOnce(ctx context.Context, r *result) error {
	pods := b.pods("pod-all")
	s, err := b.start(ctx, podRunning, pods...)
	if err != nil {
		return err
	}
	r.PodBurst = quantile.Milliseconds(s.durations())
	return b.remove(ctx, pods...)
}

func (b *bench) vmsOneByOne(ctx context.Context, r *result) error {
	offset, err := auditlog.Offset(b.auditLog)
	if err != nil {
		return err
	}
	s, err := b.oneByOne(ctx, vmRunning, b.launcherSteps, b.vms("vm-one")...)
	if err != nil {
		return err
	}
	r.VM = quantile.Milliseconds(s.durations())
	r.Steps = b.steps(s)
	changes, err := b.settledChanges(offset)
	if err != nil {
		return err
	}
	r.WritesPerVM = perVM(changes, b.untilReady(s), auditlog.Write.Ours)
	r.AllWritesPerVM = perVM(changes, b.untilReady(s), func(auditlog.Write) bool { return true })
	return nil
}

// typedVMsOneByOne counts the writes of VMs whose size and devices are those of an instance type and a preference.
func (b *bench) typedVMsOneByOne(ctx context.Context, r *result) error {
	const kind, preferenceKind, name = "VirtualMachineInstancetype", "VirtualMachinePreference", "bench"
	meta := metav1.ObjectMeta{Namespace: b.namespace, Name: name}
	size := instancetypev1beta1.VirtualMachineInstancetypeSpec{
		CPU:    instancetypev1beta1.CPUInstancetype{Guest: 1},
		Memory: instancetypev1beta1.MemoryInstancetype{Guest: *resource.NewQuantity(smallGuestMiB<<20, resource.BinarySI)},
	}
	devices := instancetypev1beta1.VirtualMachinePreferenceSpec{
		Devices: &instancetypev1beta1.DevicePreferences{PreferredDiskBus: v1.DiskBusVirtio,
			PreferredInterfaceModel: v1.VirtIO},
	}
	for _, object := range []client.Object{
		&instancetypev1beta1.VirtualMachineInstancetype{ObjectMeta: meta, Spec: size},
		&instancetypev1beta1.VirtualMachinePreference{ObjectMeta: meta, Spec: devices},
	} {
		if err := b.api.Create(ctx, object); err != nil {
			return err
		}
	}
	vms := make([]client.Object, 0, b.count)
	for i := range b.count {
		vm := b.vm(fmt.Sprintf("vm-typed%d", i), smallGuestMiB)
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Kind: kind, Name: name}
		vm.Spec.Preference = &v1.PreferenceMatcher{Kind: preferenceKind, Name: name}
		vm.Spec.Template.Spec.Domain.Memory = nil
		vm.Spec.Template.Spec.Domain.Devices.Disks = nil
		vms = append(vms, vm)
	}
	offset, err := auditlog.Offset(b.auditLog)
	if err != nil {
		return err
	}
	s, err := b.oneByOne(ctx, vmRunning, func(context.Context) error { return nil }, vms...)
	if err != nil {
		return err
	}
	changes, err := b.settledChanges(offset)
	r.WritesPerTypedVM = perVM(changes, b.untilReady(s), auditlog.Write.Ours)
	return err
}

func (b *bench) vmsAtOnce(ctx context.Context, r *result) error {
	offset, err := auditlog.Offset(b.auditLog)
	if err != nil {
		return err
	}
	vms := b.vms("vm-all")
	s, err := b.start(ctx, vmRunning, vms...)
	if err != nil {
		return err
	}
	r.VMBurst = quantile.Milliseconds(s.durations())
	changes, err := b.settledChanges(offset)
	if err != nil {
		return err
	}
	r.WritesPerVMBurst = perVM(changes, b.untilReady(s), auditlog.Write.Ours)
	return b.remove(ctx, vms...)
}

// settledChanges reads the audit log after the last writes of a start had time to reach it.
func (b *bench) settledChanges(offset int64) ([]auditlog.Write, error) {
	time.Sleep(settle)
	return auditlog.Since(b.auditLog, offset, b.namespace)
}

// untilReady returns until when the writes of a start count: beyond Running, until the cluster has settled, because
// later writes cost as much.
func (b *bench) untilReady(s started) map[string]time.Time {
	until := map[string]time.Time{}
	for name, running := range s.running {
		until[name] = running.Add(settle)
	}
	return until
}

// steps summarizes when each state was seen after creation.
func (b *bench) steps(s started) []stepTime {
	all := make([]stepTime, 0, len(startSteps))
	for _, step := range startSteps {
		var sample []time.Duration
		for name, created := range s.created {
			if when, ok, _ := b.log.at(name, step); ok {
				sample = append(sample, when.Sub(created))
			}
		}
		q := quantile.Milliseconds(sample)
		all = append(all, stepTime{Step: step, P50: q.P50, P95: q.P95})
	}
	return all
}
