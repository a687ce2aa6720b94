// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// defaulted sets the defaults of an amd64 VMI with a fixed UUID.
func defaulted(change func(*clusterconfig.Config), options ...specOption) *v1.VirtualMachineInstanceSpec {
	config := clusterconfig.Default()
	config.DefaultArchitecture = clusterconfig.ArchAMD64
	if change != nil {
		change(&config)
	}
	vmi := newVMI("vmi", options...)
	if vmi.Spec.Domain.Firmware == nil {
		vmi.Spec.Domain.Firmware = &v1.Firmware{}
	}
	vmi.Spec.Domain.Firmware.UUID = "u"
	setDefaults(vmi, config)
	return &vmi.Spec
}

// A user determines how many volumes an object has that no schema and no rule has limited yet. A time that grows with
// the square of their number would be minutes.
func TestDefaultsOfManyVolumes(t *testing.T) {
	const volumes = 100_000
	begin := time.Now()
	spec := defaulted(nil, func(s *v1.VirtualMachineInstanceSpec) {
		for i := range volumes {
			s.Volumes = append(s.Volumes,
				v1.Volume{Name: strconv.Itoa(i),
					VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Hotpluggable: true}}})
		}
	})
	if elapsed := time.Since(begin); elapsed > 10*time.Second {
		t.Errorf("the defaults of %d volumes took %s", volumes, elapsed)
	}
	if disks := spec.Domain.Devices.Disks; len(disks) != volumes || disks[volumes-1].Disk.Bus != v1.DiskBusSCSI {
		t.Errorf("got %d disks", len(disks))
	}
}

func TestDefaultsOfAnEmptyVMI(t *testing.T) {
	want := &v1.VirtualMachineInstanceSpec{
		Architecture: "amd64",
		Domain: v1.DomainSpec{
			CPU:      &v1.CPU{Cores: 1, Sockets: 1, Threads: 1, Model: "host-model"},
			Memory:   &v1.Memory{Guest: quantityOf("128Mi")},
			Machine:  &v1.Machine{Type: "q35"},
			Firmware: &v1.Firmware{UUID: "u"},
			Features: &v1.Features{ACPI: v1.FeatureState{Enabled: ptr.To(true)}},
			Devices: v1.Devices{Interfaces: []v1.Interface{{
				Name: "default", Model: "virtio",
				InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}},
			}}},
		},
		Networks: []v1.Network{{Name: "default",
			NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}},
		EvictionStrategy:              ptr.To(v1.EvictionStrategyNone),
		TerminationGracePeriodSeconds: ptr.To(int64(30)),
	}
	if diff := cmp.Diff(want, defaulted(nil)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestDefaultsAreStable(t *testing.T) {
	once := newVMI("vmi", withVolume("root", *containerDisk()))
	config := clusterconfig.Default()
	setDefaults(once, config)
	twice := once.DeepCopy()
	setDefaults(twice, config)
	if diff := cmp.Diff(once, twice); diff != "" {
		t.Errorf("a second run changed something (-once +twice)\n%s", diff)
	}
}

func TestDefaultsFromTheConfiguration(t *testing.T) {
	got := defaulted(func(c *clusterconfig.Config) {
		c.DefaultArchitecture = "arm64"
		c.Network.DefaultInterface = clusterconfig.InterfaceMasquerade
		c.EvictionStrategy = v1.EvictionStrategyLiveMigrate
		c.CPUModel = "cortex-a72"
	}, withVolume("root", *containerDisk()),
		withDisk(v1.Disk{Name: "cd", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{}}}, nil))
	if got.Domain.Machine.Type != "virt" || got.Domain.CPU.Model != "cortex-a72" {
		t.Errorf("machine %q, CPU model %q", got.Domain.Machine.Type, got.Domain.CPU.Model)
	}
	if got.Domain.Devices.Interfaces[0].Masquerade == nil || got.Domain.Devices.Interfaces[0].Bridge != nil {
		t.Errorf("interface %+v", got.Domain.Devices.Interfaces[0])
	}
	if *got.EvictionStrategy != v1.EvictionStrategyLiveMigrate {
		t.Errorf("eviction strategy %q", *got.EvictionStrategy)
	}
	want := []v1.Disk{
		{Name: "cd", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: "scsi", ReadOnly: ptr.To(true), Tray: "closed"}}},
		{Name: "root", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: "virtio"}}},
	}
	if diff := cmp.Diff(want, got.Domain.Devices.Disks); diff != "" {
		t.Errorf("disks (-want +got)\n%s", diff)
	}
}

