// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package liveupdate knows how a change of each field of a VM's template reaches a guest that runs. virt-controller
// derives the condition RestartRequired from its table, virtctl explain what it says about it, and docs/spec its list
// of changes.
package liveupdate

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Effect is when a change takes effect.
type Effect string

const (
	// Live means that the running guest, or its VMI, is changed.
	Live Effect = "live"
	// Migration means that a migration applies the change.
	Migration Effect = "migration"
	// Restart means that the next start applies the change.
	Restart Effect = "restart"
)

// Entry is a row of the table: a field with everything below it that has no entry of its own.
type Entry struct {
	// Path is the JSON path below the spec of the template, with [] for each element of a list.
	Path string
	// Effect is when a change takes effect if the conditions are met. Otherwise it needs a restart.
	Effect Effect
	// Rollout reports whether the change needs the rollout strategy LiveUpdate.
	Rollout bool
	// If is the other condition of the effect, as the end of a sentence, or empty.
	If string
	// Note is a sentence about what else affects a running guest, or empty.
	Note string

	// adopt copies to before what now changes of the field and needs no restart. The caller decides whether the change is
	// possible.
	adopt func(before, now *v1.VirtualMachineInstanceSpec, vmi *v1.VirtualMachineInstance)
}

// Condition returns when the change needs no restart, as the end of a sentence, or empty for a change that always has
// the effect.
func (e *Entry) Condition() string {
	if !e.Rollout {
		return e.If
	}
	return strings.TrimSuffix("vmRolloutStrategy is not Stage, and "+e.If, ", and ")
}

// names finds the names of elements of lists in the path of a change.
var names = regexp.MustCompile(`\[[^\]]*\]`)

// Generic returns the path of a change without the names of the elements of lists.
func Generic(path string) string { return names.ReplaceAllString(path, "[]") }

// EntryOf returns the entry for a field, or nil. Elements of lists may have a name in the path, or none.
func EntryOf(path string) *Entry {
	path = Generic(path)
	var found *Entry
	for i := range Entries {
		e := &Entries[i]
		if Covers(e.Path, path) && (found == nil || len(e.Path) > len(found.Path)) {
			found = e
		}
	}
	return found
}

// Covers reports whether a path is that of a field or is below it.
func Covers(field, path string) bool {
	return path == field || strings.HasPrefix(path, field+".") || strings.HasPrefix(path, field+"[]")
}

