// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/diskbus"
	"github.com/vireo-project/vireo/test/builder"
)

func hardDisk(name string, bus v1.DiskBus) v1.Disk {
	return v1.Disk{Name: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: bus}}}
}

// diskWith makes a virtio disk of a containerDisk and changes it.
func diskWith(change func(*v1.Disk)) *v1.VirtualMachineInstanceSpec {
	disk := hardDisk("root", v1.DiskBusVirtio)
	change(&disk)
	return newSpec(withDisk(disk, containerDisk()))
}

func TestDiskRules(t *testing.T) {
	const disk = "spec.domain.devices.disks[0]"
	block := func(size v1.CustomBlockSize) func(*v1.Disk) {
		return func(d *v1.Disk) { d.BlockSize = &v1.BlockSize{Custom: &size} }
	}
	runRules(t, []ruleCase{
		{name: "virtio", spec: diskWith(func(d *v1.Disk) {
			d.Serial, d.Cache, d.IO, d.ErrorPolicy = "a-1", v1.CacheNone, v1.IONative, ptr.To(v1.DiskErrorPolicyReport)
		})},
		{name: "no target becomes a disk", spec: diskWith(func(d *v1.Disk) { d.DiskDevice = v1.DiskDevice{} })},
		{name: "no volume", spec: newSpec(withDisk(hardDisk("root", ""), nil)), want: []string{disk + ".name: 'root' not found"}},
		{name: "empty drive", spec: newSpec(withDisk(v1.Disk{Name: "cd", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{}}}, nil))},
		{name: "same name", spec: newSpec(withDisk(hardDisk("a", ""), containerDisk()), withDisk(hardDisk("a", ""), nil)),
			want: []string{"spec.domain.devices.disks[1].name: must not have the same Name"}},
		{name: "no container name", spec: newSpec(withDisk(hardDisk("Root_1", ""), containerDisk())),
			want: []string{disk + ".name: lowercase RFC 1123 label"}},
		{name: "two targets", spec: diskWith(func(d *v1.Disk) { d.CDRom = &v1.CDRomTarget{} }), want: []string{disk + ": single target type"}},
		{name: "ide", spec: diskWith(func(d *v1.Disk) { d.Disk.Bus = "ide" }), want: []string{disk + ".disk.bus: IDE bus is not supported"}},
		{name: "unknown bus", spec: diskWith(func(d *v1.Disk) { d.Disk.Bus = "nvme" }), want: []string{disk + ".disk.bus: unrecognized bus nvme"}},
		{name: "virtio cdrom", spec: diskWith(func(d *v1.Disk) {
			d.DiskDevice = v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusVirtio}}
		}), want: []string{disk + ".cdrom.bus: invalid for CD-ROM"}},
		{name: "read-only sata", spec: diskWith(func(d *v1.Disk) { d.Disk.Bus, d.Disk.ReadOnly = v1.DiskBusSATA, true }),
			want: []string{disk + ".disk.bus: do not support read-only"}},
		{name: "I/O thread on sata", spec: diskWith(func(d *v1.Disk) { d.Disk.Bus, d.DedicatedIOThread = v1.DiskBusSATA, ptr.To(true) }),
			want: []string{disk + ".dedicatedIOThread: IOThreads are not supported"}},
		{name: "lun of an image", spec: diskWith(func(d *v1.Disk) { d.DiskDevice = v1.DiskDevice{LUN: &v1.LunTarget{}} }),
			want: []string{disk + ".lun: DataVolume or PersistentVolumeClaim"}},
		{name: "pci address", spec: diskWith(func(d *v1.Disk) { d.Disk.PciAddress = "0000:81:01.0" })},
		{name: "bad pci address", spec: diskWith(func(d *v1.Disk) { d.Disk.PciAddress, d.Disk.Bus = "81", v1.DiskBusSATA }), want: []string{
			disk + ".disk.pciAddress: only possible with bus type virtio", disk + ".disk.pciAddress: malformed PCI address",
		}},
		{name: "cache", spec: diskWith(func(d *v1.Disk) { d.Cache = "unsafe" }), want: []string{disk + ".cache: invalid value unsafe"}},
		{name: "io", spec: diskWith(func(d *v1.Disk) { d.IO = "default" }), want: []string{disk + ".io: Supported modes are: native, threads"}},
		{name: "error policy", spec: diskWith(func(d *v1.Disk) { d.ErrorPolicy = ptr.To(v1.DiskErrorPolicy("cry")) }),
			want: []string{disk + ".errorPolicy: invalid value"}},
		{name: "serial", spec: diskWith(func(d *v1.Disk) { d.Serial = "a b" + strings.Repeat("x", 256) }), want: []string{
			disk + ".serial: less than or equal to 256", disk + ".serial: [A-Za-z0-9_.+-]",
		}},
		{name: "block size", spec: diskWith(block(v1.CustomBlockSize{Logical: 512, Physical: 4096, DiscardGranularity: ptr.To(uint(4096))}))},
		{name: "small blocks", spec: diskWith(block(v1.CustomBlockSize{Logical: 256, Physical: 4 << 20})), want: []string{
			disk + ".blockSize.custom.logical: less than the supported minimum",
			disk + ".blockSize.custom.physical: greater than the supported maximum",
		}},
		{name: "odd blocks", spec: diskWith(block(v1.CustomBlockSize{Logical: 1000, Physical: 1024})),
			want: []string{disk + ".blockSize.custom.logical: not a power of 2"}},
		{name: "logical beyond physical", spec: diskWith(block(v1.CustomBlockSize{Logical: 4096, Physical: 512})),
			want: []string{disk + ".blockSize.custom.logical: same or less than the physical"}},
		{name: "granularity", spec: diskWith(block(v1.CustomBlockSize{Logical: 512, Physical: 512, DiscardGranularity: ptr.To(uint(700))})),
			want: []string{disk + ".blockSize.custom.discardGranularity: multiples of logical size"}},
		{name: "custom and matched blocks", spec: diskWith(func(d *v1.Disk) {
			d.BlockSize = &v1.BlockSize{Custom: &v1.CustomBlockSize{}, MatchVolume: &v1.FeatureState{}}
		}), want: []string{disk + ".blockSize: together with a custom value"}},
	})
}

