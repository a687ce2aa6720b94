// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/test/builder"
)

// runningVM returns a VM whose status is Running since a minute after its creation.
func runningVM(template *builder.VMI, change func(*v1.VirtualMachine)) v1.VirtualMachine {
	return *builder.MakeVM("vm").Namespace("ns").UID("uid").Template(template).With(func(vm *v1.VirtualMachine) {
		vm.CreationTimestamp = metav1.NewTime(noon)
		vm.Status.PrintableStatus = v1.VirtualMachineStatusRunning
		vm.Status.Conditions = []v1.VirtualMachineCondition{
			{Type: v1.VirtualMachineReady, LastTransitionTime: metav1.NewTime(noon.Add(time.Minute))},
			{Type: "Other", LastTransitionTime: metav1.NewTime(noon.Add(time.Hour))},
		}
		change(vm)
	}).Obj()
}

func unchanged(*v1.VirtualMachine) {}

// bare returns a template without CPUs and memory.
func bare() *builder.VMI {
	return builder.MakeVMI("").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.CPU, vmi.Spec.Domain.Memory = nil, nil
	})
}

// expectSamples compares samples of the collector, without the labels name and namespace, which all have.
func expectSamples(t *testing.T, reader *cached, names []string, want ...string) {
	t.Helper()
	for i := range names {
		names[i] = "kubevirt_" + names[i]
	}
	got := samples(t, collector(reader), names...)
	for _, cut := range []string{"kubevirt_", `name="vm",`, `namespace="ns",`, `name="vm"`, `namespace="ns"`} {
		got = strings.ReplaceAll(got, cut, "")
	}
	lines := strings.Split(got, "\n")
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], ",}", "}")
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
}

func TestVM(t *testing.T) {
	vm := runningVM(builder.MakeVMI("").Masquerade().Multus("blue", "net-a").PVC("root", "claim").Annotation(osAnnotation,
		"debian\x00").
		Annotation(flavorAnnotation, "small").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Machine = &v1.Machine{Type: "q35"}
		vmi.Spec.Domain.Devices.Interfaces[0].Model = "e1000"
	}), unchanged)
	reader := &cached{
		vms:    []v1.VirtualMachine{vm},
		claims: []corev1.PersistentVolumeClaim{*builder.MakePVC("claim").Namespace("ns").Block().Obj()},
	}
	reader.claims[0].Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}
	expectSamples(t, reader, []string{
		"vm_info", "vm_create_date_timestamp_seconds", "vm_vnic_info", "vm_disk_allocated_size_bytes",
		"vm_running_status_last_transition_timestamp_seconds", "vm_error_status_last_transition_timestamp_seconds",
	},
		`vm_create_date_timestamp_seconds{} 1.7953488e+09`,
		`vm_disk_allocated_size_bytes{device="root",persistentvolumeclaim="claim",volume_mode="Block"} 5.36870912e+09`,
		`vm_error_status_last_transition_timestamp_seconds{} 0`,
		`vm_info{flavor="small",instance_type="",machine_type="q35",os="debian",preference="",status="running",status_group="running",workload=""} 1`,
		`vm_running_status_last_transition_timestamp_seconds{} 1.79534886e+09`,
		`vm_vnic_info{binding_name="bridge",binding_type="core",model="<none>",network="net-a",vnic_name="blue"} 1`,
		`vm_vnic_info{binding_name="masquerade",binding_type="core",model="e1000",network="pod networking",vnic_name="default"} 1`,
	)
}

// The groups are those of KubeVirt. A status that has no group counts as an error in the timestamps.
func TestStatusGroups(t *testing.T) {
	for status, want := range map[v1.VirtualMachinePrintableStatus]group{
		v1.VirtualMachineStatusProvisioning: groupStarting, v1.VirtualMachineStatusPaused: groupNonRunning,
		v1.VirtualMachineStatusMigrating: groupMigrating, v1.VirtualMachineStatusUnschedulable: groupError,
		v1.VirtualMachineStatusWaitingForReceiver: groupUnknown, "": groupUnknown,
	} {
		reader := &cached{vms: []v1.VirtualMachine{runningVM(builder.MakeVMI(""),
			func(vm *v1.VirtualMachine) { vm.Status.PrintableStatus = status })}}
		got := samples(t, collector(reader), "kubevirt_vm_info")
		if !strings.Contains(got, `status="`+strings.ToLower(string(status))+`",status_group="`+string(want)+`"`) {
			t.Errorf("%s: got %s", status, got)
		}
		timed := want
		if want == groupUnknown {
			timed = groupError
		}
		for _, g := range groups {
			got := samples(t, collector(reader), "kubevirt_vm_"+string(g)+"_status_last_transition_timestamp_seconds")
			if isSet := strings.HasSuffix(got, " 1.79534886e+09"); isSet != (g == timed) {
				t.Errorf("%s: %s", status, got)
			}
		}
	}
}