// Entries is the table. test/liveness changes each leaf of the template of a running VM and compares what
// virt-controller does with it.
var Entries = []Entry{
	{Path: "nodeSelector", Effect: Live, Rollout: true, adopt: adoptNodeSelector, Note: "The guest stays on its node, and its next node is chosen by it."},
	{Path: "affinity", Effect: Live, Rollout: true, adopt: adoptAffinity, Note: "The guest stays on its node, and its next node is chosen by it."},
	{Path: "tolerations", Effect: Live, Rollout: true, adopt: adoptTolerations, Note: "The guest stays on its node, and its next node is chosen by it."},
	{Path: "topologySpreadConstraints", Effect: Restart},
	{Path: "schedulerName", Effect: Restart},
	{Path: "priorityClassName", Effect: Restart},
	{Path: "architecture", Effect: Restart},

	{Path: "domain.cpu", Effect: Restart},
	{
		Path: "domain.cpu.sockets", Effect: Live, Rollout: true, adopt: adoptSockets,
		If: "there are more of them, up to maxSockets, and the architecture is not arm64",
	},
	{Path: "domain.memory", Effect: Restart},
	{
		Path: "domain.memory.guest", Effect: Live, Rollout: true, adopt: adoptMemory,
		If: "it is from the memory that the guest was started with to maxGuest, and hotplug supports the guest",
	},
	{Path: "domain.resources", Effect: Restart, Note: "Requests and limits follow the guest's CPUs and memory."},

	{Path: "domain.machine", Effect: Restart},
	{Path: "domain.firmware", Effect: Restart},
	{Path: "domain.firmware.uuid", Effect: Restart, adopt: adoptIdentity, Note: "The value that the guest has already is no change."},
	{Path: "domain.firmware.serial", Effect: Restart, adopt: adoptIdentity, Note: "The value that the guest has already is no change."},
	{Path: "domain.chassis", Effect: Restart},
	{Path: "domain.launchSecurity", Effect: Restart},
	{Path: "domain.features", Effect: Restart},
	{Path: "domain.clock", Effect: Restart},
	{Path: "domain.ioThreadsPolicy", Effect: Restart},
	{Path: "domain.ioThreads", Effect: Restart},
	{Path: "domain.rebootPolicy", Effect: Restart},

	{Path: "domain.devices", Effect: Restart},
	{Path: "domain.devices.interfaces", Effect: Restart, adopt: adoptInterfaces, Note: interfacesMove},
	{
		Path: "domain.devices.interfaces[].state", Effect: Live, adopt: adoptLinks,
		If:   "the former state and the new one are up, down or empty",
		Note: "An interface that becomes absent, or is absent no more, is unplugged or plugged by a migration, if it has the bridge binding on a network of Multus.",
	},
	{
		Path: "domain.devices.autoattachMemBalloon", Effect: Restart,
		Note: "libvirt adds no memory balloon to a running guest and removes none.",
	},
	{Path: "domain.devices.disks[].tag", Effect: Restart, Note: "Tags are on the config drive, which is written at the start."},
	{Path: "domain.devices.interfaces[].tag", Effect: Restart, Note: "Tags are on the config drive, which is written at the start."},

	{Path: "networks", Effect: Restart, Note: interfacesMove},
	{
		Path: "networks[].multus.networkName", Effect: Migration, adopt: adoptNetworkNames,
		If: "its interface has the bridge binding, and the guest can migrate",
	},
	{Path: "volumes", Effect: Restart, Note: volumesPlug},
	{Path: "volumes[].persistentVolumeClaim.claimName", Effect: Migration, Rollout: true, adopt: adoptClaims, If: claimsMove},
	{Path: "volumes[].dataVolume.name", Effect: Migration, Rollout: true, adopt: adoptClaims, If: claimsMove},
	{Path: "utilityVolumes", Effect: Restart},
	{Path: "resourceClaims", Effect: Restart},
	{
		Path: "accessCredentials", Effect: Restart,
		Note: "What the Secrets contain may change at any time: the guest agent sets it in a running guest, if propagationMethod is qemuGuestAgent.",
	},

	{Path: "hostname", Effect: Restart},
	{Path: "subdomain", Effect: Restart},
	{Path: "dnsPolicy", Effect: Restart},
	{Path: "dnsConfig", Effect: Restart},
	{Path: "livenessProbe", Effect: Restart},
	{Path: "readinessProbe", Effect: Restart},
	{Path: "serviceAccountName", Effect: Restart},
	{Path: "evictionStrategy", Effect: Restart},
	{Path: "startStrategy", Effect: Restart},
	{Path: "terminationGracePeriodSeconds", Effect: Restart},
}

// interfacesMove describes changes of whole interfaces.
const interfacesMove = "A new interface with the bridge binding on a network of Multus is plugged by a migration, as long as the guest can migrate."

const volumesPlug = "A volume with hotpluggable: true is plugged and unplugged with its disk while the guest runs, if the disk is on the bus scsi or virtio."

const claimsMove = "updateVolumesStrategy is Migration, and the guest and its other volumes can migrate"

// NeedRestart returns the paths of the fields that differ between the template that a running VMI was made from and the
// one that its VM has now, without those whose changes a running guest can have. rollout reports whether the rollout
// strategy is LiveUpdate. The claims of volumes are never among them: whether they can change is decided with them, as
// for the size of the guest.
func NeedRestart(before, now *v1.VirtualMachineInstanceSpec, vmi *v1.VirtualMachineInstance, rollout bool) []string {
	before, now = before.DeepCopy(), now.DeepCopy()
	for i := range Entries {
		e := &Entries[i]
		if e.adopt != nil && (rollout || !e.Rollout || e.Effect == Migration) {
			e.adopt(before, now, vmi)
		}
	}
	var changed []string
	compare("", reflect.ValueOf(before), reflect.ValueOf(now), &changed)
	return changed
}

// scalars are structs that are scalars in JSON.
var scalars = []reflect.Type{
	reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[metav1.Duration](),
	reflect.TypeFor[metav1.Time](),
}

// compare appends the paths of the fields that differ. It descends into structs, also into those that only one side
// has, and into lists whose elements have names.
func compare(path string, a, b reflect.Value, changed *[]string) {
	if equality.Semantic.DeepEqual(a.Interface(), b.Interface()) {
		return
	}
	found := len(*changed)
	switch {
	case a.Kind() == reflect.Pointer:
		compare(path, valueOf(a), valueOf(b), changed)
	case a.Kind() == reflect.Struct && !slices.Contains(scalars, a.Type()):
		compareStructs(path, a, b, changed)
	case a.Kind() == reflect.Slice:
		compareLists(path, a, b, changed)
	}
	if len(*changed) == found { // a value, or an empty struct that only one side has
		*changed = append(*changed, path)
	}
}