// Admission accepts what the table of buses has, and its messages name every bus of which they say that it would do.
func TestBusRules(t *testing.T) {
	const path = "spec.domain.devices.disks[0]"
	var cases []ruleCase
	add := func(name string, fails bool, fault string, disk v1.Disk, options ...specOption) {
		tc := ruleCase{name: name, spec: newSpec(append(options, withDisk(disk, claim("c")))...)}
		if fails {
			tc.want = []string{path + fault}
		}
		cases = append(cases, tc)
	}
	for _, name := range diskbus.Names("") {
		bus := diskbus.Of(name)
		for _, kind := range []string{diskbus.Disk, diskbus.CDRom} {
			if kind == diskbus.Disk || bus.Connects(kind) {
				add(kind+" "+string(name), !bus.Connects(kind), "."+kind+".bus: ", builder.MakeDisk("a", kind, name))
			}
		}
		threads, small, readOnly, pci := hardDisk("a", name), hardDisk("a", name), hardDisk("a", name), hardDisk("a", name)
		threads.DedicatedIOThread = ptr.To(true)
		small.BlockSize = &v1.BlockSize{Custom: &v1.CustomBlockSize{Logical: 4096, Physical: 4096}}
		readOnly.Disk.ReadOnly = true
		pci.Disk.PciAddress = "0000:81:01.0"
		add("threads "+string(name), !bus.Virtio, ".dedicatedIOThread: not supported for disks on a "+string(name), threads)
		add("blocks "+string(name), bus.SmallBlocks, ".blockSize.custom.logical: for SATA devices", small)
		add("read-only "+string(name), bus.NeverReadOnly, ".disk.bus: do not support read-only", readOnly)
		add("pci "+string(name), !bus.Virtio, ".disk.pciAddress: only possible with bus type virtio", pci)
	}
	all := make([]string, 0, len(diskbus.Names("")))
	for _, name := range diskbus.Names("") {
		all = append(all, string(name))
	}
	add("floppy", true, ".disk.bus: must be one of: ["+strings.Join(all, " ")+"]", hardDisk("a", "fdc"))
	runRules(t, cases)
	for _, name := range diskbus.Names(diskbus.CDRom) {
		runRules(t, []ruleCase{{
			name: "the message for CD-ROMs in validate_disks.go names " + string(name),
			spec: newSpec(withDisk(builder.MakeDisk("a", diskbus.CDRom, v1.DiskBusVirtio), claim("c"))),
			want: []string{path + ".cdrom.bus: " + string(name)},
		}})
	}
}

