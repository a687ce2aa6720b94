// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

var update = flag.Bool("update", false, "write the golden Pods anew")

const uid = "5f1d0e9e-6a43-4f8e-9a5c-0f6f3a3c1b77"

func config() podspec.Config {
	return podspec.Config{
		LauncherImage: "registry.example/virt-launcher:v1", ImagePullPolicy: corev1.PullIfNotPresent,
		DefaultArchitecture: "amd64", CPUAllocationRatio: 10, MemoryOvercommit: 100,
		AdditionalGuestMemoryOverheadRatio: 1,
	}
}

func makeVMI() *builder.VMI { return builder.MakeVMI("vm").UID(uid) }

func TestGoldenPods(t *testing.T) {
	emulated := config()
	emulated.UseEmulation = true
	claims := config()
	claims.Claims = map[string]podspec.Claim{"block": {Block: true}, "golden-block": {Block: true}}
	state := config()
	state.StateClaim = "persistent-state-for-vm-0a1b2"
	sharedState := state
	sharedState.StateShared = true
	cluster := config()
	cluster.RuntimeClass = "vm"
	cluster.Verbosity = 3
	cluster.NodeSelectors = map[string]string{"pool": "vms"}
	cluster.Seccomp = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost,
		LocalhostProfile: ptr.To("kubevirt/vm.json")}
	cluster.CPURequest = ptr.To(resource.MustParse("250m"))
	cluster.MemoryOvercommit = 200
	cluster.AdditionalGuestMemoryOverheadRatio = 1.5

	attached := config()
	attached.NetworkResources = map[string]corev1.ResourceName{"blue": "example.com/blue", "red": "example.com/blue"}

	onNetwork := config()
	onNetwork.MigrationNetwork = types.NamespacedName{Namespace: "kubevirt", Name: "wire"}

	for name, tc := range map[string]struct {
		vmi *builder.VMI
		cfg podspec.Config
	}{
		"multus": {makeVMI().Masquerade().Multus("blue", "blue-net").Multus("red",
			"other/red-net").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces[1].MacAddress = "02:00:00:00:00:07"
		}), attached},
		"multus-default": {makeVMI().Multus("flat", "flat-net").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Networks[0].Multus.Default = true
		}), config()},
		"istio": {makeVMI().Masquerade().Annotation("sidecar.istio.io/inject", "true").
			Annotation("traffic.sidecar.istio.io/excludeOutboundPorts", "3306, 49152"), config()},
		"migration-network": {makeVMI().Masquerade().Multus("blue", "blue-net"), onNetwork},
		"minimal":           {makeVMI(), config()},
		"containerdisk-cloudinit-masquerade": {makeVMI().Label("app", "web").Annotation("note", "x").
			ContainerDisk("root", "registry.example/debian:13").CloudInit("init", "#cloud-config").
			EmptyDisk("scratch", "1Gi").Masquerade(v1.Port{Name: "http", Port: 80}), config()},
		"emulated": {makeVMI().ContainerDisk("root",
			"registry.example/debian:13").Masquerade().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Machine = &v1.Machine{Type: "pc-q35-rhel9.2.0"}
		}), emulated},
		"bridge": {makeVMI().Bridge(), config()},
		"dhcp-options": {dhcpOptions(v1.DHCPOptions{
			BootFileName: "pxelinux.0", TFTPServerName: "tftp.example", NTPServers: []string{"192.0.2.1", "192.0.2.2"},
			PrivateOptions: []v1.DHCPPrivateOptions{{Option: 240, Value: "a text"}},
		}), config()},
		"claims": {makeVMI().PVC("root", "root-claim").PVC("block", "block-claim").HostDisk("host", "/data/disk.img").
			HostDiskOrCreate("made", "/scratch/disk.img", "1Gi"), claims},
		"vsock": {makeVMI().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.AutoattachVSOCK = ptr.To(true)
		}), config()},
		"ephemeral": {makeVMI().Ephemeral("golden", "golden-claim").Ephemeral("golden-block", "golden-device"), claims},
		"files":     {makeVMI().With(withFiles), config()},
		"credentials": {makeVMI().CloudInit("init", "#cloud-config").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.AccessCredentials = []v1.AccessCredential{sshKeysOf("keys"), sshKeysOf("more.keys"), sshKeysOf("keys"),
				passwordsOf("passwords")}
		}), config()},
		"secrets-kernelboot-efi": {makeVMI().EFI().KernelBoot("registry.example/kernel:1").
			CloudInitSecret("init", "user", "net"), config()},
		"state":        {makeVMI().EFI().With(persistent), state},
		"state-shared": {makeVMI().EFI().With(persistent), sharedState},
		"placement":    {makeVMI().With(place), config()},
		"names": {makeVMI().Masquerade().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Hostname, vmi.Spec.Subdomain = "web", "sites"
		}), config()},
		"dns": {makeVMI().Masquerade().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.DNSPolicy = corev1.DNSNone
			vmi.Spec.DNSConfig = &corev1.PodDNSConfig{
				Nameservers: []string{"192.0.2.1"}, Searches: []string{"example.com"},
				Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("1")}},
			}
		}), config()},
		"spread": {makeVMI().Label("app", "web").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, MinDomains: ptr.To[int32](2),
			}}
		}), config()},
		"resource-claims": {makeVMI().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.ResourceClaims = []v1.VirtualMachineInstanceResourceClaim{
				{Name: "own", ResourceClaimName: ptr.To("claim")}, {Name: "made", ResourceClaimTemplateName: ptr.To("template")},
			}
		}), config()},
		"scheduler": {makeVMI().With(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.SchedulerName = "other" }), config()},
		"priority":  {makeVMI().With(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.PriorityClassName = "high" }), config()},
		"cluster-config": {makeVMI().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		}), cluster},
		"dedicated": {makeVMI().CPU(1, 2, 2).With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.CPU.DedicatedCPUPlacement = true
			vmi.Spec.Domain.CPU.IsolateEmulatorThread = true
		}), config()},
		"realtime": {makeVMI().CPU(1, 2, 1).Hugepages("2Mi").Request("memory",
			"1Gi").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.CPU.DedicatedCPUPlacement = true
			vmi.Spec.Domain.CPU.NUMA = &v1.NUMA{GuestMappingPassthrough: &v1.NUMAGuestMappingPassthrough{}}
			vmi.Spec.Domain.CPU.Realtime = &v1.Realtime{}
		}), config()},
		"hugepages": {makeVMI().Hugepages("2Mi"), config()},
		"probes-network": {makeVMI().Masquerade(v1.Port{Name: "http", Port: 80}).With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.ReadinessProbe = &v1.Probe{
				Handler: v1.Handler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromString("http"),
					Scheme: "HTTPS"}},
				InitialDelaySeconds: 20, TimeoutSeconds: 5, PeriodSeconds: 7, SuccessThreshold: 2, FailureThreshold: 4,
			}
			vmi.Spec.LivenessProbe = &v1.Probe{Handler: v1.Handler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(
				22)}}, TimeoutSeconds: 1}
		}), config()},
		"probes-agent": {makeVMI().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.ReadinessProbe = &v1.Probe{Handler: v1.Handler{Exec: &corev1.ExecAction{Command: []string{"/bin/check",
				"--all", "$(HOSTNAME)"}}}, TimeoutSeconds: 5}
			vmi.Spec.LivenessProbe = &v1.Probe{Handler: v1.Handler{GuestAgentPing: &v1.GuestAgentPing{}}, PeriodSeconds: 30}
		}), config()},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := tc.vmi.Obj()
			before := vmi.DeepCopy()
			pod, err := podspec.Build(vmi, tc.cfg)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, vmi); diff != "" {
				t.Errorf("Build changed its input: %s", diff)
			}
			compareGolden(t, name, pod)
		})
	}
}

