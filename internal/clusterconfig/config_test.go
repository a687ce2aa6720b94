// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

var testImages = Images{Launcher: "localhost:5000/vireo/virt-launcher:dev",
	Handler: "localhost:5000/vireo/virt-handler:dev"}

func kubeVirt(change func(*v1.KubeVirtSpec)) *v1.KubeVirt {
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Name: "kubevirt", Namespace: "kubevirt", Generation: 1}}
	kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{}
	if change != nil {
		change(&kv.Spec)
	}
	return kv
}

func TestEmptyObjectGivesDefaults(t *testing.T) {
	got, err := FromKubeVirt(kubeVirt(nil), WithImages(testImages))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.KubeVirt, want.Generation, want.Images = "kubevirt", 1, testImages
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(FeatureGates{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.MachineType(ArchAMD64) != "q35" || got.MachineType("riscv64") != "" {
		t.Errorf("machine types: %q, %q", got.MachineType(ArchAMD64), got.MachineType("riscv64"))
	}
}

func TestResourcesOfSupportContainers(t *testing.T) {
	of := func(kind v1.SupportContainerType, cpu string) v1.SupportContainerResources {
		return v1.SupportContainerResources{Type: kind, Resources: v1.ResourceRequirementsWithoutClaims{
			Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}
	}
	got, err := FromKubeVirt(kubeVirt(func(s *v1.KubeVirtSpec) {
		s.Configuration.SupportContainerResources = []v1.SupportContainerResources{of(v1.GuestConsoleLog, "20m"),
			of(v1.SideCar, "1"), of(v1.VMExport, "2"), of(v1.HotplugAttachment, "30m")}
	}), WithContainerRestarts(true))
	if err != nil {
		t.Fatal(err)
	}
	pods := got.Pods()
	if cpu := pods.ConsoleLogResources.Limits[corev1.ResourceCPU]; cpu.String() != "20m" || !pods.RestartsContainers {
		t.Errorf("got %+v and %t", pods.ConsoleLogResources, pods.RestartsContainers)
	}
	if cpu := got.ExporterResources.Limits[corev1.ResourceCPU]; cpu.String() != "2" {
		t.Errorf("got %+v for the Pods of exports", got.ExporterResources)
	}
	if cpu := pods.HotplugResources.Limits[corev1.ResourceCPU]; cpu.String() != "30m" {
		t.Errorf("got %+v for attachment Pods", pods.HotplugResources)
	}
}

func TestFieldsOverrideDefaults(t *testing.T) {
	got, err := FromKubeVirt(kubeVirt(func(s *v1.KubeVirtSpec) {
		s.ImagePullPolicy = corev1.PullAlways
		s.Configuration.ImagePullPolicy = corev1.PullNever
		s.Configuration.CPUModel = "Haswell"
		s.Configuration.CPURequest = ptr.To(resource.MustParse("250m"))
		s.Configuration.MemBalloonStatsPeriod = ptr.To[uint32](0)
		s.Configuration.AdditionalGuestMemoryOverheadRatio = ptr.To("1.5")
		s.Configuration.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrate)
		s.Configuration.NetworkConfiguration = &v1.NetworkConfiguration{NetworkInterface: "masquerade"}
		s.Configuration.ArchitectureConfiguration = &v1.ArchConfiguration{
			DefaultArchitecture: "arm64", Amd64: &v1.ArchSpecificConfiguration{MachineType: "pc-q35-9.0"},
			Arm64: &v1.ArchSpecificConfiguration{MachineType: "virt-9.0"}}
		d := s.Configuration.DeveloperConfiguration
		d.UseEmulation, d.MemoryOvercommit, d.CPUAllocationRatio = true, 150, 4
		d.LogVerbosity = &v1.LogVerbosity{VirtHandler: 5, NodeVerbosity: map[string]uint{"n1": 8}}
		s.CertificateRotationStrategy.SelfSigned = &v1.KubeVirtSelfSignConfiguration{
			Server: &v1.CertConfig{Duration: &metav1.Duration{Duration: 10 * time.Hour}}}
	}))
	if err != nil {
		t.Fatal(err)
	}
	type facts struct {
		Components, Launchers         corev1.PullPolicy
		Model, Request, AMD64, ARM64  string
		Period                        uint32
		Ratio                         float64
		Eviction                      v1.EvictionStrategy
		Interface, Arch               string
		Emulation                     bool
		Overcommit, Allocation        int
		Controller, Handler, OnN1     uint
		ServerDuration, ServerRenewal time.Duration
	}
	want := facts{
		corev1.PullAlways, corev1.PullNever, "Haswell", "250m", "pc-q35-9.0", "virt-9.0", 0, 1.5,
		v1.EvictionStrategyLiveMigrate, "masquerade", "arm64", true, 150, 4, 2, 5, 8, 10 * time.Hour, 2 * time.Hour,
	}
	if diff := cmp.Diff(want, facts{
		got.ImagePullPolicy, got.LauncherPullPolicy, got.CPUModel, got.CPURequest.String(), got.MachineType(ArchAMD64),
		got.MachineType(ArchARM64), got.MemBalloonStatsPeriod, got.AdditionalGuestMemoryOverheadRatio, got.EvictionStrategy,
		got.Network.DefaultInterface, got.DefaultArchitecture, got.UseEmulation, got.MemoryOvercommit, got.CPUAllocationRatio,
		got.Verbosity.Controller, got.Verbosity.HandlerOn("n2"), got.Verbosity.HandlerOn("n1"),
		got.Certificates.ServerDuration, got.Certificates.ServerRenewBefore,
	}); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestInvalidFieldsKeepTheirDefaults(t *testing.T) {
	cases := map[string]func(*v1.KubeVirtSpec){
		"spec.configuration.network.defaultNetworkInterface": func(s *v1.KubeVirtSpec) {
			s.Configuration.NetworkConfiguration = &v1.NetworkConfiguration{NetworkInterface: "carrier-pigeon"}
		},
		"spec.configuration.additionalGuestMemoryOverheadRatio": func(s *v1.KubeVirtSpec) {
			s.Configuration.AdditionalGuestMemoryOverheadRatio = ptr.To("NaN")
		},
		"spec.configuration.cpuRequest": func(s *v1.KubeVirtSpec) {
			s.Configuration.CPURequest = ptr.To(resource.MustParse("-1"))
		},
		"spec.configuration.developerConfiguration.memoryOvercommit": func(s *v1.KubeVirtSpec) {
			s.Configuration.DeveloperConfiguration.MemoryOvercommit = 5
		},
		"spec.configuration.developerConfiguration.cpuAllocationRatio": func(s *v1.KubeVirtSpec) {
			s.Configuration.DeveloperConfiguration.CPUAllocationRatio = -1
		},
		"spec.configuration.evictionStrategy": func(s *v1.KubeVirtSpec) {
			s.Configuration.EvictionStrategy = ptr.To(v1.EvictionStrategy("Sometimes"))
		},
		"spec.imagePullPolicy":               func(s *v1.KubeVirtSpec) { s.ImagePullPolicy = "Maybe" },
		"spec.configuration.imagePullPolicy": func(s *v1.KubeVirtSpec) { s.Configuration.ImagePullPolicy = "Maybe" },
		"spec.configuration.vmRolloutStrategy": func(s *v1.KubeVirtSpec) {
			s.Configuration.VMRolloutStrategy = ptr.To(v1.VMRolloutStrategy("Later"))
		},
		"spec.configuration.developerConfiguration.featureGates": func(s *v1.KubeVirtSpec) {
			d := s.Configuration.DeveloperConfiguration
			d.FeatureGates, d.DisabledFeatureGates = []string{"HostDisk"}, []string{"HostDisk"}
		},
		"spec.configuration.developerConfiguration.nodeSelectors": func(s *v1.KubeVirtSpec) {
			s.Configuration.DeveloperConfiguration.NodeSelectors = map[string]string{"no label!": ""}
		},
		"spec.configuration.tlsConfiguration.minTLSVersion": func(s *v1.KubeVirtSpec) {
			s.Configuration.TLSConfiguration = &v1.TLSConfiguration{MinTLSVersion: "VersionSSL3"}
		},
		"spec.configuration.tlsConfiguration.ciphers": func(s *v1.KubeVirtSpec) {
			s.Configuration.TLSConfiguration = &v1.TLSConfiguration{Ciphers: []string{"TLS_RSA_WITH_AES_128_CBC_SHA"}}
		},
		"spec.configuration.tlsConfiguration.ciphers[0]": func(s *v1.KubeVirtSpec) {
			s.Configuration.TLSConfiguration = &v1.TLSConfiguration{MinTLSVersion: v1.VersionTLS12, Ciphers: []string{"ROT13"}}
		},
		"spec.configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile": seccomp(nil),
		"spec.configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile.localhostProfile": seccomp(
			&v1.CustomProfile{LocalhostProfile: ptr.To("profiles/../../vm.json")}),
		"spec.configuration.handlerConfiguration.restClient.rateLimiter.tokenBucketRateLimiter.qps":   handlerRate(-1, 0),
		"spec.configuration.handlerConfiguration.restClient.rateLimiter.tokenBucketRateLimiter.burst": handlerRate(0, -1),
		"spec.certificateRotateStrategy.selfSigned.caRotateInterval": selfSigned(v1.KubeVirtSelfSignConfiguration{
			CARotateInterval: &metav1.Duration{Duration: -time.Hour}}),
		"spec.certificateRotateStrategy.selfSigned.caOverlapInterval": selfSigned(v1.KubeVirtSelfSignConfiguration{
			CAOverlapInterval: &metav1.Duration{Duration: 8 * 24 * time.Hour}}),
		"spec.configuration.architectureConfiguration.defaultArchitecture": func(s *v1.KubeVirtSpec) {
			s.Configuration.ArchitectureConfiguration = &v1.ArchConfiguration{DefaultArchitecture: "vax"}
		},
		"spec.configuration.virtualMachineInstancesPerNode": func(s *v1.KubeVirtSpec) {
			s.Configuration.VirtualMachineInstancesPerNode = ptr.To(0)
		},
		"spec.certificateRotateStrategy.selfSigned.ca.renewBefore": func(s *v1.KubeVirtSpec) {
			s.CertificateRotationStrategy.SelfSigned = &v1.KubeVirtSelfSignConfiguration{CA: &v1.CertConfig{
				RenewBefore: &metav1.Duration{Duration: 8 * 24 * time.Hour}}}
		},
	}
	for path, change := range cases {
		t.Run(path, func(t *testing.T) {
			got, err := FromKubeVirt(kubeVirt(change))
			if err == nil || !strings.Contains(err.Error(), path+":") {
				t.Errorf("error does not name %s: %v", path, err)
			}
			want := Default()
			want.KubeVirt, want.Generation = "kubevirt", 1
			want.FeatureGates = got.FeatureGates
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(FeatureGates{})); diff != "" {
				t.Errorf("-default +got:\n%s", diff)
			}
		})
	}
}

func seccomp(profile *v1.CustomProfile) func(*v1.KubeVirtSpec) {
	return func(s *v1.KubeVirtSpec) {
		s.Configuration.SeccompConfiguration = &v1.SeccompConfiguration{
			VirtualMachineInstanceProfile: &v1.VirtualMachineInstanceProfile{CustomProfile: profile},
		}
	}
}

func handlerRate(qps float32, burst int) func(*v1.KubeVirtSpec) {
	return func(s *v1.KubeVirtSpec) {
		s.Configuration.HandlerConfiguration = &v1.ReloadableComponentConfiguration{RestClient: &v1.RESTClientConfiguration{
			RateLimiter: &v1.RateLimiter{TokenBucketRateLimiter: &v1.TokenBucketRateLimiter{QPS: qps, Burst: burst}},
		}}
	}
}

func selfSigned(c v1.KubeVirtSelfSignConfiguration) func(*v1.KubeVirtSpec) {
	return func(s *v1.KubeVirtSpec) { s.CertificateRotationStrategy.SelfSigned = &c }
}

// A structure that is set in part keeps the defaults of its other fields.
func TestStructuresAreMergedByField(t *testing.T) {
	got, err := FromKubeVirt(kubeVirt(func(s *v1.KubeVirtSpec) {
		s.Configuration.SMBIOSConfig = &v1.SMBiosConfiguration{Product: "Guest", Sku: "7"}
		s.Configuration.TLSConfiguration = &v1.TLSConfiguration{}
		handlerRate(7, 0)(s)
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.KubeVirt, want.Generation = "kubevirt", 1
	want.SMBIOS = SMBIOS{Manufacturer: "KubeVirt", Product: "Guest", SKU: "7", Family: "KubeVirt"}
	want.RateLimits.Handler = RateLimit{QPS: 7, Burst: 400}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(FeatureGates{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestDeprecatedFieldsWinForEveryArchitecture(t *testing.T) {
	got, err := FromKubeVirt(kubeVirt(func(s *v1.KubeVirtSpec) {
		s.Configuration.MachineType, s.Configuration.EmulatedMachines = "old", []string{"old*"}
		s.Configuration.ArchitectureConfiguration = &v1.ArchConfiguration{
			Amd64: &v1.ArchSpecificConfiguration{MachineType: "pc-q35-9.0", EmulatedMachines: []string{"pc*"}},
			S390x: &v1.ArchSpecificConfiguration{MachineType: "s390-ccw-virtio-9.0"},
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{ArchAMD64, ArchARM64, ArchS390X} {
		if machines := got.EmulatedMachines(arch); got.MachineType(arch) != "old" || len(machines) != 1 ||
			machines[0] != "old*" {
			t.Errorf("%s: %s of %v", arch, got.MachineType(arch), machines)
		}
	}
}

// The default architecture stays what it was when the cluster was installed, on whatever node the process runs.
func TestDefaultArchitectureOfTheStatusStays(t *testing.T) {
	kv := kubeVirt(nil)
	for _, tc := range []struct{ status, spec, want string }{
		{"", "", Default().DefaultArchitecture}, {"s390x", "", "s390x"}, {"s390x", "arm64", "arm64"}, {"vax", "", Default().DefaultArchitecture},
	} {
		kv.Status.DefaultArchitecture = tc.status
		kv.Spec.Configuration.ArchitectureConfiguration = &v1.ArchConfiguration{DefaultArchitecture: tc.spec}
		if got, err := FromKubeVirt(kv); err != nil || got.DefaultArchitecture != tc.want {
			t.Errorf("status %q, spec %q: %s, %v", tc.status, tc.spec, got.DefaultArchitecture, err)
		}
	}
}

func TestLifetimesOfCertificates(t *testing.T) {
	minutes := func(m int) *metav1.Duration { return &metav1.Duration{Duration: time.Duration(m) * time.Minute} }
	lifetimes := func(ca, caBefore, server, serverBefore int) Certificates {
		return Certificates{minutes(ca).Duration, minutes(caBefore).Duration, minutes(server).Duration,
			minutes(serverBefore).Duration}
	}
	const week, day = 7 * 24 * 60, 24 * 60
	for name, tc := range map[string]struct {
		spec  v1.KubeVirtSelfSignConfiguration
		want  Certificates
		fault string
	}{
		"none": {v1.KubeVirtSelfSignConfiguration{}, lifetimes(week, week/5, day, day/5), ""},
		"all": {v1.KubeVirtSelfSignConfiguration{
			CA:     &v1.CertConfig{Duration: minutes(20), RenewBefore: minutes(12)},
			Server: &v1.CertConfig{Duration: minutes(15), RenewBefore: minutes(10)},
		}, lifetimes(20, 12, 15, 10), ""},
		"deprecated": {v1.KubeVirtSelfSignConfiguration{
			CARotateInterval: minutes(20), CAOverlapInterval: minutes(12), CertRotateInterval: minutes(15),
		}, lifetimes(20, 12, 15, 3), ""},
		"both": {v1.KubeVirtSelfSignConfiguration{
			CARotateInterval: minutes(2 * day), CA: &v1.CertConfig{Duration: minutes(3 * day), RenewBefore: minutes(30)},
		}, lifetimes(2*day, 30, day, day/5), "spec.certificateRotateStrategy.selfSigned: Forbidden"},
		"renewed without a pause": {v1.KubeVirtSelfSignConfiguration{Server: &v1.CertConfig{Duration: &metav1.Duration{Duration: 24 * time.Millisecond}}},
			Certificates{7 * 24 * time.Hour, 7 * 24 * time.Hour / 5, time.Minute, time.Minute / 5}, ""},
		"renewed at once": {v1.KubeVirtSelfSignConfiguration{Server: &v1.CertConfig{Duration: minutes(10), RenewBefore: minutes(10)}},
			lifetimes(week, week/5, 10, 2), ""},
		"signs before it is trusted": {v1.KubeVirtSelfSignConfiguration{CA: &v1.CertConfig{Duration: minutes(3)}, Server: &v1.CertConfig{Duration: minutes(2)}},
			Certificates{6 * time.Minute, 4 * time.Minute, 2 * time.Minute, 2 * time.Minute / 5}, ""},
		"short overlap": {v1.KubeVirtSelfSignConfiguration{CA: &v1.CertConfig{Duration: minutes(week), RenewBefore: minutes(1)}},
			lifetimes(week, 4, day, day/5), ""},
		"server outlives CA": {v1.KubeVirtSelfSignConfiguration{CA: &v1.CertConfig{Duration: minutes(20)}},
			lifetimes(20, 4, 20, 4),
			"spec.certificateRotateStrategy.selfSigned.server.duration: Invalid value: \"24h0m0s\": Certificate duration cannot exceed CA"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := FromKubeVirt(kubeVirt(selfSigned(tc.spec)))
			if (err != nil) != (tc.fault != "") || err != nil && !strings.Contains(err.Error(), tc.fault) {
				t.Errorf("error %v, want %q", err, tc.fault)
			}
			if got.Certificates != tc.want {
				t.Errorf("got %v, want %v", got.Certificates, tc.want)
			}
		})
	}
}

func TestImages(t *testing.T) {
	cases := []struct{ image, registry, tag, want string }{
		{"localhost:5000/vireo/virt-launcher:dev", "", "", "localhost:5000/vireo/virt-launcher:dev"},
		{"localhost:5000/vireo/virt-launcher:dev", "example.org/a/b", "", "example.org/a/b/virt-launcher:dev"},
		{"localhost:5000/vireo/virt-launcher:dev", "example.org/a/", "v2", "example.org/a/virt-launcher:v2"},
		{"localhost:5000/vireo/virt-launcher", "", "v2", "localhost:5000/vireo/virt-launcher:v2"},
		{"localhost:5000/vireo/virt-launcher@sha256:ab", "", "sha256:cd", "localhost:5000/vireo/virt-launcher@sha256:cd"},
		{"localhost:5000/vireo/virt-launcher@sha256:ab", "example.org", "", "example.org/virt-launcher@sha256:ab"},
		{"virt-launcher:dev", "example.org", "", "example.org/virt-launcher:dev"},
		{"", "example.org", "v2", ""},
	}
	for _, c := range cases {
		if got := imageRef(c.image, c.registry, c.tag); got != c.want {
			t.Errorf("imageRef(%q, %q, %q) = %q, want %q", c.image, c.registry, c.tag, got, c.want)
		}
	}
}

func TestAlignCPUs(t *testing.T) {
	kv := &v1.KubeVirt{}
	kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{FeatureGates: []string{"AlignCPUs"}}
	if c, err := FromKubeVirt(kv); err != nil || c.AlignCPUs {
		t.Errorf("CPUs are aligned without the annotation, %v", err)
	}
	kv.Annotations = map[string]string{v1.EmulatorThreadCompleteToEvenParity: ""}
	if c, err := FromKubeVirt(kv); err != nil || !c.AlignCPUs {
		t.Errorf("CPUs are not aligned, %v", err)
	}
	kv.Spec.Configuration.DeveloperConfiguration = nil
	if c, err := FromKubeVirt(kv); err != nil || c.AlignCPUs {
		t.Errorf("CPUs are aligned without the gate, %v", err)
	}
}

func TestFeatureGates(t *testing.T) {
	listed := NewFeatureGates([]string{"HostDisk", "Passt", "HotplugVolumes", "Unheard"},
		[]string{"Snapshot", "LiveMigration"})
	cases := []struct {
		gate         string
		listed, none bool
	}{
		{"HostDisk", true, false},       // alpha
		{"Snapshot", false, true},       // beta, disabled
		{"ImageVolume", true, true},     // beta
		{"LiveMigration", true, true},   // GA cannot be disabled
		{"HotplugVolumes", true, false}, // deprecated
		{"Passt", false, false},         // discontinued
		{"Unheard", false, false},
	}
	for _, c := range cases {
		if got := listed.IsEnabled(c.gate); got != c.listed {
			t.Errorf("%s with lists: %t", c.gate, got)
		}
		if got := NewFeatureGates(nil, nil).IsEnabled(c.gate); got != c.none {
			t.Errorf("%s without lists: %t", c.gate, got)
		}
	}
	if stage, ok := StageOf("HostDisk"); stage != StageAlpha || !ok {
		t.Errorf("HostDisk is %s, %t", stage, ok)
	}
}

func TestLiveUpdate(t *testing.T) {
	size := resource.MustParse("64Gi")
	for name, tc := range map[string]struct {
		given *v1.LiveUpdateConfiguration
		want  LiveUpdate
	}{
		"none":   {nil, LiveUpdate{MaxRatio: 4}},
		"empty":  {&v1.LiveUpdateConfiguration{}, LiveUpdate{MaxRatio: 4}},
		"ratio":  {&v1.LiveUpdateConfiguration{MaxHotplugRatio: 2}, LiveUpdate{MaxRatio: 2}},
		"limits": {&v1.LiveUpdateConfiguration{MaxCpuSockets: ptr.To[uint32](16), MaxGuest: &size}, LiveUpdate{MaxRatio: 4, MaxSockets: 16, MaxGuest: &size}},
	} {
		kv := &v1.KubeVirt{}
		kv.Spec.Configuration.LiveUpdateConfiguration = tc.given
		config, err := FromKubeVirt(kv)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.want, config.LiveUpdate); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	kv := &v1.KubeVirt{}
	kv.Spec.Configuration.LiveUpdateConfiguration = &v1.LiveUpdateConfiguration{MaxGuest: ptr.To(
		resource.MustParse("-1Gi"))}
	config, err := FromKubeVirt(kv)
	if err == nil || !strings.Contains(err.Error(), "spec.configuration.liveUpdateConfiguration.maxGuest") ||
		config.LiveUpdate.MaxGuest != nil {
		t.Errorf("got %v, %+v", err, config.LiveUpdate)
	}
}

func TestMigratesWorkloads(t *testing.T) {
	for _, tc := range []struct {
		methods []v1.WorkloadUpdateMethod
		want    bool
	}{
		{nil, false},
		{[]v1.WorkloadUpdateMethod{v1.WorkloadUpdateMethodEvict}, false},
		{[]v1.WorkloadUpdateMethod{v1.WorkloadUpdateMethodEvict, v1.WorkloadUpdateMethodLiveMigrate}, true},
	} {
		kv := &v1.KubeVirt{}
		kv.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods = tc.methods
		if config, err := FromKubeVirt(kv); err != nil || config.MigratesWorkloads != tc.want {
			t.Errorf("%v: %t, %v", tc.methods, config.MigratesWorkloads, err)
		}
	}
}