// A guest's architecture has the buses of the table. Only for arm64 admission rejects the others, as in KubeVirt.
func TestBusesOfArchitectures(t *testing.T) {
	config := clusterconfig.Default()
	for _, name := range diskbus.Names("") {
		spec := newSpec(withDisk(hardDisk("a", name), containerDisk()))
		spec.Architecture = clusterconfig.ArchARM64
		faults := validateInstance(field.NewPath("spec"), spec, config)
		rejected := slices.ContainsFunc(faults,
			func(e *field.Error) bool { return e.Field == "spec.domain.devices.disks[0].disk.bus" })
		if rejected == diskbus.Of(name).IsOn(clusterconfig.ArchARM64) {
			t.Errorf("%s on arm64: rejected: %v (%v)", name, rejected, faults)
		}
		for _, fault := range faults {
			for _, other := range diskbus.Names("") {
				if strings.HasSuffix(fault.Field, ".disk.bus") && diskbus.Of(other).IsOn(clusterconfig.ArchARM64) &&
					!strings.Contains(fault.Detail, string(other)) {
					t.Errorf("%q in internal/webhook/v1/validate_gates.go does not name the bus %s", fault.Detail, other)
				}
			}
		}
	}
}

func claim(name string) *v1.VolumeSource {
	return &v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
	}}
}

func TestBootOrderRules(t *testing.T) {
	ordered := func(disk, iface uint) *v1.VirtualMachineInstanceSpec {
		d, i := hardDisk("root", ""), masquerade()
		d.BootOrder, i.BootOrder = &disk, &iface
		return newSpec(withDisk(d, containerDisk()), withInterface(i))
	}
	runRules(t, []ruleCase{
		{name: "unique", spec: ordered(1, 2)},
		{name: "shared", spec: ordered(1, 1), want: []string{"spec.domain.devices.interfaces[0].bootOrder: already set for a different device"}},
		{name: "zero", spec: ordered(0, 1), want: []string{"spec.domain.devices.disks[0].bootOrder: must have a boot order > 0"}},
	})
}

