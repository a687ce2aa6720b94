// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// TPM models. As in KubeVirt, a persistent TPM has another model, so that a guest from KubeVirt keeps its device.
// Source: kubevirt/kubevirt pkg/virt-launcher/virtwrap/converter/compute/tpm.go
const (
	tpmModel           = "tpm-tis"
	tpmModelPersistent = "tpm-crb"
)

// configureTPM adds an emulated TPM 2.0. libvirt runs swtpm for it.
func configureTPM(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	if !vmi.Spec.HasTPM() {
		return nil
	}
	model, emulator := tpmModel, &libvirtxml.DomainTPMBackendEmulator{Version: "2.0"}
	if vmi.Spec.HasPersistentTPM() {
		model = tpmModelPersistent
		emulator.PersistentState = "yes"
		emulator.Source = &libvirtxml.DomainTPMBackendSource{Dir: &libvirtxml.DomainTPMBackendSourceDir{
			Path: launcherpod.TPMStateDir(firmwareUUID(vmi)),
		}}
	}
	domain.Devices.TPMs = []libvirtxml.DomainTPM{{Model: model, Backend: &libvirtxml.DomainTPMBackend{Emulator: emulator}}}
	return nil
}