func TestResources(t *testing.T) {
	for name, tc := range map[string]struct {
		template *builder.VMI
		want     []string
	}{
		"nothing": {bare(), []string{
			`vm_resource_requests{resource="cpu",source="default",unit="cores"} 1`,
			`vm_resource_requests{resource="cpu",source="default",unit="sockets"} 1`,
			`vm_resource_requests{resource="cpu",source="default",unit="threads"} 1`,
			`vm_resource_requests{resource="cpu",source="guest_effective",unit="cores"} 1`,
		}},
		"topology and guest memory": {builder.MakeVMI("").CPU(2, 3, 1).Guest("1Gi").Hugepages("2Mi"), []string{
			`vm_resource_requests{resource="cpu",source="domain",unit="cores"} 3`,
			`vm_resource_requests{resource="cpu",source="domain",unit="sockets"} 2`,
			`vm_resource_requests{resource="cpu",source="domain",unit="threads"} 1`,
			`vm_resource_requests{resource="cpu",source="guest_effective",unit="cores"} 6`,
			`vm_resource_requests{resource="memory",source="guest",unit="bytes"} 1.073741824e+09`,
			`vm_resource_requests{resource="memory",source="guest_effective",unit="bytes"} 1.073741824e+09`,
			`vm_resource_requests{resource="memory",source="hugepages",unit="bytes"} 2.097152e+06`,
		}},
		"requests and limits": {bare().Request(corev1.ResourceCPU, "1500m").Limit(corev1.ResourceCPU, "2").
			Request(corev1.ResourceMemory, "1Mi").Limit(corev1.ResourceMemory, "2Mi"), []string{
			`vm_resource_limits{resource="cpu",unit="cores"} 2`,
			`vm_resource_limits{resource="memory",unit="bytes"} 2.097152e+06`,
			`vm_resource_requests{resource="cpu",source="guest_effective",unit="cores"} 2`,
			`vm_resource_requests{resource="cpu",source="requests",unit="cores"} 1.5`,
			`vm_resource_requests{resource="memory",source="domain",unit="bytes"} 1.048576e+06`,
			`vm_resource_requests{resource="memory",source="guest_effective",unit="bytes"} 1.048576e+06`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			expectSamples(t, &cached{vms: []v1.VirtualMachine{runningVM(tc.template, unchanged)}},
				[]string{"vm_resource_requests", "vm_resource_limits"}, tc.want...)
		})
	}
}

// The instance type is applied, and named if its vendor is known.
func TestInstancetype(t *testing.T) {
	kind := v1beta1.VirtualMachineClusterInstancetype{
		ObjectMeta: metav1.ObjectMeta{Name: "u1.small", UID: "type", ResourceVersion: "1",
			Labels: map[string]string{vendorLabel: "kubevirt.io"}},
		Spec: v1beta1.VirtualMachineInstancetypeSpec{CPU: v1beta1.CPUInstancetype{Guest: 3},
			Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse("2Gi")}},
	}
	own := v1beta1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "secret",
		ResourceVersion: "1"}}
	vm := runningVM(bare(), func(vm *v1.VirtualMachine) {
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "u1.small"}
	})
	reader := &cached{vms: []v1.VirtualMachine{vm}, types: []v1beta1.VirtualMachineClusterInstancetype{kind},
		own: []v1beta1.VirtualMachineInstancetype{own}}
	c := collector(reader)
	expect := func(name, part string) {
		t.Helper()
		if got := samples(t, c, "kubevirt_"+name); !strings.Contains(got, part) {
			t.Errorf("no %s in\n%s", part, got)
		}
	}
	expect("vm_info", `instance_type="u1.small"`)
	expect("vm_resource_requests", `resource="cpu",source="guest_effective",unit="cores"} 3`)
	expect("vm_resource_requests", `resource="memory",source="guest",unit="bytes"} 2.147483648e+09`)

	// A new version of it is applied.
	reader.types[0].Spec.CPU.Guest, reader.types[0].ResourceVersion = 4, "2"
	expect("vm_resource_requests", `resource="cpu",source="guest_effective",unit="cores"} 4`)

	// The names of others are not in metrics.
	reader.vms[0].Spec.Instancetype = &v1.InstancetypeMatcher{Name: "secret", Kind: "VirtualMachineInstancetype"}
	reader.vms[0].Generation++
	expect("vm_info", `instance_type="<other>"`)
	reader.vms[0].Spec.Instancetype.Name = "missing"
	expect("vm_info", `instance_type="<other>"`)

	// Nothing is remembered of a VM that is gone.
	reader.vms = nil
	_ = samples(t, c)
	if len(c.resources.known) != 0 {
		t.Errorf("%d VMs are remembered", len(c.resources.known))
	}
}