func TestVolumeRules(t *testing.T) {
	const volume = "spec.volumes[0]"
	withSource := func(source v1.VolumeSource) *v1.VirtualMachineInstanceSpec { return newSpec(withVolume("v", source)) }
	gated := &v1.KubeVirtConfiguration{
		DeveloperConfiguration: &v1.DeveloperConfiguration{FeatureGates: []string{"HostDisk"}}}
	runRules(t, []ruleCase{
		{name: "claim", spec: withSource(*claim("c"))},
		{name: "nothing", spec: withSource(v1.VolumeSource{}), want: []string{volume + ": exactly one source type"}},
		{name: "two sources", spec: withSource(v1.VolumeSource{
			ContainerDisk: &v1.ContainerDiskSource{Image: "i"}, EmptyDisk: &v1.EmptyDiskSource{Capacity: *quantityOf("1Gi")},
		}), want: []string{volume + ": exactly one source type"}},
		{name: "same name", spec: newSpec(withVolume("v", *claim("a")), withVolume("v", *claim("b"))),
			want: []string{"spec.volumes[1].name: must not have the same Name"}},
		{name: "relative path", spec: withSource(v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Path: "disk.img"}}), want: []string{
			volume + ".containerDisk.path: absolute path",
		}},
		{name: "data volume without a name", spec: withSource(v1.VolumeSource{DataVolume: &v1.DataVolumeSource{}}),
			want: []string{volume + ".dataVolume.name: DataVolume 'name' must be set"}},
		{name: "host disk", config: gated, spec: withSource(v1.VolumeSource{HostDisk: &v1.HostDisk{
			Path: "/data/disk.img", Type: v1.HostDiskExistsOrCreate, Capacity: *quantityOf("1Gi")}})},
		{name: "host disk without the gate", spec: withSource(v1.VolumeSource{HostDisk: &v1.HostDisk{Path: "/d", Type: v1.HostDiskExists}}),
			want: []string{volume + ".hostDisk: HostDisk feature gate is not enabled"}},
		{name: "bad host disk", config: gated, spec: withSource(v1.VolumeSource{HostDisk: &v1.HostDisk{Type: "File"}}), want: []string{
			volume + ".hostDisk.path: required for hostDisk", volume + ".hostDisk.type: invalid value 'File'",
		}},
		{name: "capacity of a disk that exists", config: gated, spec: withSource(v1.VolumeSource{HostDisk: &v1.HostDisk{
			Path: "/d", Type: v1.HostDiskExists, Capacity: *quantityOf("1Gi")}}),
			want: []string{volume + ".hostDisk.capacity: equal to 'DiskOrCreate'"}},
		{name: "too many", spec: newSpec(func(s *v1.VirtualMachineInstanceSpec) { s.Volumes = make([]v1.Volume, 257) }),
			want: []string{"spec.volumes: exceeds the 256 element limit"}},
	})
}

func TestCloudInitRules(t *testing.T) {
	const source = "spec.volumes[0].cloudInitNoCloud"
	noCloud := func(s v1.CloudInitNoCloudSource) *v1.VirtualMachineInstanceSpec {
		return newSpec(withVolume("ci", v1.VolumeSource{CloudInitNoCloud: &s}))
	}
	long := strings.Repeat("x", 2049)
	secret := &corev1.LocalObjectReference{Name: "s"}
	runRules(t, []ruleCase{
		{name: "inline", spec: noCloud(v1.CloudInitNoCloudSource{UserData: "#cloud-config", NetworkData: "version: 2"})},
		{name: "secret", spec: noCloud(v1.CloudInitNoCloudSource{UserDataSecretRef: secret})},
		{name: "as long as it may be", spec: noCloud(v1.CloudInitNoCloudSource{UserData: long[1:]})},
		{name: "nothing", spec: noCloud(v1.CloudInitNoCloudSource{}), want: []string{source + ": at least one userdatasource"}},
		{name: "two sources", spec: noCloud(v1.CloudInitNoCloudSource{UserData: "a", UserDataSecretRef: secret}),
			want: []string{source + ": only one userdata source"}},
		{name: "not base64", spec: noCloud(v1.CloudInitNoCloudSource{UserDataBase64: "***"}),
			want: []string{source + ".userDataBase64: not a valid base64 value"}},
		{name: "long", spec: noCloud(v1.CloudInitNoCloudSource{UserData: long}),
			want: []string{source + ": userdata exceeds 2048 byte limit. Should use UserDataSecretRef"}},
		{name: "long base64", spec: noCloud(v1.CloudInitNoCloudSource{NetworkDataBase64: base64.StdEncoding.EncodeToString([]byte(long))}),
			want: []string{source + ": networkdata exceeds 2048 byte limit. Should use NetworkDataSecretRef"}},
		{name: "two volumes", spec: newSpec(
			withVolume("a", v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "a"}}),
			withVolume("b", v1.VolumeSource{CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{UserData: "a"}}),
		), want: []string{"spec.volumes: max one cloudInit"}},
	})
}

// nic makes a masquerade interface on the Pod's network and changes it.
func nic(change func(*v1.Interface)) *v1.VirtualMachineInstanceSpec {
	iface := masquerade()
	change(&iface)
	return newSpec(withInterface(iface))
}

