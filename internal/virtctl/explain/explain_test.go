// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package explain

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/test/builder"
)

var update = flag.Bool("update", false, "write the golden files")

// noon is the time of the snapshots.
var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// world builds a snapshot of the VM demo in the namespace tenant, in a cluster without problems.
type world struct{ s *Snapshot }

func newWorld() *world {
	return &world{&Snapshot{
		Now: noon, Namespace: "tenant", Name: "demo", Program: "virtctl",
		Claims: map[string]*corev1.PersistentVolumeClaim{}, Classes: map[string]Class{"fast": {}}, Hidden: map[Area]bool{},
		Install: Install{KubeVirt: &v1.KubeVirt{}, Namespace: "kubevirt", Controller: 1, API: 2},
	}}
}

func (w *world) vm(
	strategy v1.VirtualMachineRunStrategy, status v1.VirtualMachinePrintableStatus, template *builder.VMI,
) *world {
	vm := builder.MakeVM("demo").Namespace("tenant").Strategy(strategy)
	if template != nil {
		vm.Template(template)
	}
	w.s.VM = vm.Obj()
	w.s.VM.Status.PrintableStatus = status
	return w
}

func (w *world) vmi(b *builder.VMI) *world {
	w.s.VMI = b.Namespace("tenant").Obj()
	w.s.VMI.CreationTimestamp = metav1.Time{Time: noon.Add(-3 * time.Minute)}
	return w
}

func (w *world) with(change func(*Snapshot)) *world { change(w.s); return w }

func (w *world) pod(change func(*corev1.Pod)) *world {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "virt-launcher-demo-abcde", Namespace: "tenant"}}
	pod.Spec.Containers = []corev1.Container{{Name: "compute", Image: "launcher", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1152Mi")},
	}}}
	pod.Status.Phase = corev1.PodPending
	change(&pod)
	w.s.Pods = append(w.s.Pods, pod)
	return w
}

func (w *world) migration(name string, phase v1.VirtualMachineInstanceMigrationPhase, failure string) *world {
	m := v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.Status.Phase = phase
	if failure != "" {
		m.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{FailureReason: failure}
	}
	w.s.Migrations = append(w.s.Migrations, m)
	return w
}

func strategy(s v1.EvictionStrategy) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.EvictionStrategy = &s }
}

// evicted makes a VMI migratable and marks it for evacuation.
func evicted(s v1.EvictionStrategy) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		strategy(s)(vmi)
		vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceIsMigratable,
			Status: corev1.ConditionTrue}}
		eviction.Mark(&vmi.Status, metav1.Time{Time: noon})
	}
}

func (w *world) event(ago time.Duration, kind, name, reason, message string) *world {
	w.s.Events = append(w.s.Events, corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name}, Type: corev1.EventTypeWarning, Reason: reason,
		Message: message, LastTimestamp: metav1.Time{Time: noon.Add(-ago)},
	})
	return w
}

func unschedulable(message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Reason: "Unschedulable", Message: message}}
	}
}

func onNode(node string, waiting *corev1.ContainerStateWaiting) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.NodeName = node
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "compute", Image: "launcher",
			State: corev1.ContainerState{Waiting: waiting}}}
	}
}