func persistent(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
	vmi.Spec.Domain.Firmware.Bootloader.EFI.Persistent = ptr.To(true)
}

// withFiles adds a volume of each kind with files.
func withFiles(vmi *v1.VirtualMachineInstance) {
	configMap := &v1.ConfigMapVolumeSource{Optional: ptr.To(true), VolumeLabel: "config"}
	configMap.Name = "settings"
	vmi.Spec.Volumes = []v1.Volume{
		{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: configMap}},
		{Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "login", Optional: ptr.To(false)}}},
		{Name: "down", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Fields: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		}}}},
		{Name: "account", VolumeSource: v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: "guest"}}},
		{Name: "answers", VolumeSource: v1.VolumeSource{Sysprep: &v1.SysprepSource{ConfigMap: &corev1.LocalObjectReference{Name: "answers"}}}},
		{Name: "keys", VolumeSource: v1.VolumeSource{Sysprep: &v1.SysprepSource{Secret: &corev1.LocalObjectReference{Name: "keys"}}}},
	}
}

func sshKeysOf(secret string) v1.AccessCredential {
	return v1.AccessCredential{SSHPublicKey: &v1.SSHPublicKeyAccessCredential{
		Source: v1.SSHPublicKeyAccessCredentialSource{
			Secret: &v1.AccessCredentialSecretSource{SecretName: secret}},
		PropagationMethod: v1.SSHPublicKeyAccessCredentialPropagationMethod{
			NoCloud: &v1.NoCloudSSHPublicKeyAccessCredentialPropagation{}},
	}}
}