func TestNetworkRules(t *testing.T) {
	const iface = "spec.domain.devices.interfaces[0]"
	multus := v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "net"}}
	bridge := func(name string) v1.Interface {
		return v1.Interface{Name: name, InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}}
	}
	runRules(t, []ruleCase{
		{name: "masquerade", spec: nic(func(i *v1.Interface) { i.MacAddress, i.Model, i.ACPIIndex = "DE-AD-00-00-BE-AF", "e1000", 1 })},
		{name: "bridge on multus", spec: newSpec(withNIC(bridge("a"), multus))},
		{name: "no network", spec: newSpec(func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.Interfaces = []v1.Interface{masquerade()} }),
			want: []string{iface + ".name: 'default' not found"}},
		{name: "no interface", spec: newSpec(func(s *v1.VirtualMachineInstanceSpec) {
			s.Networks = []v1.Network{{Name: "a", NetworkSource: multus}}
		}), want: []string{"spec.networks[0].name: 'a' not found"}},
		{name: "two on the Pod's network", spec: newSpec(withInterface(masquerade()), withInterface(bridge("b"))),
			want: []string{"spec.networks: more than one interface is connected to a pod network"}},
		{name: "same name", spec: newSpec(withNIC(bridge("a"), multus), withNIC(bridge("a"), multus)), want: []string{
			"spec.networks[1].name: Duplicate", "spec.domain.devices.interfaces[1].name: Only one interface",
		}},
		{name: "masquerade on multus", spec: newSpec(withNIC(masquerade(), multus)),
			want: []string{iface + ".masquerade: only implemented with pod network"}},
		{name: "no type", spec: newSpec(withNIC(bridge("a"), v1.NetworkSource{})), want: []string{"spec.networks[0]: should have a network type"}},
		{name: "two types", spec: newSpec(withNIC(bridge("a"), v1.NetworkSource{Pod: &v1.PodNetwork{}, Multus: multus.Multus})),
			want: []string{"spec.networks[0]: only one network type"}},
		{name: "multus without a name", spec: newSpec(withNIC(bridge("a"), v1.NetworkSource{Multus: &v1.MultusNetwork{}})),
			want: []string{"spec.networks[0].multus.networkName: must have a networkName"}},
		{name: "multus default beside the Pod's", spec: newSpec(withInterface(masquerade()),
			withNIC(bridge("b"), v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "n", Default: true}})),
			want: []string{"spec.networks: Pod network cannot be defined when Multus default"}},
		{name: "plugin and method", spec: nic(func(i *v1.Interface) { i.Binding = &v1.PluginBinding{Name: "p"} }), want: []string{iface + ".binding: cannot have both"}},
		{name: "slirp", spec: nic(func(i *v1.Interface) {
			i.InterfaceBindingMethod = v1.InterfaceBindingMethod{DeprecatedSlirp: &v1.DeprecatedInterfaceSlirp{}}
		}), want: []string{iface + ".slirp: discontinued since v1.3"}},
		{name: "bridge that the cluster forbids", spec: newSpec(withInterface(bridge("a"))), want: []string{iface + ".bridge: not enabled"},
			config: &v1.KubeVirtConfiguration{
				NetworkConfiguration: &v1.NetworkConfiguration{PermitBridgeInterfaceOnPodNetwork: ptr.To(false)}}},
		{name: "model", spec: nic(func(i *v1.Interface) { i.Model = "ne1000" }), want: []string{iface + ".model: uses model ne1000"}},
		{name: "bad mac", spec: nic(func(i *v1.Interface) { i.MacAddress = "xx" }), want: []string{iface + ".macAddress: malformed"}},
		{name: "long mac", spec: nic(func(i *v1.Interface) { i.MacAddress = "02:00:5e:10:00:00:00:01" }), want: []string{iface + ".macAddress: too long"}},
		{name: "reserved mac", spec: nic(func(i *v1.Interface) { i.MacAddress = "02:00:00:00:00:00" }), want: []string{iface + ".macAddress: reserved for the in-pod bridge"}},
		{name: "pci address", spec: nic(func(i *v1.Interface) { i.PciAddress = "1" }), want: []string{iface + ".pciAddress: malformed"}},
		{name: "name", spec: nic(func(i *v1.Interface) { i.Name = "a.b" }), want: []string{iface + ".name: can only contain"}},
		{name: "state", spec: nic(func(i *v1.Interface) { i.State = "half" }), want: []string{iface + ".state: state value is unsupported"}},
		{name: "link down", spec: nic(func(i *v1.Interface) { i.State = v1.InterfaceStateLinkDown })},
		{name: "absent masquerade", spec: nic(func(i *v1.Interface) { i.State = v1.InterfaceStateAbsent }), want: []string{
			iface + ".state: supported only for bridge", iface + ".state: not supported on default networks"}},
	})
}