func scenes() map[string]*world {
	demo := func() *builder.VMI { return builder.MakeVMI("demo") }
	pending := func() *builder.VMI { return demo().Phase(v1.Scheduling) }
	onN1 := func() *builder.VMI {
		return demo().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.Phase, vmi.Status.NodeName = v1.Running, "n1"
			vmi.Status.PhaseTransitionTimestamps = []v1.VirtualMachineInstancePhaseTransitionTimestamp{{Phase: v1.Running,
				PhaseTransitionTimestamp: metav1.Time{Time: noon.Add(-5 * time.Hour)}}}
			vmi.Status.Interfaces = []v1.VirtualMachineInstanceNetworkInterface{{IP: "10.1.2.3",
				IPs: []string{"10.1.2.3", "fd00::3"}}}
		})
	}
	return map[string]*world{
		"not found": newWorld(),
		"halted":    newWorld().vm(v1.RunStrategyHalted, v1.VirtualMachineStatusStopped, demo().PVC("data", "missing")),
		"manual":    newWorld().vm(v1.RunStrategyManual, v1.VirtualMachineStatusStopped, nil),
		"rerun":     newWorld().vm(v1.RunStrategyRerunOnFailure, v1.VirtualMachineStatusStopped, nil),
		"memory": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusUnschedulable, nil).vmi(pending()).
			pod(unschedulable("0/4 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 2 Insufficient memory, 1 node(s) were unschedulable. no new claims to deallocate, preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling.")).
			event(20*time.Second, "Pod", "virt-launcher-demo-abcde", "FailedScheduling",
				"0/4 nodes are available: 2 Insufficient memory"),
		"selector": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusUnschedulable, nil).vmi(pending()).
			pod(unschedulable("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")),
		"kvm": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusUnschedulable, nil).vmi(pending()).
			pod(unschedulable("0/1 nodes are available: 1 Insufficient devices.kubevirt.io/kvm.")),
		"vhost-net": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusUnschedulable, nil).vmi(pending()).
			pod(unschedulable("0/1 nodes are available: 1 Insufficient devices.kubevirt.io/vhost-net.")),
		"start failed": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusStarting, nil).
			vmi(demo().Phase(v1.Scheduled).Condition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
				"Synchronizing with the Domain failed.", "start the domain: failed to set MSR 0x345 to 0x2000")),
		"image": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusImagePullBackOff, nil).vmi(pending()).
			pod(onNode("n1", &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: `Back-off pulling image "example.com/no/such:tag"`})).
			event(90*time.Second, "Pod", "virt-launcher-demo-abcde", "Failed", `Failed to pull image "example.com/no/such:tag": not found`),
		"claim missing": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusPvcNotFound,
			demo().PVC("data", "missing")).
			vmi(demo().PVC("data", "missing").Phase(v1.Pending).Condition(v1.VirtualMachineInstanceSynchronized,
				corev1.ConditionFalse, "FailedPvcNotFound", "PVC tenant/missing does not exist, waiting for it to appear")).
			with(func(s *Snapshot) { s.Claims["missing"] = nil }),
		"claim of no class": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusStarting,
			demo().PVC("data", "disk")).vmi(demo().PVC("data", "disk").Phase(v1.Pending)).
			with(func(s *Snapshot) {
				class := "slow"
				s.Claims["disk"] = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "disk"},
					Spec:   corev1.PersistentVolumeClaimSpec{StorageClassName: &class},
					Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
			}).event(time.Hour, "PersistentVolumeClaim", "disk", "ProvisioningFailed", `storageclass.storage.k8s.io "slow" not found`),
		"field": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusStarting, nil).
			vmi(demo().Phase(v1.Pending).Condition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
				"FieldNotImplemented", "spec.domain.devices.gpus: Forbidden: passing devices through is not implemented yet")),
		"crash loop": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusCrashLoopBackOff, nil).
			with(func(s *Snapshot) {
				s.VM.Status.StartFailure = &v1.VirtualMachineStartFailure{ConsecutiveFailCount: 3,
					RetryAfterTimestamp: &metav1.Time{Time: noon.Add(47 * time.Second)}}
			}).
			pod(func(pod *corev1.Pod) {
				pod.Status.Phase = corev1.PodFailed
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "compute",
					State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
						ExitCode: 1, Reason: "Error", Message: `{"reason":"GuestCrashed","message":"QEMU ended without a shutdown: could not open disk \u001b[2Jimage"}`,
					}}}}
			}),
		"create refused": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusStopped, nil).
			with(func(s *Snapshot) {
				s.VM.Status.Conditions = []v1.VirtualMachineCondition{{Type: v1.VirtualMachineFailure, Status: corev1.ConditionTrue,
					Reason:  "FailedCreate",
					Message: "exceeded quota: vms, requested: count/virtualmachineinstances=1, used: 5, limited: 5"}}
			}),
		"instance type missing": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusStopped, nil).
			with(func(s *Snapshot) {
				s.VM.Status.Conditions = []v1.VirtualMachineCondition{{Type: v1.VirtualMachineFailure, Status: corev1.ConditionTrue, Reason: "FailedFindInstancetype", Message: `virtualmachineclusterinstancetypes.instancetype.kubevirt.io "u1.small" not found`}}
			}),
		"agent down": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).
			vmi(onN1().With(func(vmi *v1.VirtualMachineInstance) { vmi.Status.Reason = "NodeUnresponsive" }).
				Condition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, "NodeUnresponsive",
					"virt-handler on node n1 does not respond")).
			with(func(s *Snapshot) {
				s.Agent = &corev1.Pod{
					Status: corev1.PodStatus{
						ContainerStatuses: []corev1.ContainerStatus{
							{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s restarting failed container"}}}}}}
			}),
		"node down": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).vmi(onN1()).
			with(func(s *Snapshot) {
				s.Node = &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady,
					Status: corev1.ConditionUnknown, Message: "Kubelet stopped posting node status.",
					LastTransitionTime: metav1.Time{Time: noon.Add(-10 * time.Minute)}}}}}
			}),
		"node out of service": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).vmi(onN1()).
			with(func(s *Snapshot) {
				s.Node = &corev1.Node{
					Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeOutOfService,
						Effect: corev1.TaintEffectNoExecute}}},
					Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady,
						Status: corev1.ConditionUnknown, Message: "Kubelet stopped posting node status.",
						LastTransitionTime: metav1.Time{Time: noon.Add(-10 * time.Minute)}}}},
				}
			}),
		"tenant's view of a node down": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).
			vmi(onN1().With(func(vmi *v1.VirtualMachineInstance) { vmi.Status.Reason = "NodeUnresponsive" }).
				Condition(v1.VirtualMachineInstanceNodeUnresponsive, corev1.ConditionTrue, v1.VirtualMachineInstanceReasonNodeLost,
					"Node n1 does not respond. Its guest may still run and write its disks, so it is not started on another node.")).
			with(func(s *Snapshot) { s.Hidden = map[Area]bool{AreaNodes: true, AreaInstall: true} }),
		"controller down": newWorld().vm(v1.RunStrategyAlways, "", nil).with(func(s *Snapshot) { s.Install.Controller, s.Install.API = 0, 0 }),
		"not installed":   newWorld().vm(v1.RunStrategyAlways, "", nil).with(func(s *Snapshot) { s.Install = Install{Controller: -1, API: -1} }),
		"mount": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusStarting, nil).vmi(pending()).
			pod(onNode("n1", &corev1.ContainerStateWaiting{Reason: "ContainerCreating"})).
			event(time.Minute, "Pod", "virt-launcher-demo-abcde", "FailedMount", `MountVolume.SetUp failed for volume "cloudinit-udata" : secret "userdata" not found`),
		"paused":   newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusPaused, nil).vmi(onN1().Condition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedByUserReason, "VMI was paused by user")),
		"io error": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusPaused, nil).vmi(onN1().Condition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedIOErrorReason, "VMI was paused, IO error")),
		"stopped": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusPaused, nil).vmi(onN1().Condition(v1.VirtualMachineInstancePaused,
			corev1.ConditionTrue, v1.PausedUnknownReason, "VMI was paused because QEMU stopped it")),
		"not resumed": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusPaused, nil).
			vmi(onN1().Condition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedAPIErrorReason,
				"VMI was paused")),
		"failed post-copy": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusPaused, nil).
			vmi(onN1().Condition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, v1.PausedPostcopyFailedReason,
				"VMI was paused")),
		"failed once": newWorld().vm(v1.RunStrategyOnce, v1.VirtualMachineStatusStopped, nil).
			vmi(demo().Phase(v1.Failed).With(func(vmi *v1.VirtualMachineInstance) { vmi.Status.Reason = "LivenessProbeFailed" }).
				Condition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, "GuestNotRunning",
					"The livenessProbe failed as often as its failureThreshold allows")),
		"stopping": newWorld().vm(v1.RunStrategyHalted, v1.VirtualMachineStatusStopping, nil).
			vmi(onN1()).with(func(s *Snapshot) { s.VMI.DeletionTimestamp = &metav1.Time{Time: noon.Add(-12 * time.Second)} }),
		"running": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).
			vmi(onN1().Condition(v1.VirtualMachineInstanceAgentConnected, corev1.ConditionTrue, "", "")).
			with(func(s *Snapshot) { s.VMI.Status.GuestOSInfo.PrettyName = "Debian GNU/Linux 12\x1b[31m (bookworm)" }).
			event(time.Minute, "VirtualMachineInstance", "demo", "Started", "not shown"),
		"restart required": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).vmi(onN1()).
			with(func(s *Snapshot) {
				s.VM.Status.Conditions = []v1.VirtualMachineCondition{{Type: v1.VirtualMachineRestartRequired,
					Status:  corev1.ConditionTrue,
					Message: "a non-live-updatable field was changed in the template spec: hostname, accessCredentials, domain.devices.interfaces[blue].state, nodeSelector, domain.devices.disks[data].disk.bus and 2 more"}}
			}),
		"restart required by an earlier version": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning,
			nil).vmi(onN1()).
			with(func(s *Snapshot) {
				s.VM.Status.Conditions = []v1.VirtualMachineCondition{{Type: v1.VirtualMachineRestartRequired,
					Status: corev1.ConditionTrue, Message: "a non-live-updatable field was changed in the template spec"}}
			}),
		"restart required for interfaces": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning,
			nil).vmi(onN1()).
			with(func(s *Snapshot) {
				s.VM.Status.Conditions = []v1.VirtualMachineCondition{{
					Type: v1.VirtualMachineRestartRequired, Status: corev1.ConditionTrue,
					Message: "a non-live-updatable field was changed in the template spec: domain.devices.interfaces[red], networks[red], networks[blue].multus.networkName",
				}}
			}),
		"restart required for interfaces of a guest that cannot migrate": newWorld().vm(v1.RunStrategyAlways,
			v1.VirtualMachineStatusRunning, nil).
			vmi(onN1().Condition(v1.VirtualMachineInstanceMigrationRequired, corev1.ConditionFalse, "RestartRequired",
				cannotMigrate)).
			with(func(s *Snapshot) {
				s.VM.Status.Conditions = []v1.VirtualMachineCondition{{
					Type: v1.VirtualMachineRestartRequired, Status: corev1.ConditionTrue, Message: cannotMigrate,
				}}
			}),
		"more CPUs": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).vmi(onN1().Condition(v1.VirtualMachineInstanceVCPUChange, corev1.ConditionTrue, "", "")),
		"more CPUs on a full node": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).
			vmi(onN1().Condition(v1.VirtualMachineInstanceVCPUChange, corev1.ConditionTrue, "PodResizeDeferred",
				"The node has no room for the larger launcher Pod yet, so the guest keeps its size: Node didn't have enough resource: cpu, requested: 800, used: 3900, capacity: 4000")),
		"more CPUs than the quota": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).
			vmi(onN1().Condition(v1.VirtualMachineInstanceVCPUChange, corev1.ConditionTrue, "PodResizeForbidden",
				"The launcher Pod may not have the resources, so the guest keeps its size: exceeded quota: team")),
		"more CPUs by a migration": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).
			vmi(onN1().Condition(v1.VirtualMachineInstanceVCPUChange, corev1.ConditionTrue, "MigrationRequired",
				"The guest gets its new size by a migration: the kubelet assigns dedicated CPUs only when a Pod starts")),
		"more CPUs by a restart": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).
			vmi(onN1().Condition(v1.VirtualMachineInstanceVCPUChange, corev1.ConditionFalse, "RestartRequired",
				"Restart the VM to apply its new size: the kubelet assigns dedicated CPUs only when a Pod starts. It does not migrate automatically: claim data is not shared")),
		"more interfaces": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).
			vmi(onN1().Condition(v1.VirtualMachineInstanceMigrationRequired, corev1.ConditionFalse, "AutoMigrationPending",
				"The launcher Pod is to be attached to the networks blue")),
		"more interfaces by a migration": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).
			vmi(onN1().Condition(v1.VirtualMachineInstanceMigrationRequired, corev1.ConditionTrue,
				"AutoMigrationDueToLiveUpdate",
				"The launcher Pod is to be attached to the networks blue: the guest migrates")),
		"volume migration": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).vmi(onN1().With(movesDisk)),
		"automatic volume migration": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning,
			nil).vmi(onN1().With(movesDisk)).
			with(func(s *Snapshot) {
				s.Install.KubeVirt.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods = []v1.WorkloadUpdateMethod{
					v1.WorkloadUpdateMethodLiveMigrate}
			}),
		"drain waits": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).
			vmi(onN1().With(strategy(v1.EvictionStrategyLiveMigrate)).Condition(v1.VirtualMachineInstanceIsMigratable,
				corev1.ConditionFalse,
				"DisksNotLiveMigratable",
				"cannot migrate VMI: claim data of volume root is not shared, it needs access mode ReadWriteMany")).
			with(func(s *Snapshot) { s.Node = &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}} }),
		"external eviction": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).vmi(onN1().With(evicted(v1.EvictionStrategyExternal))),
		"evacuation":        newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusMigrating, nil).vmi(onN1().With(evicted(v1.EvictionStrategyLiveMigrate))).migration("kubevirt-evacuation-b", v1.MigrationRunning, ""),
		"migration": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusMigrating, nil).vmi(onN1()).
			migration("kubevirt-migrate-vm-a", v1.MigrationSucceeded, "").migration("kubevirt-migrate-vm-b", v1.MigrationRunning,
			"").
			with(func(s *Snapshot) {
				s.Migrations[1].UID = "b"
				s.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
					MigrationUID: "b", TargetNode: "n2", Mode: v1.MigrationPreCopy,
					StartTimestamp:      ptr.To(metav1.NewTime(noon.Add(-12 * time.Second))),
					MigrationPolicyName: ptr.To("slowly"), AbortRequested: true,
				}
			}),
		"slow migration": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusMigrating,
			nil).vmi(onN1()).migration("kubevirt-migrate-vm-b", v1.MigrationRunning, "").
			event(6*time.Second, "VirtualMachineInstance", "demo", "Migrating",
				"The migration does not converge (allow a longer downtime): the guest may be paused for 300 ms: no pass over memory was shorter than 80.0 MiB for 2 passes, the guest changes 90 MiB/s and 60 MiB/s are transferred.").
			event(9*time.Second, "VirtualMachineInstance", "demo", "Migrating",
				"The guest is throttled, by 20% at first: the guest changes 90 MiB/s and 60 MiB/s are transferred.").
			event(12*time.Second, "VirtualMachineInstance", "demo", "Migrating", startMessage).
			event(time.Hour, "VirtualMachineInstance", "demo", "Migrating",
				"The migration does not converge (post-copy): of another migration.").
			with(func(s *Snapshot) {
				s.Migrations[0].UID = "b"
				s.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
					MigrationUID: "b", TargetNode: "n2", Mode: v1.MigrationPreCopy,
					StartTimestamp: ptr.To(metav1.NewTime(noon.Add(-12 * time.Second))),
				}
			}),
		"queued migration": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).vmi(onN1()).migration("kubevirt-migrate-vm-b", v1.MigrationPending, ""),
		"no target node": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning,
			nil).vmi(onN1()).migration("kubevirt-migrate-vm-b", v1.MigrationScheduling, "").
			pod(unschedulable("0/2 nodes are available: 1 Insufficient memory, 1 node(s) didn't match pod anti-affinity rules.")),
		"evacuation without quota": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning,
			nil).vmi(onN1().With(evicted(v1.EvictionStrategyLiveMigrate))).
			migration("kubevirt-evacuation-b", v1.MigrationPending, "").with(func(s *Snapshot) {
			s.Migrations[0].Status.Conditions = []v1.VirtualMachineInstanceMigrationCondition{
				{Type: v1.VirtualMachineInstanceMigrationRejectedByResourceQuota, Status: corev1.ConditionTrue, Message: "exceeded quota: memory"}}
		}),
		"evacuation after a failure": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning,
			nil).vmi(onN1().With(evicted(v1.EvictionStrategyLiveMigrateIfPossible))).
			migration("kubevirt-evacuation-b", v1.MigrationFailed, "the target's launcher Pod was unschedulable for 5m0s").
			with(func(s *Snapshot) {
				s.Install.KubeVirt.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{
					ParallelOutboundMigrationsPerNode: ptr.To[uint32](1)}
			}),
		"drain that shuts down": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).vmi(onN1()).
			with(func(s *Snapshot) { s.Node = &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}} }),
		"starting": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusStarting, nil).vmi(demo().Phase(v1.Scheduled)),
		"tenant's view": newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusStarting,
			nil).vmi(demo().Phase(v1.Scheduled)).with(func(s *Snapshot) {
			s.Hidden = map[Area]bool{AreaNodes: true, AreaInstall: true, AreaEvents: true}
			s.Install = Install{Controller: -1, API: -1}
		}),
	}
}