func TestLabels(t *testing.T) {
	reader := &cached{vms: []v1.VirtualMachine{
		runningVM(builder.MakeVMI(""),
			func(vm *v1.VirtualMachine) { vm.Labels = map[string]string{"app": "web", "team.io/a": "b"} }),
		runningVM(builder.MakeVMI("").Label("app", "template").Label("tier", "1"), func(vm *v1.VirtualMachine) {
			vm.Name, vm.UID, vm.Labels = "both", "both", map[string]string{"app": "vm", "own": "x"}
		}),
		runningVM(builder.MakeVMI("").Label("app", "only"),
			func(vm *v1.VirtualMachine) { vm.Name, vm.UID = "template", "template" }),
		*builder.MakeVM("bare").Namespace("ns").Obj(),
	}}
	expectSamples(t, reader, []string{"vm_labels"}, `vm_labels{label_app="only",name="template"} 1`,
		`vm_labels{label_app="web",label_team_io_a="b"} 1`, `vm_labels{label_app="template",label_own="x",label_tier="1",name="both"} 1`)
}

// A fleet of 10,000 VMs with usual labels has them in the metrics. That of a user who wants to fill the memory has
// fewer, and does not take them from others.
func TestLabelsOfAllVMsAreLimited(t *testing.T) {
	vms := make([]v1.VirtualMachine, 0, 40_000)
	add := func(namespace string, count int, labels map[string]string) {
		for i := range count {
			vm := v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("vm-%d", i),
				Labels: labels}}
			vm.UID = types.UID(namespace + vm.Name)
			vms = append(vms, vm)
		}
	}
	few, many := map[string]string{}, map[string]string{}
	for i := range 10 {
		few[fmt.Sprintf("example.com/key-of-a-user-%d", i)] = strings.Repeat("v", 63-32)
	}
	for i := range metrics.MaxLabels {
		many[fmt.Sprintf("%s.example.com/%d%s", strings.Repeat("d", 60), i, strings.Repeat("x", 60))] = strings.Repeat("y",
			63)
	}
	add("fleet", 10_000, few)
	add("hostile", 20_000, many)
	to, got := make(chan prometheus.Metric, 100), map[string]int{}
	go func() {
		defer close(to)
		collectLabels(Labels(metrics.NewLabelFilter()), vms, to)
	}()
	size := 0
	for metric := range to {
		out := &dto.Metric{}
		if err := metric.Write(out); err != nil {
			t.Fatal(err)
		}
		for _, label := range out.Label {
			if size += len(label.GetName()) + len(label.GetValue()); label.GetName() == "namespace" {
				got[label.GetValue()]++
			}
		}
	}
	if got["fleet"] != 10_000 || got["hostile"] == 0 || got["hostile"] > 5_000 || size > MaxLabelBytes {
		t.Errorf("labels have %d bytes, of VMs %v", size, got)
	}
}