func TestPortAndDHCPRules(t *testing.T) {
	const iface = "spec.domain.devices.interfaces[0]"
	ports := func(ports ...v1.Port) *v1.VirtualMachineInstanceSpec {
		return nic(func(i *v1.Interface) { i.Ports = ports })
	}
	dhcp := func(options v1.DHCPOptions) *v1.VirtualMachineInstanceSpec {
		return nic(func(i *v1.Interface) { i.DHCPOptions = &options })
	}
	runRules(t, []ruleCase{
		{name: "ports", spec: ports(v1.Port{Name: "http", Port: 80}, v1.Port{Name: "dns", Port: 53, Protocol: "UDP"}, v1.Port{Port: 65535})},
		{name: "no number", spec: ports(v1.Port{Name: "http"}), want: []string{iface + ".ports[0].port: mandatory"}},
		{name: "out of range", spec: ports(v1.Port{Port: 65537}, v1.Port{Port: -1}), want: []string{
			iface + ".ports[0].port: 0 < x < 65536", iface + ".ports[1].port: 0 < x < 65536",
		}},
		{name: "protocol", spec: ports(v1.Port{Port: 1, Protocol: "SCTP"}), want: []string{iface + ".ports[0].protocol: only TCP or UDP"}},
		{name: "names", spec: ports(v1.Port{Port: 1, Name: "a"}, v1.Port{Port: 2, Name: "a"}, v1.Port{Port: 3, Name: "a_b"}), want: []string{
			iface + ".ports[1].name: Duplicate name", iface + ".ports[2].name: Invalid name of the port",
		}},
		{name: "dhcp", spec: dhcp(v1.DHCPOptions{NTPServers: []string{"10.0.0.1"}, PrivateOptions: []v1.DHCPPrivateOptions{{Option: 224}, {Option: 254}}})},
		{name: "ntp", spec: dhcp(v1.DHCPOptions{NTPServers: []string{"::1", "ntp"}}), want: []string{
			iface + ".dhcpOptions.ntpServers[0]: valid IPv4", iface + ".dhcpOptions.ntpServers[1]: valid IPv4",
		}},
		{name: "private options", spec: dhcp(v1.DHCPOptions{PrivateOptions: []v1.DHCPPrivateOptions{{Option: 223}, {Option: 240}, {Option: 240}}}), want: []string{
			iface + ".dhcpOptions.privateOptions[0].option: range 224 to 254",
			iface + ".dhcpOptions.privateOptions[2].option: Duplicates",
		}},
	})
}

