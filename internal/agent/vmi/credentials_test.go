// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"errors"
	"slices"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

// credentialsByAgent sets the keys of one Secret for two users, more keys for one of them, and passwords from another
// Secret.
func credentialsByAgent(vmi *v1.VirtualMachineInstance) {
	keysFor := func(secret string, users ...string) v1.AccessCredential {
		return v1.AccessCredential{SSHPublicKey: &v1.SSHPublicKeyAccessCredential{
			Source: v1.SSHPublicKeyAccessCredentialSource{Secret: &v1.AccessCredentialSecretSource{SecretName: secret}},
			PropagationMethod: v1.SSHPublicKeyAccessCredentialPropagationMethod{
				QemuGuestAgent: &v1.QemuGuestAgentSSHPublicKeyAccessCredentialPropagation{Users: users},
			},
		}}
	}
	vmi.Spec.AccessCredentials = []v1.AccessCredential{
		keysFor("keys", "debian", "root"), keysFor("more", "debian"),
		{UserPassword: &v1.UserPasswordAccessCredential{
			Source: v1.UserPasswordAccessCredentialSource{Secret: &v1.AccessCredentialSecretSource{SecretName: "passwords"}},
			PropagationMethod: v1.UserPasswordAccessCredentialPropagationMethod{
				QemuGuestAgent: &v1.QemuGuestAgentUserPasswordAccessCredentialPropagation{},
			},
		}},
	}
}

var _ = Describe("Access credentials", func() {
	var launchers *libvirt.Node
	var a *agent
	BeforeEach(func() {
		launchers = libvirt.NewNode()
		a = startAgent(launchers)
	})

	It("are set once the guest agent responds, and a failure is reported", func() {
		g := makeGuest(credentialsByAgent).schedule(launchers).
			writeVolume(media.SecretVolume, "keys-access-cred",
				map[string]string{"a": "ssh-ed25519 A\n", "b": "# mine\nssh-ed25519 B\nssh-ed25519 C"}).
			writeVolume(media.SecretVolume, "more-access-cred", map[string]string{"d": "ssh-ed25519 D"}).
			writeVolume(media.SecretVolume, "passwords-access-cred", map[string]string{"root": " secret\n", "nobody": "\n"}).
			assign()
		c := g.expectCondition(v1.VirtualMachineInstanceAccessCredentialsSynchronized, corev1.ConditionFalse, "")
		Expect(c.Message).To(Equal("Guest agent is offline"))
		a.expectEvent("AccessCredentialsSyncFailed")

		g.launcher.SetGuest(&hypervisor.GuestInfo{})
		g.expectCondition(v1.VirtualMachineInstanceAccessCredentialsSynchronized, corev1.ConditionTrue, "")
		a.expectEvent("AccessCredentialsSyncSuccess")
		common := []string{"ssh-ed25519 A", "ssh-ed25519 B", "ssh-ed25519 C"}
		Expect(g.launcher.InGuest()).To(Equal(hypervisor.Credentials{
			Keys:      map[string][]string{"debian": append(common, "ssh-ed25519 D"), "root": common},
			Passwords: map[string]string{"root": "secret"},
		}))

		g.launcher.Fail("credentials", errors.New("the guest does not take the password of user \"root\""))
		g.launcher.Notify()
		c = g.expectCondition(v1.VirtualMachineInstanceAccessCredentialsSynchronized, corev1.ConditionFalse, "")
		Expect(c.Message).To(ContainSubstring("root"))
	})

	It("that cloud-init sets are not set by the guest agent", func() {
		g := makeGuest(credentialsByAgent, func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.AccessCredentials = vmi.Spec.AccessCredentials[:1]
			vmi.Spec.AccessCredentials[0].SSHPublicKey.PropagationMethod = v1.SSHPublicKeyAccessCredentialPropagationMethod{
				NoCloud: &v1.NoCloudSSHPublicKeyAccessCredentialPropagation{},
			}
		}).schedule(launchers).
			writeVolume(media.SecretVolume, "keys-access-cred", map[string]string{"a": "ssh-ed25519 A"}).assign()
		g.expectPhase(v1.Running)
		g.expectNoCondition(v1.VirtualMachineInstanceAccessCredentialsSynchronized)
		Expect(g.launcher.Content("seed.iso")).To(ContainSubstring(`"public-keys":{"0":"ssh-ed25519 A"}`))
	})
})

var _ = Describe("Tags of devices", func() {
	It("are on the config drive with the addresses that libvirt chose", func() {
		launchers := libvirt.NewNode()
		startAgent(launchers)
		g := makeGuest(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Volumes[1].VolumeSource = v1.VolumeSource{
				CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{UserData: "#"}}
			vmi.Spec.Domain.Devices.Interfaces[0].Tag = "blue"
			vmi.Spec.Domain.Devices.Disks[0].Tag = "root"
		}).schedule(launchers).assign()
		g.expectPhase(v1.Running)
		running := g.launcher.Snapshot().XML.Devices
		medium := string(g.launcher.Content("seed.iso"))
		Expect(*running.Interfaces[0].Address.PCI.Bus).To(BeNumerically("==", 3))
		Expect(medium).To(ContainSubstring(`{"type":"nic","bus":"pci","address":"0000:03:00.0","mac":"` + running.Interfaces[0].MAC.Address + `","tags":["blue"]}`))
		Expect(medium).To(ContainSubstring(`{"type":"disk","bus":"pci","address":"0000:01:00.0","tags":["root"]}`))
	})
})

// manySecrets contains a Secret of 1 MiB, the largest size, for every name.
type manySecrets struct{ media.Content }

func (manySecrets) Files(media.VolumeKind, string) (map[string][]byte, error) {
	return map[string][]byte{"root": make([]byte, corev1.MaxSecretSize)}, nil
}

func TestCredentialsAreLimited(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	credentialsByAgent(vmi)
	credentials := vmi.Spec.AccessCredentials
	if _, err := agentvmi.ReadCredentials(credentials, manySecrets{}); err != nil {
		t.Errorf("three Secrets: %v", err)
	}
	if _, err := agentvmi.ReadCredentials(slices.Concat(credentials, credentials), manySecrets{}); err == nil {
		t.Error("six Secrets of 1 MiB are accepted")
	}
}