func TestVMI(t *testing.T) {
	vmi := builder.MakeVMI("vm").Namespace("ns").UID("uid").Masquerade().Guest("1Gi").Annotation(osAnnotation, "debian").
		Annotation(v1.ClusterInstancetypeAnnotation, "u1.small").Label(v1.OutdatedLauncherImageLabel,
		"").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrate)
		vmi.Status.Phase, vmi.Status.NodeName = v1.Running, "node-1"
		vmi.Status.Machine = &v1.Machine{Type: "pc-q35-10.0"}
		vmi.Status.GuestOSInfo = v1.VirtualMachineInstanceGuestOSInfo{
			Name: "Debian", VersionID: "13", KernelRelease: strings.Repeat("6", 1000), Machine: "x86_64",
		}
		vmi.Status.Interfaces = []v1.VirtualMachineInstanceNetworkInterface{
			{Name: "default", InterfaceName: "eth0", IP: "10.0.0.1"}, {InterfaceName: "docker0"}, {InterfaceName: "docker0"}, {MAC: "02:00:00:00:00:01"},
		}
	})
	launcher := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "virt-launcher-vm-abc",
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vmi.Obj(),
				v1.VirtualMachineInstanceGroupVersionKind)}},
		Spec: corev1.PodSpec{NodeName: "node-1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	target := *launcher.DeepCopy()
	target.Name, target.Spec.NodeName = "target", "node-2"
	reader := &cached{
		vmis: []v1.VirtualMachineInstance{*vmi.Obj()}, pods: []corev1.Pod{target, launcher},
		types: []v1beta1.VirtualMachineClusterInstancetype{{ObjectMeta: metav1.ObjectMeta{Name: "u1.small",
			Labels: map[string]string{vendorLabel: "redhat.com"}}}},
	}
	expectSamples(t, reader, []string{"vmi_info", "vmi_non_evictable", "vmi_status_addresses", "vmi_vnic_info"},
		`vmi_info{evictable="false",flavor="",guest_os_arch="x86_64",guest_os_kernel_release="`+strings.Repeat("6", 128)+
			`",guest_os_machine="pc-q35-10.0",guest_os_name="Debian",guest_os_version_id="13",instance_type="u1.small",`+
			`node="node-1",os="debian",outdated="true",phase="running",preference="",vmi_pod="virt-launcher-vm-abc",workload=""} 1`,
		`vmi_non_evictable{node="node-1"} 1`,
		`vmi_status_addresses{address="",interface_name="docker0",node="node-1",type="SystemInterface",vnic_name=""} 1`,
		`vmi_status_addresses{address="10.0.0.1",interface_name="eth0",node="node-1",type="ExternalInterface",vnic_name="default"} 1`,
		`vmi_vnic_info{binding_name="masquerade",binding_type="core",model="<none>",network="pod networking",vnic_name="default"} 1`,
	)
	if got := samples(t, collector(reader), "kubevirt_vmi_launcher_memory_overhead_bytes"); !strings.HasPrefix(got, `kubevirt_vmi_launcher_memory_overhead_bytes{name="vm",namespace="ns"} `) {
		t.Errorf("got %s", got)
	}
}

func TestEvictable(t *testing.T) {
	migratable := func(s corev1.ConditionStatus) *v1.VirtualMachineInstance {
		return builder.MakeVMI("vm").Condition(v1.VirtualMachineInstanceIsMigratable, s, "", "").Obj()
	}
	for name, tc := range map[string]struct {
		vmi      *v1.VirtualMachineInstance
		own      *v1.EvictionStrategy
		fallback v1.EvictionStrategy
		want     bool
	}{
		"None":                     {migratable(corev1.ConditionFalse), nil, v1.EvictionStrategyNone, true},
		"can migrate":              {migratable(corev1.ConditionTrue), nil, v1.EvictionStrategyLiveMigrate, true},
		"cannot":                   {migratable(corev1.ConditionFalse), nil, v1.EvictionStrategyLiveMigrate, false},
		"is not known":             {builder.MakeVMI("vm").Obj(), nil, v1.EvictionStrategyLiveMigrate, false},
		"cannot and need not":      {migratable(corev1.ConditionFalse), nil, v1.EvictionStrategyLiveMigrateIfPossible, true},
		"its own strategy is None": {migratable(corev1.ConditionFalse), ptr.To(v1.EvictionStrategyNone), v1.EvictionStrategyLiveMigrate, true},
	} {
		t.Run(name, func(t *testing.T) {
			tc.vmi.Spec.EvictionStrategy = tc.own
			if got := isEvictable(tc.vmi, tc.fallback); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