func passwordsOf(secret string) v1.AccessCredential {
	return v1.AccessCredential{UserPassword: &v1.UserPasswordAccessCredential{
		Source: v1.UserPasswordAccessCredentialSource{Secret: &v1.AccessCredentialSecretSource{SecretName: secret}},
		PropagationMethod: v1.UserPasswordAccessCredentialPropagationMethod{
			QemuGuestAgent: &v1.QemuGuestAgentUserPasswordAccessCredentialPropagation{},
		},
	}}
}

func place(vmi *v1.VirtualMachineInstance) {
	spec := &vmi.Spec
	spec.Domain.CPU.Model = "Skylake-Client"
	spec.Domain.CPU.Features = []v1.CPUFeature{{Name: "avx2"}, {Name: "vmx", Policy: "forbid"},
		{Name: "apic", Policy: "optional"}}
	spec.NodeSelector = map[string]string{"disk": "ssd", "kubevirt.io/schedulable": "false"}
	spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}},
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}},
		}},
	}}
	spec.Tolerations = []corev1.Toleration{{Key: "vm", Operator: corev1.TolerationOpExists}}
	spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.ScheduleAnyway,
	}}
	spec.PriorityClassName, spec.SchedulerName, spec.ServiceAccountName = "high", "other", "guest"
	spec.Hostname, spec.Subdomain = "web", "sites"
	spec.DNSPolicy = corev1.DNSNone
	spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}}
	spec.TerminationGracePeriodSeconds = ptr.To[int64](180)
}

func compareGolden(t *testing.T, name string, pod *corev1.Pod) {
	t.Helper()
	got, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", name+".yaml")
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: run the test with -update and check what it wrote", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
}

func TestBuildRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi  *v1.VirtualMachineInstance
		cfg  podspec.Config
		want string
	}{
		"no UID":   {builder.MakeVMI("vm").Obj(), config(), "UID"},
		"no image": {makeVMI().Obj(), podspec.Config{}, "--launcher-image"},
		"affinity times features": {makeVMI().With(func(vmi *v1.VirtualMachineInstance) {
			place(vmi)
			vmi.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = make(
				[]corev1.NodeSelectorTerm, 200)
			for i := range 200 {
				vmi.Spec.Domain.CPU.Features = append(vmi.Spec.Domain.CPU.Features,
					v1.CPUFeature{Name: "f" + strconv.Itoa(i), Policy: "forbid"})
			}
		}).Obj(), config(), "nodeSelectorTerms"},
		"unknown volume": {makeVMI().Volume("x", v1.VolumeSource{Sysprep: &v1.SysprepSource{}}).Obj(), config(), "volume x"},
		"two service accounts": {makeVMI().With(withFiles).With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.ServiceAccountName = "other"
		}).Obj(), config(), "volume account"},
		"no claim for state": {makeVMI().EFI().With(persistent).Obj(), config(), "TPM's and EFI's state"},
		"unknown binding": {makeVMI().Masquerade().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces[0].Masquerade = nil
		}).Obj(), config(), "interface default"},
		"unknown network": {makeVMI().Masquerade().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Networks[0].Pod = nil
		}).Obj(), config(), "interface default"},
		"masquerade on Multus": {makeVMI().Multus("blue", "net").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = v1.InterfaceBindingMethod{
				Masquerade: &v1.InterfaceMasquerade{}}
		}).Obj(), config(), "interface blue"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := podspec.Build(tc.vmi, tc.cfg)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error that names %q", err, tc.want)
			}
		})
	}
}

// Any names of a VMI's volumes are possible: they keep their mount paths and do not conflict with those of the Pod.
func TestVolumeNames(t *testing.T) {
	long := strings.Repeat("x", 57) // as long as its Secret's volume may be
	clashing := []string{"sockets", "libvirt-runtime", "ephemeral-disks", "kernel-boot", "hugepages", "init-udata",
		"init-ndata", long + "-udata",
		"settings-files", "keys-access-cred", "vm-state"}
	vmi := makeVMI().CloudInitSecret("init", "u", "n").CloudInitSecret(long, "u",
		"").Hugepages("2Mi").KernelBoot("kernel").
		With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{
				Name: "settings", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}},
			})
			vmi.Spec.AccessCredentials = []v1.AccessCredential{sshKeysOf("keys")}
		}).PVC("sockets-2", "c").PVC("plain", "c").EmptyDisk("sockets-3", "1Gi")
	cfg := config()
	cfg.Claims = map[string]podspec.Claim{"libvirt-runtime": {Block: true}}
	for i, name := range clashing {
		switch i % 3 {
		case 0:
			vmi.ContainerDisk(name, "image")
		case 1:
			vmi.PVC(name, "claim")
		default:
			vmi.HostDisk(name, "/data/disk.img")
		}
	}
	pod, err := podspec.Build(vmi.Obj(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	volumes := map[string]int{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name]++
		if problems := validation.IsDNS1123Label(v.Name); len(problems) > 0 {
			t.Errorf("volume %q: %s", v.Name, problems)
		}
	}
	for name, count := range volumes {
		if count > 1 {
			t.Errorf("%d volumes are called %q", count, name)
		}
	}
	if devices := pod.Spec.Containers[0].VolumeDevices; len(devices) != 1 || devices[0].Name != "libvirt-runtime-2" ||
		devices[0].DevicePath != "/dev/libvirt-runtime" {
		t.Errorf("devices are %v", devices)
	}
	mounts := map[string]string{}
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		mounts[m.MountPath] = m.Name
		if volumes[m.Name] == 0 {
			t.Errorf("%s mounts %q, which is not there", m.MountPath, m.Name)
		}
	}
	for path, name := range map[string]string{
		"/var/run/kubevirt/sockets":                              "sockets",
		"/var/run/kubevirt/container-disks/sockets":              "sockets-4",
		"/dev/hugepages":                                         "hugepages",
		"/var/run/kubevirt-private/vmi-disks/hugepages":          "hugepages-2",
		"/var/run/kubevirt-private/vmi-disks/sockets-2":          "sockets-2",
		"/var/run/kubevirt-private/vmi-disks/plain":              "plain",
		"/var/run/kubevirt-private/secret/init/userdata":         "init-udata",
		"/var/run/kubevirt-private/files/settings":               "settings-files",
		"/var/run/kubevirt-private/credentials/keys-access-cred": "keys-access-cred",
		"/var/run/kubevirt-private/vmi-disks/init-udata":         "init-udata-2",
		"/var/run/kubevirt-private/vmi-disks/" + long + "-udata": long + "-uda-2",
	} {
		if mounts[path] != name {
			t.Errorf("%s mounts %q, want %q", path, mounts[path], name)
		}
	}
}