func TestDefaultsKeepValuesOfTheSpec(t *testing.T) {
	given := newSpec(withInterface(masquerade()), withDisk(hardDisk("root", v1.DiskBusUSB), containerDisk()))
	given.Domain.CPU = &v1.CPU{Cores: 2, Model: "Haswell"}
	given.Domain.Machine = &v1.Machine{Type: "pc-q35-9.0"}
	given.TerminationGracePeriodSeconds = ptr.To(int64(0))
	got := defaulted(nil, func(s *v1.VirtualMachineInstanceSpec) { *s = *given.DeepCopy() })
	if got.Domain.CPU.Model != "Haswell" || got.Domain.CPU.Cores != 2 || got.Domain.CPU.Sockets != 1 {
		t.Errorf("CPU %+v", got.Domain.CPU)
	}
	if got.Domain.Machine.Type != "pc-q35-9.0" || *got.TerminationGracePeriodSeconds != 0 {
		t.Errorf("machine %v, grace %d", got.Domain.Machine, *got.TerminationGracePeriodSeconds)
	}
	if got.Domain.Devices.Disks[0].Disk.Bus != v1.DiskBusUSB || got.Domain.Devices.Interfaces[0].Bridge != nil {
		t.Errorf("devices %+v", got.Domain.Devices)
	}
}

func TestDefaultNetworkIsLeftOutOnRequest(t *testing.T) {
	got := defaulted(nil, func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.AutoattachPodInterface = ptr.To(
			false)
	})
	if len(got.Networks)+len(got.Domain.Devices.Interfaces) != 0 {
		t.Errorf("networks %v, interfaces %v", got.Networks, got.Domain.Devices.Interfaces)
	}
}

func TestDefaultSizes(t *testing.T) {
	noMemory := func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Memory = nil }
	for _, tc := range []struct {
		name    string
		options []specOption
		sockets uint32
		guest   string
	}{
		{"requests", []specOption{noMemory, withResources([2]string{"1500m", "1Gi"}, [2]string{"", "2Gi"})}, 2, "1Gi"},
		{"limits", []specOption{noMemory, withResources([2]string{"", ""}, [2]string{"3", "2Gi"})}, 3, "2Gi"},
		{"limits before requests for CPUs", []specOption{withResources([2]string{"1", ""}, [2]string{"4", ""})}, 4, "128Mi"},
		{"huge page", []specOption{withHugepages("1Gi", "")}, 1, "1Gi"},
		{"nothing", []specOption{noMemory}, 1, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := defaulted(nil, tc.options...)
			guest := ""
			if got.Domain.Memory != nil && got.Domain.Memory.Guest != nil {
				guest = got.Domain.Memory.Guest.String()
			}
			if got.Domain.CPU.Sockets != tc.sockets || guest != tc.guest {
				t.Errorf("sockets %d, guest %q; want %d, %q", got.Domain.CPU.Sockets, guest, tc.sockets, tc.guest)
			}
		})
	}
}

func TestDefaultPullPolicy(t *testing.T) {
	for image, want := range map[string]corev1.PullPolicy{
		"disk":                           corev1.PullAlways,
		"example.org:5000/disk":          corev1.PullAlways,
		"example.org/disk:latest":        corev1.PullAlways,
		"example.org:5000/disk:1":        corev1.PullIfNotPresent,
		"localhost/vireo/guest:dev":      corev1.PullIfNotPresent,
		"example.org/disk@sha256:0a":     corev1.PullIfNotPresent,
		"example.org/disk:latest@sha256": corev1.PullIfNotPresent,
	} {
		if got := pullPolicy(image); got != want {
			t.Errorf("%s: %s, want %s", image, got, want)
		}
	}
}

func TestFirmwareUUID(t *testing.T) {
	owned := newVMI("testvm")
	owned.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "testvm", UID: "1", Controller: ptr.To(true),
	}}
	// SHA-1 of KubeVirt's namespace and the name, so that a VM from KubeVirt keeps its UUID.
	if got, want := string(firmwareUUID(owned)), "5a9fc181-957e-5c32-9e5a-2de5e9673531"; got != want {
		t.Errorf("a VM's UUID must be the version 5 UUID of its name: got %s, want %s", got, want)
	}
	alone := newVMI("testvm")
	if first, second := firmwareUUID(alone), firmwareUUID(alone); first == second {
		t.Error("VMIs without a VM must differ")
	}
}

