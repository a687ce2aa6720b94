// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

func noCloudSource() v1.VolumeSource {
	return v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "#cloud-config"}}
}

func configDriveSource() v1.VolumeSource {
	return v1.VolumeSource{CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{UserData: "#cloud-config"}}
}

// sshKeys returns a credential with the keys of a Secret.
func sshKeys(secret string, method v1.SSHPublicKeyAccessCredentialPropagationMethod) v1.AccessCredential {
	return v1.AccessCredential{SSHPublicKey: &v1.SSHPublicKeyAccessCredential{
		Source: v1.SSHPublicKeyAccessCredentialSource{
			Secret: &v1.AccessCredentialSecretSource{SecretName: secret}},
		PropagationMethod: method,
	}}
}

func TestMetadata(t *testing.T) {
	byNoCloud := v1.SSHPublicKeyAccessCredentialPropagationMethod{
		NoCloud: &v1.NoCloudSSHPublicKeyAccessCredentialPropagation{}}
	byConfigDrive := v1.SSHPublicKeyAccessCredentialPropagationMethod{
		ConfigDrive: &v1.ConfigDriveSSHPublicKeyAccessCredentialPropagation{}}
	byAgent := v1.SSHPublicKeyAccessCredentialPropagationMethod{
		QemuGuestAgent: &v1.QemuGuestAgentSSHPublicKeyAccessCredentialPropagation{Users: []string{"u"}},
	}
	all := func(vmi *v1.VirtualMachineInstance) {
		vmi.Annotations = map[string]string{v1.InstancetypeAnnotation: "small"}
		vmi.Spec.AccessCredentials = []v1.AccessCredential{
			sshKeys("one", byNoCloud), sshKeys("drive", byConfigDrive), sshKeys("agent", byAgent),
			sshKeys("other.one", byNoCloud),
		}
	}
	volumes := secrets(map[string]map[string]string{
		"one-access-cred": {"b": "ssh-ed25519 B", "a": "ssh-ed25519 A\n", "empty": "", "line": "\n"}, "drive-access-cred": {"k": "ssh-ed25519 D"},
		launcherpod.CredentialsVolume("other.one"): {"k": "ssh-ed25519 C"},
	})
	for _, tc := range []struct {
		name    string
		vmi     *v1.VirtualMachineInstance
		content content
		want    string
		message string
	}{
		{name: "NoCloud", vmi: vmiWith(noCloudSource(), all), content: volumes,
			want: `{"instance-type":"small","instance-id":"5d307ca9-b3ef-428c-8861-06e72d69f223","local-hostname":"vm",` +
				`"public-keys":{"0":"ssh-ed25519 A","1":"ssh-ed25519 B","2":"ssh-ed25519 C"}}`},
		{name: "config drive", vmi: vmiWith(configDriveSource(), all), content: volumes,
			want: `{"instance_type":"small","instance_id":"vm.example.ns","local_hostname":"vm","hostname":"vm",` +
				`"uuid":"5d307ca9-b3ef-428c-8861-06e72d69f223","public_keys":{"0":"ssh-ed25519 D"}}`},
		{name: "an instance type of the cluster", vmi: vmiWith(noCloudSource(), func(vmi *v1.VirtualMachineInstance) {
			vmi.Annotations = map[string]string{v1.InstancetypeAnnotation: "small", v1.ClusterInstancetypeAnnotation: "large"}
		}), want: `{"instance-type":"large","instance-id":`},
		{name: "too many keys", vmi: vmiWith(noCloudSource(), all),
			content: secrets(map[string]map[string]string{"one-access-cred": {"a": strings.Repeat("x", maxFileBytes+1)}}),
			message: "Secret one of accessCredentials"},
		{name: "too many keys in all", vmi: vmiWith(noCloudSource(), all),
			content: secrets(map[string]map[string]string{
				"one-access-cred":                          {"a": strings.Repeat("x", maxFileBytes)},
				launcherpod.CredentialsVolume("other.one"): {"k": "y"},
			}),
			message: "too much for a medium: the keys"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			launcher := libvirt.NewNode().Launcher("pod")
			_, err := Prepare(context.Background(), launcher, tc.content.write(t), limits, tc.vmi)
			if tc.message != "" {
				expectError(t, err, true, false, tc.message)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(launcher.Content("v.iso"), []byte(tc.want)) {
				t.Errorf("the medium does not contain %s", tc.want)
			}
		})
	}
}

