// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
)

// group is a group of printable statuses.
type group string

// Groups of KubeVirt's printable statuses.
const (
	groupStarting   group = "starting"
	groupRunning    group = "running"
	groupMigrating  group = "migrating"
	groupNonRunning group = "non_running"
	groupError      group = "error"
	groupUnknown    group = "<unknown>"
)

var groups = []group{groupStarting, groupRunning, groupMigrating, groupNonRunning, groupError}

// groupOf contains the group of each status. Source: kubevirt/kubevirt
// pkg/monitoring/metrics/virt-controller/vmstats_collector.go.
var groupOf = map[v1.VirtualMachinePrintableStatus]group{
	v1.VirtualMachineStatusProvisioning:            groupStarting,
	v1.VirtualMachineStatusStarting:                groupStarting,
	v1.VirtualMachineStatusWaitingForVolumeBinding: groupStarting,
	v1.VirtualMachineStatusRunning:                 groupRunning,
	v1.VirtualMachineStatusMigrating:               groupMigrating,
	v1.VirtualMachineStatusStopped:                 groupNonRunning,
	v1.VirtualMachineStatusPaused:                  groupNonRunning,
	v1.VirtualMachineStatusStopping:                groupNonRunning,
	v1.VirtualMachineStatusTerminating:             groupNonRunning,
	v1.VirtualMachineStatusCrashLoopBackOff:        groupError,
	v1.VirtualMachineStatusUnknown:                 groupError,
	v1.VirtualMachineStatusUnschedulable:           groupError,
	v1.VirtualMachineStatusErrImagePull:            groupError,
	v1.VirtualMachineStatusImagePullBackOff:        groupError,
	v1.VirtualMachineStatusPvcNotFound:             groupError,
	v1.VirtualMachineStatusDataVolumeError:         groupError,
}

var (
	vmInfo = metrics.Describe("vm_info", "1 for each VM, with what it runs and its status.",
		"name", "namespace", "os", "workload", "flavor", "machine_type", "instance_type", "preference", "status",
		"status_group")
	created = metrics.Describe("vm_create_date_timestamp_seconds", "When a VM was created, in Unix time.", "name",
		"namespace")
	vmVNIC = metrics.Describe("vm_vnic_info", "1 for each network interface in the template of a VM.", vnicLabels...)
	disk   = metrics.Describe("vm_disk_allocated_size_bytes", "The size that the claim of a VM's disk requests.",
		"name", "namespace", "persistentvolumeclaim", "volume_mode", "device")
	transitions = func() map[group]*prometheus.Desc {
		all := map[group]*prometheus.Desc{}
		for _, g := range groups {
			all[g] = metrics.Describe("vm_"+string(g)+"_status_last_transition_timestamp_seconds",
				"When the status of a VM last changed, in Unix time, if it is "+string(g)+"; otherwise 0.", "name", "namespace")
		}
		return all
	}()
)

func collectVM(o *objects, vm *v1.VirtualMachine, to chan<- prometheus.Metric) {
	status := vm.Status.PrintableStatus
	current, known := groupOf[status]
	if !known {
		current = groupUnknown
	}
	annotations, machine := map[string]string(nil), ""
	if template := vm.Spec.Template; template != nil {
		annotations = template.ObjectMeta.Annotations
		if template.Spec.Domain.Machine != nil {
			machine = template.Spec.Domain.Machine.Type
		}
		collectVNICs(vmVNIC, vm.Namespace, vm.Name, &template.Spec, to)
		collectDisks(o, vm, to)
	}
	to <- metrics.Gauge(vmInfo, 1, vm.Name, vm.Namespace,
		metrics.Text(annotations[osAnnotation]), metrics.Text(annotations[workloadAnnotation]),
		metrics.Text(annotations[flavorAnnotation]),
		metrics.Text(machine), o.types.ofVM(reference.Instancetypes, vm), o.types.ofVM(reference.Preferences, vm),
		strings.ToLower(string(status)), string(current))
	to <- metrics.Gauge(created, float64(vm.CreationTimestamp.Unix()), vm.Name, vm.Namespace)
	if !known {
		current = groupError // as in KubeVirt
	}
	for _, g := range groups {
		since := 0.0
		if g == current {
			since = lastTransition(vm)
		}
		to <- metrics.Counter(transitions[g], since, vm.Name, vm.Namespace)
	}
}

// lastTransition returns the newest transition of the conditions that follow the status, or -1 without any, as in
// KubeVirt.
func lastTransition(vm *v1.VirtualMachine) float64 {
	latest := int64(-1)
	for i := range vm.Status.Conditions {
		switch c := &vm.Status.Conditions[i]; c.Type {
		case v1.VirtualMachineReady, v1.VirtualMachineFailure, v1.VirtualMachinePaused:
			latest = max(latest, c.LastTransitionTime.Unix())
		}
	}
	return float64(latest)
}