func TestHypervDependencies(t *testing.T) {
	on := &v1.FeatureState{Enabled: ptr.To(true)}
	got := defaulted(nil, func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Features = &v1.Features{Hyperv: &v1.FeatureHyperv{
			SyNICTimer: &v1.SyNICTimer{}, EVMCS: &v1.FeatureState{}, Spinlocks: &v1.FeatureSpinlocks{},
		}}
	}).Domain.Features.Hyperv
	want := &v1.FeatureHyperv{
		SyNICTimer: &v1.SyNICTimer{FeatureState: *on}, SyNIC: on, VPIndex: on, EVMCS: on, VAPIC: on,
		Spinlocks: &v1.FeatureSpinlocks{FeatureState: *on, Retries: ptr.To(uint32(4096))},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestDefaultProbe(t *testing.T) {
	probe := &v1.Probe{PeriodSeconds: 3}
	defaultProbe(probe)
	want := &v1.Probe{TimeoutSeconds: 1, PeriodSeconds: 3, SuccessThreshold: 1, FailureThreshold: 3}
	if diff := cmp.Diff(want, probe); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestDefaultRequests(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for name, quantity := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
			if quantity != "" {
				out[name] = resource.MustParse(quantity)
			}
		}
		return out
	}
	for name, tc := range map[string]struct{ requests, limits, want corev1.ResourceList }{
		"nothing":            {nil, nil, nil},
		"limits alone":       {nil, list("2", "3Gi"), list("2", "3Gi")},
		"a limit of CPU":     {list("", "1Gi"), list("2", ""), list("2", "1Gi")},
		"requests count":     {list("500m", "1Gi"), list("2", "3Gi"), list("500m", "1Gi")},
		"requests alone":     {list("500m", "1Gi"), nil, list("500m", "1Gi")},
		"a request for none": {list("0", ""), list("2", ""), list("2", "")},
	} {
		t.Run(name, func(t *testing.T) {
			got := v1.ResourceRequirements{Requests: tc.requests, Limits: tc.limits}
			defaultRequests(&got)
			if diff := cmp.Diff(tc.want, got.Requests); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestDefaultOptions(t *testing.T) {
	config := clusterconfig.Default()
	config.DisableSerialConsoleLog, config.DisableFreePageReporting = true, true
	silent, loud := newVMI("silent"), newVMI("loud", func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.LogSerialConsole = ptr.To(true)
	})
	loud.Annotations = map[string]string{v1.FreePageReportingDisabledAnnotation: "false"}
	for vmi, want := range map[*v1.VirtualMachineInstance]bool{silent: false, loud: true} {
		setDefaults(vmi, config)
		if got := *vmi.Spec.Domain.Devices.LogSerialConsole; got != want {
			t.Errorf("%s: the console is logged: %t", vmi.Name, got)
		}
		if got := vmi.Annotations[v1.FreePageReportingDisabledAnnotation]; got != strconv.FormatBool(!want) {
			t.Errorf("%s: free pages are not reported: %s", vmi.Name, got)
		}
	}
	config.AlignCPUs = true
	for _, isolated := range []bool{true, false} {
		vmi := newVMI("dedicated",
			func(s *v1.VirtualMachineInstanceSpec) { s.Domain.CPU = &v1.CPU{IsolateEmulatorThread: isolated} })
		setDefaults(vmi, config)
		if _, even := vmi.Annotations[v1.EmulatorThreadCompleteToEvenParity]; even != isolated {
			t.Errorf("isolateEmulatorThread %t: CPUs are made even: %t", isolated, even)
		}
	}
	plain := newVMI("plain")
	setDefaults(plain, clusterconfig.Default())
	if plain.Spec.Domain.Devices.LogSerialConsole != nil || len(plain.Annotations) > 0 {
		t.Error("options are set though the cluster says nothing")
	}
}

// ofVM returns a VMI with a VM as its controller.
func ofVM(spec *v1.VirtualMachineInstanceSpec) *v1.VirtualMachineInstance {
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: types.UID("1")}}
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Name: "vm",
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}},
		Spec: *spec.DeepCopy(),
	}
}