// tagged adds a tag to a network interface and to a disk of each bus.
func tagged(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "nic", Tag: "blue"}, {Name: "plain"}}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{
		{Name: "v"}, {Name: "virtio", Tag: "data", Serial: "s1"}, {Name: "sata", Tag: "cold"}, {Name: "usb", Tag: "stick"},
	}
}

func TestWriteDeviceMetadata(t *testing.T) {
	n := ptr.To[uint]
	alias := func(name string) *libvirtxml.DomainAlias { return &libvirtxml.DomainAlias{Name: name} }
	defined := &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{
		Interfaces: []libvirtxml.DomainInterface{
			{Alias: alias(domain.InterfaceAlias("plain")), MAC: &libvirtxml.DomainInterfaceMAC{Address: "02:00:00:00:00:02"}},
			{Alias: alias(domain.InterfaceAlias("nic")), MAC: &libvirtxml.DomainInterfaceMAC{Address: "02:00:00:00:00:01"},
				Address: &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{Domain: n(0), Bus: n(1), Slot: n(31),
					Function: n(7)}}},
		},
		Disks: []libvirtxml.DomainDisk{
			{Alias: alias(domain.DiskAlias("virtio")), Serial: "s1", Target: &libvirtxml.DomainDiskTarget{Bus: "virtio"},
				Address: &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{Domain: n(0), Bus: n(16), Slot: n(0),
					Function: n(0)}}},
			{Alias: alias(domain.DiskAlias("sata")), Target: &libvirtxml.DomainDiskTarget{Bus: "sata"},
				Address: &libvirtxml.DomainAddress{Drive: &libvirtxml.DomainAddressDrive{Controller: n(0), Bus: n(0), Target: n(0),
					Unit: n(3)}}},
			{Alias: alias(domain.DiskAlias("usb")), Target: &libvirtxml.DomainDiskTarget{Bus: "usb"},
				Address: &libvirtxml.DomainAddress{USB: &libvirtxml.DomainAddressUSB{Bus: n(0), Port: "2"}}},
		},
	}}
	vmi := vmiWith(configDriveSource(), tagged)
	launcher, result := libvirt.NewNode().Launcher("pod"), &Result{Disks: map[string]domain.DiskFact{}}
	if err := WriteDeviceMetadata(context.Background(), launcher, content{}.write(t), vmi, defined, result); err != nil {
		t.Fatal(err)
	}
	const want = `"devices":[{"type":"nic","bus":"pci","address":"0000:01:1f.7","mac":"02:00:00:00:00:01","tags":["blue"]},` +
		`{"type":"disk","bus":"pci","address":"0000:10:00.0","serial":"s1","tags":["data"]},` +
		`{"type":"disk","bus":"sata","address":"0:0:0:3","tags":["cold"]},{"type":"disk","bus":"usb","address":"0:2","tags":["stick"]}]`
	medium := launcher.Content("v.iso")
	if !bytes.Contains(medium, []byte(want)) {
		t.Errorf("the medium does not contain %s", want)
	}
	if diff := cmp.Diff(int64(len(medium)), result.Disks["v"].CapacityBytes); diff != "" {
		t.Error(diff)
	}
}

func TestHasTaggedDevices(t *testing.T) {
	for name, tc := range map[string]struct {
		vmi  *v1.VirtualMachineInstance
		want bool
	}{
		"tags":            {vmiWith(configDriveSource(), tagged), true},
		"no tags":         {vmiWith(configDriveSource()), false},
		"no config drive": {vmiWith(noCloudSource(), tagged), false},
	} {
		if got := HasTaggedDevices(tc.vmi); got != tc.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
