// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package firmware has the identity of a guest's firmware, its UUID and serial number: their record on the VM, and how
// they are derived for a VM without one. It is pure.
package firmware

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// IdentityAnnotation of a start revision is the identity, one of those below, from which the firmware UUID and serial
// number of a VM without a Record are derived. A revision without it was created before there was a choice. It is also
// on the VM in the content of a snapshot. The annotation is Vireo's own.
const IdentityAnnotation = "kubevirt.io/firmware-identity"

// Identity is what the firmware UUID and serial number of a VM without a Record are derived from. docs/adr/0050 has the
// compatibility rules.
type Identity string

const (
	// FromUID derives UUID and serial number from the VM's UID: VMs never share them, and a VM that is created again gets
	// new ones.
	FromUID Identity = "vm-uid"
	// FromName derives the UUID from the VM's name and sets no serial number, as KubeVirt did for VMs without a UUID.
	FromName Identity = "vm-name"
)

var (
	// uuidsOfNames is the name space of firmware UUIDs derived from a VM's name.
	// Source: kubevirt/kubevirt pkg/virt-controller/watch/vm, firmwareUUIDns.
	uuidsOfNames = uuid.MustParse("6a1a24a1-4061-4607-8bf4-a3963d0c5895")
	// uuidsOfUIDs and serialsOfUIDs are the name spaces of those derived from a VM's UID.
	uuidsOfUIDs   = uuid.MustParse("0e35a5a4-9ff9-4ee9-a83a-2a7cbd9d2a51")
	serialsOfUIDs = uuid.MustParse("c9b9b0d7-5a1f-4b43-b3a4-7b1a1f0f4c68")
)

// Derive returns the record of the VM with a namespace, a name and a UID that has none yet. It is the same each time.
func Derive(namespace, name string, uid types.UID, from Identity) Record {
	record := Record{VM: recordedVM(namespace, name)}
	if from == FromName {
		record.UUID = uuid.NewSHA1(uuidsOfNames, []byte(name)).String()
		return record
	}
	record.UUID = uuid.NewSHA1(uuidsOfUIDs, []byte(uid)).String()
	record.Serial = uuid.NewSHA1(serialsOfUIDs, []byte(uid)).String()
	return record
}

// RecordAnnotation of a VM has its Record, as JSON. It is Vireo's own.
const RecordAnnotation = "kubevirt.io/guest-identity"

// maxRecord is how long a record may be, in bytes. The names of a namespace and of a VM have 316 characters at most.
const maxRecord = 1024

// Record is the firmware's identity that a VM's guest has at each start, as far as the VM's template does not set it.
// As an annotation, it outlives what a backup tool does not copy: the VM's UID and its status. docs/adr/0108 has the
// reasons.
type Record struct {
	// VM is the namespace and the name of the VM, as namespace/name. A copy of the annotation on another VM has no effect.
	VM string `json:"vm"`
	// UUID is the firmware's UUID.
	UUID string `json:"uuid"`
	// Serial is the serial number; empty for a VM that had none before records existed.
	Serial string `json:"serial,omitempty"`
}

// NewRecord returns a record with a new identity.
func NewRecord(namespace, name string) Record {
	return Record{VM: recordedVM(namespace, name), UUID: uuid.NewString(), Serial: uuid.NewString()}
}

func recordedVM(namespace, name string) string { return namespace + "/" + name }

// RecordOf returns the record of the VM with a namespace, a name and annotations. There is none if the annotation is
// missing, is that of another VM, or is not valid.
func RecordOf(namespace, name string, annotations map[string]string) (Record, bool) {
	text, record := annotations[RecordAnnotation], Record{}
	if text == "" || len(text) > maxRecord || json.Unmarshal([]byte(text), &record) != nil ||
		record.VM != recordedVM(namespace, name) {
		return Record{}, false
	}
	// libvirt would refuse anything else, or read it as another UUID.
	if uuid.Validate(record.UUID) != nil || record.Serial != "" && uuid.Validate(record.Serial) != nil {
		return Record{}, false
	}
	return record, true
}

// Text returns the value of the annotation.
func (r Record) Text() string {
	text, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("encode %+v: %v", r, err)) // It has only strings.
	}
	return string(text)
}

// Annotate sets the annotation of a VM.
func (r Record) Annotate(vm *metav1.ObjectMeta) {
	metav1.SetMetaDataAnnotation(vm, RecordAnnotation, r.Text())
}

// Apply sets the firmware UUID and the serial number that a spec leaves open.
func (r Record) Apply(spec *v1.VirtualMachineInstanceSpec) {
	if spec.Domain.Firmware == nil {
		spec.Domain.Firmware = &v1.Firmware{}
	}
	firmware := spec.Domain.Firmware
	if firmware.UUID == "" {
		firmware.UUID = types.UID(r.UUID)
	}
	if firmware.Serial == "" {
		firmware.Serial = r.Serial
	}
}