func TestPortRangeRules(t *testing.T) {
	const at = "spec.domain.devices.interfaces[0].portRanges"
	gated := &v1.KubeVirtConfiguration{
		DeveloperConfiguration: &v1.DeveloperConfiguration{FeatureGates: []string{"PortRangesSpec"}}}
	ranges := func(ranges ...v1.PortRange) *v1.VirtualMachineInstanceSpec {
		return nic(func(i *v1.Interface) { i.PortRanges = ranges })
	}
	tcp := func(start, end int32) v1.PortRange { return v1.PortRange{Protocol: "TCP", Start: start, End: end} }
	runRules(t, []ruleCase{
		{name: "without the gate", spec: ranges(tcp(80, 90)), want: []string{at + ": PortRangesSpec feature gate is not enabled"}},
		{name: "one", config: gated, spec: ranges(tcp(80, 90))},
		{name: "one port", config: gated, spec: ranges(tcp(22, 22))},
		{name: "two", config: gated, spec: ranges(tcp(80, 100), tcp(101, 65535))},
		{name: "too many that overlap", config: gated, spec: ranges(slices.Repeat([]v1.PortRange{tcp(80, 90)}, 11)...), want: []string{at + ": must have at most 10"}},
		{name: "two protocols", config: gated, spec: ranges(tcp(80, 200), v1.PortRange{Protocol: "UDP", Start: 150, End: 300})},
		{name: "overlap", config: gated, spec: ranges(tcp(80, 200), tcp(200, 300)), want: []string{at + "[1]: [80-200] and [200-300] overlap"}},
		{name: "protocol", config: gated, spec: ranges(v1.PortRange{Protocol: "SCTP", Start: 80, End: 90}), want: []string{at + "[0].protocol: only TCP or UDP"}},
		{name: "start", config: gated, spec: ranges(tcp(0, 100)), want: []string{at + "[0].start: 0 < x < 65536"}},
		{name: "end", config: gated, spec: ranges(tcp(80, 70000)), want: []string{at + "[0].end: 0 < x < 65536"}},
		{name: "backwards", config: gated, spec: ranges(tcp(100, 80)), want: []string{at + "[0].start: less than or equal to end"}},
		{name: "with ports", config: gated, spec: nic(func(i *v1.Interface) {
			i.Ports, i.PortRanges = []v1.Port{{Port: 22}}, []v1.PortRange{tcp(80, 90)}
		}), want: []string{at + ": both ports and portRanges"}},
		{name: "bridge", config: gated, spec: nic(func(i *v1.Interface) {
			i.InterfaceBindingMethod = v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}
			i.PortRanges = []v1.PortRange{tcp(80, 90)}
		}), want: []string{at + ": only supported on masquerade"}},
	})
}

func TestOtherDeviceRules(t *testing.T) {
	devices := func(change func(*v1.Devices)) *v1.VirtualMachineInstanceSpec {
		return newSpec(func(s *v1.VirtualMachineInstanceSpec) { change(&s.Domain.Devices) })
	}
	policy := func(p v1.IOThreadsPolicy) *v1.VirtualMachineInstanceSpec {
		return newSpec(func(s *v1.VirtualMachineInstanceSpec) { s.Domain.IOThreadsPolicy = &p })
	}
	const at = "spec.domain.devices."
	runRules(t, []ruleCase{
		{name: "input", spec: devices(func(d *v1.Devices) { d.Inputs = []v1.Input{{Name: "t", Type: "tablet", Bus: "usb"}} })},
		{name: "bad input", spec: devices(func(d *v1.Devices) { d.Inputs = []v1.Input{{Name: "t", Type: "mouse", Bus: "ps2"}} }), want: []string{
			at + "inputs[0].bus: only virtio or usb", at + "inputs[0].type: only tablet or keyboard",
		}},
		{name: "sound", spec: devices(func(d *v1.Devices) { d.Sound = &v1.SoundDevice{Model: "sb16"} }), want: []string{
			at + "sound.model: 'ich9' or 'ac97'", at + "sound.name: requires a name",
		}},
		{name: "I/O threads", spec: policy(v1.IOThreadsPolicyAuto)},
		{name: "I/O threads policy", spec: policy("many"), want: []string{"spec.domain.ioThreadsPolicy: Invalid IOThreadsPolicy"}},
		{name: "I/O threads pool", spec: policy(v1.IOThreadsPolicySupplementalPool),
			want: []string{"spec.domain.ioThreads.supplementalPoolThreadCount: positive"}},
	})
}

