// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // UUID version 5 is defined with SHA-1; nothing is protected by it.
	"encoding/hex"
	"encoding/xml"
	"fmt"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// MetadataURI is the namespace of the domain's metadata, as in KubeVirt.
const MetadataURI = "http://kubevirt.io"

// uuidNamespace is the namespace in which KubeVirt derives a firmware UUID from a name
// (pkg/virt-controller/watch/vm/vm.go: 6a1a24a1-4061-4607-8bf4-a3963d0c5895).
var uuidNamespace = [16]byte{0x6a, 0x1a, 0x24, 0xa1, 0x40, 0x61, 0x46, 0x07, 0x8b, 0xf4, 0xa3, 0x96, 0x3d, 0x0c, 0x58,
	0x95}

// configureIdentity sets the type, the name and the UUID of the domain. The metadata contains the UID of the VMI, so
// that an agent recognizes a domain of an earlier VMI with the same name.
func configureIdentity(vmi *v1.VirtualMachineInstance, facts Facts, domain *libvirtxml.Domain) error {
	domain.Type = "kvm"
	if facts.Emulation {
		domain.Type = "qemu"
	}
	domain.Name = launcherpod.DomainName(vmi.Namespace, vmi.Name)
	domain.Title = vmi.Namespace + "/" + vmi.Name
	domain.UUID = firmwareUUID(vmi)

	var uid bytes.Buffer
	if err := xml.EscapeText(&uid, []byte(vmi.UID)); err != nil {
		return fmt.Errorf("metadata.uid: %w", err)
	}
	domain.Metadata = &libvirtxml.DomainMetadata{
		XML: fmt.Sprintf(`<kubevirt xmlns=%q><uid>%s</uid></kubevirt>`, MetadataURI, uid.String()),
	}
	return nil
}

// firmwareUUID returns the UUID of the guest's firmware. The webhook sets it in the spec. For a VMI that did not pass
// the webhook it is derived from the name as in KubeVirt, so that it does not change at restarts.
func firmwareUUID(vmi *v1.VirtualMachineInstance) string {
	if firmware := vmi.Spec.Domain.Firmware; firmware != nil && firmware.UUID != "" {
		return string(firmware.UUID)
	}
	return uuidFromName(vmi.Name)
}

// uuidFromName returns a UUID of version 5 (RFC 9562, section 5.5).
func uuidFromName(name string) string {
	hash := sha1.New() //nolint:gosec // see the import
	hash.Write(uuidNamespace[:])
	hash.Write([]byte(name))
	id := hash.Sum(nil)[:16]
	id[6] = id[6]&0x0f | 0x50
	id[8] = id[8]&0x3f | 0x80
	text := hex.EncodeToString(id)
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}
