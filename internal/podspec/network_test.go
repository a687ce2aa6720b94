// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

// nic changes the VMI's first interface.
func nic(vmi *builder.VMI, change func(*v1.Interface)) *builder.VMI {
	return vmi.With(func(vmi *v1.VirtualMachineInstance) { change(&vmi.Spec.Domain.Devices.Interfaces[0]) })
}

func dhcpOptions(options v1.DHCPOptions) *builder.VMI {
	return nic(makeVMI().Masquerade(), func(i *v1.Interface) { i.DHCPOptions = &options })
}

func TestDHCPOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		options v1.DHCPOptions
		want    []string
	}{
		"none": {v1.DHCPOptions{}, nil},
		"all": {v1.DHCPOptions{
			BootFileName: "ipxe/snp.efi", TFTPServerName: "tftp.example", NTPServers: []string{"192.0.2.1", "010.0.0.2"},
			PrivateOptions: []v1.DHCPPrivateOptions{{Option: 240, Value: "a $(b)"}, {Option: 254}},
		}, []string{"eth0,67,ipxe%2Fsnp.efi", "eth0,66,tftp.example", "eth0,42,192.0.2.1+10.0.0.2", "eth0,240,a+%24%28b%29",
			"eth0,254,"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := podspec.Build(dhcpOptions(tc.options).Obj(), config())
			if err != nil {
				t.Fatal(err)
			}
			if got := flagValues(pod.Spec.Containers[0].Args, "--dhcp-option"); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func flagValues(args []string, flag string) []string {
	var values []string
	for i := range args {
		if args[i] == flag {
			values = append(values, args[i+1])
		}
	}
	return values
}

func TestDHCPOptionsRefused(t *testing.T) {
	const path = "spec.domain.devices.interfaces[0].dhcpOptions"
	private := func(option int, bytes int) v1.DHCPPrivateOptions {
		return v1.DHCPPrivateOptions{Option: option, Value: strings.Repeat("x", bytes)}
	}
	for want, options := range map[string]v1.DHCPOptions{
		path + ".bootFileName: Too long":   {BootFileName: strings.Repeat("x", 256)},
		path + ".tftpServerName: Too long": {TFTPServerName: strings.Repeat("x", 256)},
		path + ".privateOptions[1].value: Too long": {PrivateOptions: []v1.DHCPPrivateOptions{private(240, 1),
			private(241, 256)}},
		path + ".privateOptions[0].option: Invalid": {PrivateOptions: []v1.DHCPPrivateOptions{private(3, 1)}},
		path + ".ntpServers: Too long":              {NTPServers: slices.Repeat([]string{"192.0.2.1"}, 64)},
		path + ".ntpServers[1]: Invalid":            {NTPServers: []string{"192.0.2.1", "::1"}},
		path + ": Invalid value: 514: all options": {PrivateOptions: []v1.DHCPPrivateOptions{private(240, 255),
			private(241, 255)}},
		path + ".ntpServers[0]: Invalid value: \"x\"": {NTPServers: []string{"x"}},
	} {
		t.Run(want, func(t *testing.T) {
			if _, err := podspec.Build(dhcpOptions(options).Obj(), config()); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want an error with %q", err, want)
			}
		})
	}
	fits := v1.DHCPOptions{PrivateOptions: []v1.DHCPPrivateOptions{private(240, 255), private(241, 253)}}
	if _, err := podspec.Build(dhcpOptions(fits).Obj(), config()); err != nil {
		t.Errorf("512 bytes: %v", err)
	}
}

const networksAnnotation = "k8s.v1.cni.cncf.io/networks"

func TestAbsentInterfacesAreNotAttached(t *testing.T) {
	cfg := config()
	cfg.NetworkResources = map[string]corev1.ResourceName{"blue": "example.com/blue", "red": "example.com/red"}
	vmi := makeVMI().Masquerade().Multus("blue", "blue").Multus("red", "red").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Interfaces[1].State = v1.InterfaceStateAbsent
	})
	pod, err := podspec.Build(vmi.Obj(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := pod.Annotations[networksAnnotation], `[{"name":"red","namespace":"default","interface":"podb1f51a511f1"}]`; got != want {
		t.Errorf("requested %s, want %s", got, want)
	}
	resources := pod.Spec.Containers[0].Resources
	if _, found := resources.Requests["example.com/blue"]; found {
		t.Error("a device is taken for an absent interface")
	}
	if one := resources.Limits["example.com/red"]; one.Value() != 1 {
		t.Errorf("red's devices: %s", one.String())
	}
}

// Without secondary networks the user's annotation does not change.
func TestNetworksAnnotation(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi  *builder.VMI
		want string
	}{
		"none":         {makeVMI().Masquerade(), ""},
		"the user's":   {makeVMI().Masquerade().Annotation(networksAnnotation, "extra"), "extra"},
		"the networks": {makeVMI().Multus("blue", "blue").Annotation(networksAnnotation, "extra"), `[{"name":"blue","namespace":"default","interface":"pod16477688c0e"}]`},
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := podspec.Build(tc.vmi.Obj(), config())
			if err != nil {
				t.Fatal(err)
			}
			if got := pod.Annotations[networksAnnotation]; got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