func TestProbeRules(t *testing.T) {
	probed := func(probe v1.Probe, options ...specOption) *v1.VirtualMachineInstanceSpec {
		return newSpec(append(options, func(s *v1.VirtualMachineInstanceSpec) { s.ReadinessProbe = &probe })...)
	}
	http, ping := v1.Handler{HTTPGet: &corev1.HTTPGetAction{}}, v1.Handler{GuestAgentPing: &v1.GuestAgentPing{}}
	both := v1.Handler{HTTPGet: &corev1.HTTPGetAction{}, TCPSocket: &corev1.TCPSocketAction{}}
	bare := func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.AutoattachPodInterface = ptr.To(false) }
	runRules(t, []ruleCase{
		{name: "http", spec: probed(v1.Probe{Handler: http})},
		{name: "ping without a network", spec: probed(v1.Probe{Handler: ping}, bare)},
		{name: "nothing", spec: probed(v1.Probe{}), want: []string{"spec.readinessProbe: must be set if"}},
		{name: "two", spec: probed(v1.Probe{Handler: both}), want: []string{"spec.readinessProbe: exactly one probe type"}},
		{name: "http without a network", spec: probed(v1.Probe{Handler: http}, bare),
			want: []string{"spec.readinessProbe.httpGet: only allowed if the Pod Network"}},
		{name: "paused with liveness", spec: newSpec(func(s *v1.VirtualMachineInstanceSpec) {
			s.StartStrategy, s.LivenessProbe = ptr.To(v1.StartStrategyPaused), &v1.Probe{Handler: ping}
		}), want: []string{"spec.startStrategy: Pausing VMI with LivenessProbe"}},
	})
}

func TestAccessCredentialRules(t *testing.T) {
	const at = "spec.accessCredentials[0]"
	withCredential := func(credential v1.AccessCredential) *v1.VirtualMachineInstanceSpec {
		return newSpec(func(s *v1.VirtualMachineInstanceSpec) { s.AccessCredentials = []v1.AccessCredential{credential} })
	}
	key := func(method v1.SSHPublicKeyAccessCredentialPropagationMethod) v1.AccessCredential {
		return v1.AccessCredential{SSHPublicKey: &v1.SSHPublicKeyAccessCredential{
			Source:            v1.SSHPublicKeyAccessCredentialSource{Secret: &v1.AccessCredentialSecretSource{SecretName: "s"}},
			PropagationMethod: method,
		}}
	}
	agent := &v1.QemuGuestAgentSSHPublicKeyAccessCredentialPropagation{Users: []string{"root"}}
	runRules(t, []ruleCase{
		{name: "key by the agent", spec: withCredential(key(v1.SSHPublicKeyAccessCredentialPropagationMethod{QemuGuestAgent: agent}))},
		{name: "nothing", spec: withCredential(v1.AccessCredential{}), want: []string{at + ": exactly one access credential type"}},
		{name: "no method", spec: withCredential(key(v1.SSHPublicKeyAccessCredentialPropagationMethod{})),
			want: []string{at + ".sshPublicKey.propagationMethod: exactly one propagationMethod"}},
		{name: "no user", spec: withCredential(key(v1.SSHPublicKeyAccessCredentialPropagationMethod{
			QemuGuestAgent: &v1.QemuGuestAgentSSHPublicKeyAccessCredentialPropagation{}})),
			want: []string{at + ".sshPublicKey.propagationMethod.qemuGuestAgent.users: at least one user"}},
		{name: "no volume", spec: withCredential(key(v1.SSHPublicKeyAccessCredentialPropagationMethod{
			NoCloud: &v1.NoCloudSSHPublicKeyAccessCredentialPropagation{}})),
			want: []string{at + ".sshPublicKey.propagationMethod: requires a noCloud volume"}},
		{name: "empty password", spec: withCredential(v1.AccessCredential{UserPassword: &v1.UserPasswordAccessCredential{}}), want: []string{
			at + ".userPassword.source: exactly one source",
			at + ".userPassword.propagationMethod: exactly one propagationMethod",
		}},
	})
}