func TestPodName(t *testing.T) {
	name := func(vmi, uid string) string { return podspec.PodName(builder.MakeVMI(vmi).UID(uid).Obj()) }
	first := name("a", "1")
	if again := name("a", "1"); again != first {
		t.Errorf("the name is %s once and %s then", first, again)
	}
	if name("a", "1") == name("a", "2") {
		t.Error("two VMIs of one name share a Pod name")
	}
	for _, vmi := range []string{strings.Repeat("x", 200), strings.Repeat("x", 39) + "..-" + strings.Repeat("y", 20)} {
		got := name(vmi, "1")
		if len(got) > 63 || strings.Contains(got, ".-") || strings.Contains(got, "--") {
			t.Errorf("%q is not fit for a host name", got)
		}
	}
}

// Tools select the Pods of a VMI by this label.
func TestTheLabelOfALongName(t *testing.T) {
	long := strings.Repeat("a", 70)
	for name, want := range map[string]string{
		"vm": "vm", long[:63]: long[:63],
		// echo -n NAME | sha1sum
		long: long[:54] + "-ed6c69d9",
	} {
		pod, err := podspec.Build(builder.MakeVMI(name).UID(uid).Obj(), config())
		if err != nil {
			t.Fatal(err)
		}
		if got := pod.Labels[v1.VirtualMachineInstanceIDLabel]; got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func TestIstio(t *testing.T) {
	const inject, interfaces = "sidecar.istio.io/inject", "traffic.sidecar.istio.io/kubevirtInterfaces"
	for name, tc := range map[string]struct {
		vmi               *builder.VMI
		label, bridge     string
		token, excludesIn bool
	}{
		"not requested":            {makeVMI().Masquerade(), "", "k6t-eth0", false, false},
		"by the annotation":        {makeVMI().Masquerade().Annotation(inject, "true"), "true", "k6t-eth0", true, true},
		"by the annotation, large": {makeVMI().Masquerade().Annotation(inject, "True"), "True", "k6t-eth0", true, true},
		"by the label":             {makeVMI().Masquerade().Label(inject, "true"), "true", "k6t-eth0", true, true},
		"refused":                  {makeVMI().Masquerade().Annotation(inject, "false"), "false", "k6t-eth0", false, false},
		"refused past the label":   {makeVMI().Masquerade().Label(inject, "true").Annotation(inject, "false"), "false", "k6t-eth0", false, false},
		"with a bridge":            {makeVMI().Bridge().Annotation(inject, "true"), "true", "", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := podspec.Build(tc.vmi.Obj(), config())
			if err != nil {
				t.Fatal(err)
			}
			if got := pod.Labels[inject]; got != tc.label {
				t.Errorf("label %q, want %q", got, tc.label)
			}
			for _, key := range []string{interfaces, "istio.io/reroute-virtual-interfaces"} {
				if got := pod.Annotations[key]; got != tc.bridge {
					t.Errorf("annotation %s: %q, want %q", key, got, tc.bridge)
				}
			}
			if got := *pod.Spec.AutomountServiceAccountToken; got != tc.token {
				t.Errorf("token mounted: %t", got)
			}
			if got := pod.Annotations["traffic.sidecar.istio.io/excludeInboundPorts"]; (got == "49152,49153") != tc.excludesIn {
				t.Errorf("ports past the sidecar: %q", got)
			}
		})
	}
}