func movesDisk(vmi *v1.VirtualMachineInstance) {
	vmi.Status.Conditions = append(vmi.Status.Conditions,
		v1.VirtualMachineInstanceCondition{Type: v1.VirtualMachineInstanceVolumesChange, Status: corev1.ConditionTrue})
	vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{
		VolumeName: "data", SourcePVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "old"},
		DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "new"},
	}}
}

// cannotMigrate is the message about interfaces of a guest that cannot migrate.
const cannotMigrate = "The launcher Pod is to be attached to the networks blue: restart the VM to apply it. " +
	"It does not migrate automatically: cannot migrate VMI: claim data is not shared"

func TestExplain(t *testing.T) {
	for name, w := range scenes() {
		t.Run(name, func(t *testing.T) {
			before := w.s.VM.DeepCopy()
			var got bytes.Buffer
			if err := Explain(w.s).Print(&got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, w.s.VM); diff != "" {
				t.Errorf("the snapshot was changed:\n%s", diff)
			}
			file := filepath.Join("testdata", strings.NewReplacer(" ", "-", "'", "").Replace(name)+".txt")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
			if lines := strings.Count(got.String(), "\n"); lines > 24 {
				t.Errorf("%d lines are more than a screen", lines)
			}
			if strings.ContainsRune(got.String(), '\x1b') {
				t.Error("the report contains control characters")
			}
		})
	}
}

func TestEventsWithoutJSON(t *testing.T) {
	for message, want := range map[string]string{
		`Pod resize started: {"containers":[]}`: "Pod resize started",
		`Pod resize started: {"containers":[…`:  "Pod resize started",
		"not found: {name}":                     "not found: {name}",
	} {
		if got := withoutJSON(message); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