func TestDefaultMaxSockets(t *testing.T) {
	for name, tc := range map[string]struct {
		cpu    v1.CPU
		alone  bool
		config func(*clusterconfig.Config)
		want   uint32
	}{
		"four times the sockets":     {cpu: v1.CPU{Sockets: 2, Cores: 2}, want: 8},
		"its own":                    {cpu: v1.CPU{Sockets: 2, MaxSockets: 3}, want: 3},
		"the cluster's ratio":        {cpu: v1.CPU{Sockets: 2}, config: func(c *clusterconfig.Config) { c.LiveUpdate.MaxRatio = 3 }, want: 6},
		"the cluster's sockets":      {cpu: v1.CPU{Sockets: 2}, config: func(c *clusterconfig.Config) { c.LiveUpdate.MaxSockets = 5 }, want: 5},
		"fewer than the guest has":   {cpu: v1.CPU{Sockets: 6}, config: func(c *clusterconfig.Config) { c.LiveUpdate.MaxSockets = 5 }, want: 6},
		"many":                       {cpu: v1.CPU{Sockets: 64, Cores: 2}, want: 127},
		"more than any without help": {cpu: v1.CPU{Sockets: 300}, want: 300},
		"a great ratio":              {cpu: v1.CPU{Sockets: 200}, config: func(c *clusterconfig.Config) { c.LiveUpdate.MaxRatio = 1<<32 - 1 }, want: 255},
		"great cores and threads":    {cpu: v1.CPU{Sockets: 1, Cores: 1<<32 - 1, Threads: 1<<32 - 1}, want: 1},
		"a VMI without VM":           {cpu: v1.CPU{Sockets: 2}, alone: true},
		"changes at the next start":  {cpu: v1.CPU{Sockets: 2}, config: func(c *clusterconfig.Config) { c.RolloutStrategy = v1.VMRolloutStrategyStage }},
		"arm64":                      {cpu: v1.CPU{Sockets: 2}, config: func(c *clusterconfig.Config) { c.DefaultArchitecture = "arm64" }},
		"the node's NUMA topology":   {cpu: v1.CPU{Sockets: 2, NUMA: &v1.NUMA{GuestMappingPassthrough: &v1.NUMAGuestMappingPassthrough{}}}},
	} {
		config := clusterconfig.Default()
		config.DefaultArchitecture = "amd64"
		if tc.config != nil {
			tc.config(&config)
		}
		vmi := ofVM(newSpec(func(s *v1.VirtualMachineInstanceSpec) { s.Domain.CPU = tc.cpu.DeepCopy() }))
		if tc.alone {
			vmi.OwnerReferences = nil
		}
		setDefaults(vmi, config)
		if got := vmi.Spec.Domain.CPU.MaxSockets; got != tc.want {
			t.Errorf("%s: maxSockets %d, want %d", name, got, tc.want)
		}
	}
}

func TestDefaultMaxGuest(t *testing.T) {
	for name, tc := range map[string]struct {
		memory v1.Memory
		change func(*v1.VirtualMachineInstanceSpec)
		config func(*clusterconfig.Config)
		want   string
	}{
		"four times the memory":  {memory: v1.Memory{Guest: quantityOf("2Gi")}, want: "8Gi"},
		"its own":                {memory: v1.Memory{Guest: quantityOf("2Gi"), MaxGuest: quantityOf("3Gi")}, want: "3Gi"},
		"the cluster's ratio":    {memory: v1.Memory{Guest: quantityOf("2Gi")}, config: func(c *clusterconfig.Config) { c.LiveUpdate.MaxRatio = 2 }, want: "4Gi"},
		"the cluster's size":     {memory: v1.Memory{Guest: quantityOf("2Gi")}, config: func(c *clusterconfig.Config) { c.LiveUpdate.MaxGuest = quantityOf("5Gi") }, want: "5Gi"},
		"less than the guest":    {memory: v1.Memory{Guest: quantityOf("6Gi")}, config: func(c *clusterconfig.Config) { c.LiveUpdate.MaxGuest = quantityOf("5Gi") }},
		"a large guest":          {memory: v1.Memory{Guest: quantityOf("200Gi")}, want: "512Gi"},
		"a guest that is larger": {memory: v1.Memory{Guest: quantityOf("600Gi")}},
		"a small guest":          {memory: v1.Memory{Guest: quantityOf("512Mi")}},
		"an odd size":            {memory: v1.Memory{Guest: quantityOf("1025Mi")}},
		"huge pages":             {memory: v1.Memory{Guest: quantityOf("2Gi"), Hugepages: &v1.Hugepages{PageSize: "1Gi"}}, want: "8Gi"},
		"realtime": {memory: v1.Memory{Guest: quantityOf("2Gi")}, change: func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.CPU = &v1.CPU{DedicatedCPUPlacement: true, Realtime: &v1.Realtime{}}
		}},
		"changes at the next start": {memory: v1.Memory{Guest: quantityOf("2Gi")}, config: func(c *clusterconfig.Config) { c.RolloutStrategy = v1.VMRolloutStrategyStage }},
	} {
		config := clusterconfig.Default()
		config.DefaultArchitecture = "amd64"
		if tc.config != nil {
			tc.config(&config)
		}
		vmi := ofVM(newSpec(func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Memory = tc.memory.DeepCopy()
			if tc.change != nil {
				tc.change(s)
			}
		}))
		setDefaults(vmi, config)
		got := ""
		if most := vmi.Spec.Domain.Memory.MaxGuest; most != nil {
			got = most.String()
		}
		if got != tc.want {
			t.Errorf("%s: maxGuest %q, want %q", name, got, tc.want)
		}
	}
}