func collectDisks(o *objects, vm *v1.VirtualMachine, to chan<- prometheus.Metric) {
	known := map[string]bool{}
	for i := range vm.Spec.Template.Spec.Volumes {
		volume := &vm.Spec.Template.Spec.Volumes[i]
		name := ""
		switch {
		case volume.PersistentVolumeClaim != nil:
			name = volume.PersistentVolumeClaim.ClaimName
		case volume.DataVolume != nil:
			name = volume.DataVolume.Name
		}
		claim := o.claims[client.ObjectKey{Namespace: vm.Namespace, Name: name}]
		if claim == nil || known[volume.Name] {
			continue
		}
		known[volume.Name] = true
		mode, size := none, claim.Spec.Resources.Requests.Storage()
		if claim.Spec.VolumeMode != nil {
			mode = string(*claim.Spec.VolumeMode)
		}
		if requested := templateSize(vm, volume); requested != nil {
			size = requested
		}
		to <- metrics.Gauge(disk, float64(size.Value()), vm.Name, vm.Namespace, claim.Name, mode, metrics.Text(volume.Name))
	}
}

// templateSize returns the size that a VM's template of a DataVolume requests, or nil. The size of the claim includes
// the overhead of its file system.
func templateSize(vm *v1.VirtualMachine, volume *v1.Volume) *resource.Quantity {
	if volume.DataVolume == nil {
		return nil
	}
	for i := range vm.Spec.DataVolumeTemplates {
		template := &vm.Spec.DataVolumeTemplates[i]
		if template.Name != volume.DataVolume.Name {
			continue
		}
		switch spec := &template.Spec; {
		case spec.PVC != nil && !spec.PVC.Resources.Requests.Storage().IsZero():
			return spec.PVC.Resources.Requests.Storage()
		case spec.Storage != nil && !spec.Storage.Resources.Requests.Storage().IsZero():
			return spec.Storage.Resources.Requests.Storage()
		}
	}
	return nil
}

// MaxLabelBytes limits the labels of all VMs. 10,000 VMs with ten labels of 60 bytes take a quarter of it. It is in
// memory metrics.LabelCopies times at most, which is a quarter of virt-controller's memory limit; the caches of so many
// VMs take half.
const MaxLabelBytes = 64 << 20

// Labels returns the budget for the labels that a filter selects.
func Labels(filter *metrics.LabelFilter) *metrics.LabelBudget {
	return &metrics.LabelBudget{Filter: filter, Prefix: "label_", Bytes: MaxLabelBytes}
}

// labelsOf returns the labels of a VM and of its template, whose values prevail, as in KubeVirt.
func labelsOf(vm *v1.VirtualMachine) map[string]string {
	if vm.Spec.Template == nil || len(vm.Spec.Template.ObjectMeta.Labels) == 0 {
		return vm.Labels
	}
	labels := maps.Clone(vm.Spec.Template.ObjectMeta.Labels)
	for key, value := range vm.Labels {
		if _, set := labels[key]; !set {
			labels[key] = value
		}
	}
	return labels
}

// collectLabels sends the labels of each VM as one series.
func collectLabels(budget *metrics.LabelBudget, vms []v1.VirtualMachine, to chan<- prometheus.Metric) {
	objects := make([]metrics.Labeled, len(vms))
	for i := range vms {
		objects[i] = metrics.Labeled{UID: vms[i].UID, Namespace: vms[i].Namespace, Labels: labelsOf(&vms[i]), Series: 1}
	}
	for i, taken := range budget.Of(objects) {
		labels := budget.Filter.Select(budget.Prefix, taken)
		if len(labels) == 0 {
			continue
		}
		labels["name"], labels["namespace"] = vms[i].Name, vms[i].Namespace
		to <- metrics.Gauge(prometheus.NewDesc("kubevirt_vm_labels",
			"1 for each VM, with its labels and those of its template.", nil, labels), 1)
	}
}

var vnicLabels = []string{"name", "namespace", "vnic_name", "binding_type", "network", "binding_name", "model"}

const (
	// podNetwork is KubeVirt's name of the Pod's own network in metrics.
	podNetwork = "pod networking"
	// none is KubeVirt's value for a device without a model and a claim without a mode.
	none = "<none>"
)

func collectVNICs(
	d *prometheus.Desc, namespace, name string, spec *v1.VirtualMachineInstanceSpec, to chan<- prometheus.Metric,
) {
	known := map[string]bool{}
	for i := range spec.Domain.Devices.Interfaces {
		in := &spec.Domain.Devices.Interfaces[i]
		network, ok := networkOf(spec, in.Name)
		if !ok || known[in.Name] {
			continue
		}
		known[in.Name] = true
		kind, binding := bindingOf(in)
		model := in.Model
		if model == "" {
			model = none
		}
		to <- metrics.Gauge(d, 1, name, namespace, metrics.Text(in.Name), kind, metrics.Text(network), metrics.Text(binding),
			metrics.Text(model))
	}
}

func networkOf(spec *v1.VirtualMachineInstanceSpec, name string) (string, bool) {
	i := slices.IndexFunc(spec.Networks, func(n v1.Network) bool { return n.Name == name })
	switch {
	case i < 0:
		return "", false
	case spec.Networks[i].Multus != nil:
		return spec.Networks[i].Multus.NetworkName, true
	case spec.Networks[i].Pod != nil:
		return podNetwork, true
	default:
		return "", false
	}
}

func bindingOf(in *v1.Interface) (kind, name string) {
	const core, plugin = "core", "plugin"
	switch {
	case in.Masquerade != nil:
		return core, "masquerade"
	case in.Bridge != nil:
		return core, "bridge"
	case in.SRIOV != nil:
		return core, "sriov"
	case in.Binding != nil:
		return plugin, in.Binding.Name
	default:
		return "", ""
	}
}