// valueOf returns the value of a pointer, or the empty value.
func valueOf(pointer reflect.Value) reflect.Value {
	if pointer.IsNil() {
		return reflect.Zero(pointer.Type().Elem())
	}
	return pointer.Elem()
}

func compareStructs(path string, a, b reflect.Value, changed *[]string) {
	for i := range a.NumField() {
		field := a.Type().Field(i)
		if !field.IsExported() {
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		child := path
		if name != "" {
			child = strings.TrimPrefix(path+"."+name, ".")
		}
		compare(child, a.Field(i), b.Field(i), changed)
	}
}

// compareLists compares lists by the names of their elements. It finds nothing in lists without names, and in a list in
// another order.
func compareLists(path string, a, b reflect.Value, changed *[]string) {
	before, inA := byName(a)
	after, inB := byName(b)
	if before == nil || after == nil {
		return
	}
	var common, reordered []string
	for _, name := range inA {
		if element, found := after[name]; found {
			common = append(common, name)
			compare(path+"["+printable(name)+"]", before[name], element, changed)
		} else {
			*changed = append(*changed, path+"["+printable(name)+"]")
		}
	}
	for _, name := range inB {
		if _, found := before[name]; found {
			reordered = append(reordered, name)
		} else {
			*changed = append(*changed, path+"["+printable(name)+"]")
		}
	}
	if !slices.Equal(common, reordered) {
		*changed = append(*changed, path)
	}
}

// byName returns the elements of a list, and their names in order. It returns nil if they have none, or two have the
// same.
func byName(list reflect.Value) (elements map[string]reflect.Value, names []string) {
	elements = map[string]reflect.Value{}
	for i := range list.Len() {
		element := list.Index(i)
		if element.Kind() != reflect.Struct {
			return nil, nil
		}
		field := element.FieldByName("Name")
		if !field.IsValid() || field.Kind() != reflect.String || field.String() == "" || elements[field.String()].IsValid() {
			return nil, nil
		}
		elements[field.String()] = element
		names = append(names, field.String())
	}
	return elements, names
}

// specNeedsRestart is how the message of the condition RestartRequired begins. KubeVirt's text.
const specNeedsRestart = "a non-live-updatable field was changed in the template spec"

const (
	// maxFields is how many fields a message names.
	maxFields = 8
	// maxName is the length of the name of an element in a path.
	maxName = 63
)

// Message returns the message of the condition RestartRequired for changed fields, or empty if there are none.
func Message(changed []string) string { return Naming(specNeedsRestart, changed) }

// Naming appends the names of changed fields to a text. It returns an empty text if there are none.
func Naming(text string, changed []string) string {
	if len(changed) == 0 {
		return ""
	}
	if more := len(changed) - maxFields; more > 0 {
		changed = append(changed[:maxFields:maxFields], fmt.Sprintf("and %d more", more))
	}
	return text + ": " + strings.Join(changed, ", ")
}

// WithReason appends why a changed field cannot take effect at once.
func WithReason(message, reason string) string { return message + "; " + reason }

// FieldsIn returns the fields that a message of the condition RestartRequired names.
func FieldsIn(message string) []string {
	var fields []string
	message, _, _ = strings.Cut(message, "; ")
	for field := range strings.SplitSeq(message[strings.LastIndex(message, ": ")+1:], ",") {
		field = strings.TrimSpace(field)
		if EntryOf(field) != nil {
			fields = append(fields, field)
		}
	}
	return fields
}

// ClaimFields returns the fields with the names of claims of some volumes.
func ClaimFields(volumes []v1.Volume, changed func(name string) bool) []string {
	var fields []string
	for i := range volumes {
		switch volume := &volumes[i]; {
		case !changed(volume.Name):
		case volume.DataVolume != nil:
			fields = append(fields, "volumes["+printable(volume.Name)+"].dataVolume.name")
		default:
			fields = append(fields, "volumes["+printable(volume.Name)+"].persistentVolumeClaim.claimName")
		}
	}
	return fields
}

// printable returns the name of an element as part of a path. Names are checked at admission; those of objects from
// before may have any characters.
func printable(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < ' ' || strings.ContainsRune("[],\u007f", r) {
			return '?'
		}
		return r
	}, name)
	if len(name) > maxName {
		name = strings.ToValidUTF8(name[:maxName], "") + "…"
	}
	return name
}
