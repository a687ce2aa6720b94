// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package specsupport lists what Vireo does not support of the specs that KubeVirt's admission accepts:
//   - fields, annotations and feature gates that are not implemented yet;
//   - values that no guest can have, such as a claim without a name (impossible.go).
//
// Admission warns about both. The controllers do not start a VMI that would get something other than its spec requests,
// and set a condition that names the field.
package specsupport

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// MaxErrors is how many errors of one object are listed. The author of an object decides how many it has: 80,000 fit
// into one object, and Kubernetes took minutes to join their texts, because the time grows with the square of their
// number (aggregate.Error of k8s.io/apimachinery/pkg/util/errors).
const MaxErrors = 100

// LimitErrors returns the first errors of a list. The last of them reports how many were left out.
func LimitErrors(errs field.ErrorList) field.ErrorList {
	if len(errs) <= MaxErrors {
		return errs
	}
	first := slices.Clone(errs[:MaxErrors])
	last := *first[MaxErrors-1]
	last.Detail += fmt.Sprintf(" (and %d more faults, which are not listed)", len(errs)-MaxErrors)
	first[MaxErrors-1] = &last
	return first
}

// JoinErrors returns one error for a list that is capped by LimitErrors, or nil for an empty list.
func JoinErrors(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return LimitErrors(errs).ToAggregate()
}

// NewInvalid returns the API error "Invalid" for an object, with a list that is capped by LimitErrors, or nil for an
// empty list.
func NewInvalid(kind schema.GroupKind, name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(kind, name, LimitErrors(errs))
}

// UnimplementedGates are the feature gates of KubeVirt whose features are not implemented yet. The values are the ends
// of warnings.
var UnimplementedGates = map[string]string{ //nolint:gosec // G101: sentences, no credentials
	"ConfigurableHypervisor":          "only KVM and emulation are supported",
	"ContainerPathVolumes":            "shared file systems are not implemented yet",
	"CrossArchitectureVirtualization": "a guest has the architecture of its node",
	"DecentralizedLiveMigration":      "migration between namespaces or clusters is not implemented yet",
	"DownwardMetrics":                 "downward metrics are not implemented yet",
	"EnableVirtioFsStorageVolumes":    "shared file systems are not implemented yet",
	"ExperimentalIgnitionSupport":     "Ignition data is not implemented yet",
	"FirmwareAutoSelection":           "the firmware of the launcher image is used",
	"GPUsWithDRA":                     "devices by resource claim are not implemented yet",
	"GraceIOVirtualization":           "passing devices through is not implemented yet",
	"HostDevices":                     "passing devices through is not implemented yet",
	"HostDevicesWithDRA":              "devices by resource claim are not implemented yet",
	"HypervStrictCheck":               "the scheduler ignores Hyper-V features",
	"IOMMUFD":                         "passing devices through is not implemented yet",
	"LibvirtHooksServerAndClient":     "launchers run no hooks of libvirt",
	"KubevirtSeccompProfile":          "nodes get no seccomp profile: use seccompConfiguration with one that they have",
	"NetworkDevicesWithDRA":           "devices by resource claim are not implemented yet",
	"OptOutRoleAggregation":           "roles are installed with the manager",
	"PCINUMAAwareTopology":            "passing devices through is not implemented yet",
	"PasstBinding":                    "passt is not implemented yet",
	"Plugins":                         "plugins are not implemented yet",
	"ReservedOverheadMemlock":         "locked memory is not implemented yet",
	"Root":                            "launchers never run as root",
	"Sidecar":                         "hook sidecars are not implemented yet",
	"Template":                        "templates are not implemented yet",
	"VGPULiveMigration":               "passing devices through is not implemented yet",
	"VMStatsCollector":                "only the statistics in the agent's metrics are collected",
	"WorkloadEncryptionSEV":           "encrypted guests are not implemented yet",
	"WorkloadEncryptionTDX":           "encrypted guests are not implemented yet",
}

// Reasons of more than one field.
const (
	imageHasFirmware = "libvirt chooses among the firmware of the launcher image"
)

// KubeVirtFields are the unimplemented fields of a KubeVirt object's spec. They only warn: clusters keep the KubeVirt
// object that they had before Vireo, and none of these fields changes what a guest gets.
var KubeVirtFields = []Field{
	{"synchronizationPort", nil, Warn, "migration between clusters is not implemented yet"},
	{"workloads.replicas", nil, Warn, "the agent runs once on each node: use nodePlacement to choose the nodes"},
	{"configuration.ovmfPath", nil, Warn, imageHasFirmware},
	{"configuration.architectureConfiguration.amd64.ovmfPath", nil, Warn, imageHasFirmware},
	{"configuration.architectureConfiguration.arm64.ovmfPath", nil, Warn, imageHasFirmware},
	{"configuration.architectureConfiguration.s390x.ovmfPath", nil, Warn, imageHasFirmware},
	{"configuration.architectureConfiguration.ppc64le", nil, Warn, "KubeVirt dropped the architecture"},
	{"configuration.supportedGuestAgentVersions", nil, Warn, "every version is used: KubeVirt, too, queries which commands a guest agent has"},
	{"configuration.developerConfiguration.minimumClusterTSCFrequency", nil, Warn, "guests with a fixed TSC frequency are not implemented yet"},
	{"configuration.developerConfiguration.logVerbosity.virtOperator", nil, Warn, "virt-controller does its work: use virtController"},
	{"configuration.developerConfiguration.logVerbosity.virtSynchronizationController", nil, Warn, "migration between clusters is not implemented yet"},
	{"configuration.selinuxLauncherType", nil, Warn, "the container runtime's SELinux type is used"},
	{"configuration.supportContainerResources[].type", []string{"container-disk", "virtiofs", "sidecar"}, Warn, "launcher Pods have no such container"},
	{
		"configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile.localhostProfile",
		[]string{"kubevirt/kubevirt.json"}, Warn, "nodes do not get KubeVirt's profile, and the container runtime's is used",
	},
	{"configuration.permittedHostDevices", nil, Warn, "passing devices through is not implemented yet"},
	{"configuration.mediatedDevicesConfiguration", nil, Warn, "passing devices through is not implemented yet"},
	{"configuration.minCPUModel", nil, Warn, "KubeVirt does not use it either"},
	{"configuration.ksmConfiguration", nil, Warn, "same-page merging is left to the node"},
	{"configuration.virtTemplateDeployment.enabled", nil, Warn, "templates are not implemented yet"},
	{"configuration.hypervisors", nil, Warn, "only KVM and emulation are supported"},
	{"configuration.persistentReservationConfiguration.enabled", nil, Warn, "persistent reservations are not implemented yet"},
	{"configuration.confidentialCompute", nil, Warn, "encrypted guests are not implemented yet"},
	{"configuration.roleAggregationStrategy", []string{"Manual"}, Warn, "the roles are installed with the manifests: install them with config/manual-role-aggregation, or the chart with roles.aggregate=false"},
	{"configuration.network.binding", nil, Warn, "binding plugins are not implemented yet"},
	{"configuration.network.permitSlirpInterface", nil, Warn, "slirp was removed from KubeVirt"},
	{"configuration.developerConfiguration.diskVerification", nil, Warn, "disks are read inside of the guest's own memory limit"},
}

// HookSidecarAnnotation requests sidecar containers that change the domain XML. Source: kubevirt/kubevirt pkg/hooks.
const HookSidecarAnnotation = "hooks.kubevirt.io/hookSidecars"

// AnnotationFields are the unimplemented annotations of a VMI, and of the template of a VM. The paths are their keys.
var AnnotationFields = []Field{
	{v1.IgnitionAnnotation, nil, Refuse, "Ignition data is not implemented yet: use cloud-init"},
	{HookSidecarAnnotation, nil, Refuse, "hook sidecars are not implemented yet: leave it out"},
	{v1.CreateMigrationTarget, []string{"true"}, Refuse, "receiving a guest from another cluster is not implemented yet: leave it out"},

	{v1.MemfdMemoryBackend, []string{"false"}, Warn, "huge pages come from a memfd all the same: the launcher Pod has no mount of them"},
	{v1.PciTopologyVersionAnnotation, nil, Warn,
		"libvirt assigns the PCI slots: a guest that comes from KubeVirt may rename its network devices"},
	{v1.PciInterfaceSlotCountAnnotation, nil, Warn, "no PCI slots are kept for interfaces"},
	{v1.KeepLauncherAfterFailureAnnotation, nil, Warn, "the launcher ends with its guest: read its log with kubectl logs"},
	{v1.CustomLibvirtLogFiltersAnnotation, nil, Warn, "log filters are not implemented yet: libvirt logs as usual"},
}

// UnimplementedInAnnotations returns the unimplemented annotations of a VMI. path is that of its metadata.
func UnimplementedInAnnotations(path *field.Path, annotations map[string]string) []Finding {
	var found []Finding
	for i := range AnnotationFields {
		row := &AnnotationFields[i]
		value := annotations[row.Path]
		if value == "" || len(row.Values) > 0 && !slices.Contains(row.Values, value) {
			continue
		}
		found = append(found, Finding{path.Child("annotations").Key(row.Path), row})
	}
	return found
}

// MigrationFields are the unimplemented fields of a VirtualMachineInstanceMigration's spec. Admission accepts them as
// KubeVirt's does.
var MigrationFields = []Field{
	{"sendTo", nil, Fail, "migration between namespaces or clusters is not implemented yet: leave it out"},
	{"receive", nil, Fail, "migration between namespaces or clusters is not implemented yet: leave it out"},
}

// VMFields are the unimplemented fields of a VirtualMachine's spec outside its template.
var VMFields = []Field{
	{"runStrategy", []string{"WaitAsReceiver"}, Refuse, "migration between clusters is not implemented yet: use another strategy"},
}

// VMIFields are the unimplemented fields of a VMI's spec, and of the template of a VM.
var VMIFields = []Field{
	{"architecture", []string{"arm64", "s390x", "ppc64le"}, Refuse, "only amd64 guests are implemented yet"},

	{"domain.memory.reservedOverhead.memLock", []string{"Required"}, Refuse, "locked memory is not implemented yet"},
	{"domain.launchSecurity", nil, Refuse, "encrypted guests are not implemented yet"},

	{"domain.devices.watchdog.diag288", nil, Refuse, "it exists on s390x only: use i6300esb"},
	{"domain.devices.gpus", nil, Refuse, "passing devices through is not implemented yet"},
	{"domain.devices.hostDevices", nil, Refuse, "passing devices through is not implemented yet"},
	{"domain.devices.filesystems", nil, Refuse, "shared file systems are not implemented yet"},
	{"domain.devices.downwardMetrics", nil, Refuse, "downward metrics are not implemented yet"},

	{"domain.devices.disks[].cdrom.readonly", []string{"false"}, Warn, "a guest never writes to a CD-ROM, whatever this says"},
	{"domain.devices.disks[].lun.reservation", nil, Refuse, "persistent reservations are not implemented yet"},
	{"domain.devices.disks[].changedBlockTracking", nil, Refuse, "choosing single disks is not implemented: the labels of the VM decide, see configuration.changedBlockTrackingLabelSelectors of the KubeVirt object"},

	{"domain.devices.interfaces[].sriov", nil, Refuse, "SR-IOV is not implemented yet: use masquerade or bridge"},
	{"domain.devices.interfaces[].slirp", nil, Refuse, "KubeVirt removed it: use masquerade"},
	{"domain.devices.interfaces[].macvtap", nil, Refuse, "KubeVirt removed it: use bridge"},
	{"domain.devices.interfaces[].passt", nil, Refuse, "KubeVirt removed it: use masquerade"},
	{"domain.devices.interfaces[].passtBinding", nil, Refuse, "passt is not implemented yet: use masquerade"},
	{"domain.devices.interfaces[].binding", nil, Refuse, "binding plugins are not implemented yet: use masquerade or bridge"},
	{"networks[].resourceClaim", nil, Refuse, "a network's device by resource claim needs SR-IOV, which is not implemented yet"},

	{"volumes[].downwardMetrics", nil, Refuse, "downward metrics are not implemented yet"},
	{"volumes[].memoryDump", nil, Refuse, "memory is dumped without a volume in the spec: remove it, and use virtctl memory-dump"},
	{"volumes[].containerPath", nil, Refuse, "shared file systems are not implemented yet"},
}

// Effect is what happens to an object that sets an unimplemented field.
type Effect int

const (
	// Warn ignores the field. The guest cannot notice the difference.
	Warn Effect = iota
	// Refuse keeps the VMI from starting, because its guest would differ from its spec.
	Refuse
	// Fail admits the object, which fails at once with the reason.
	Fail
)

// String returns the predicate of a sentence whose subject is a field.
func (e Effect) String() string {
	switch e {
	case Refuse:
		return "keeps the VM from starting"
	case Fail:
		return "makes it fail"
	default:
		return "has no effect"
	}
}

// ReasonNotImplemented is the reason of the condition and of the event of an object that does not start because it sets
// an unimplemented field.
const ReasonNotImplemented = "FieldNotImplemented"

// Field is a row of a table: a field of the API, or an annotation, that is not implemented yet. Admission, the
// controllers and docs/compatibility.md use the same tables, and test/liveness fails for a field of a VMI or of a
// KubeVirt object that has neither a row nor an effect.
type Field struct {
	// Path is the JSON path below the spec, with [] for each element of a list; or the key of an annotation.
	Path string
	// Values are the unimplemented values. Empty means every value.
	Values []string
	// Effect is what happens to an object that sets the field.
	Effect Effect
	// Reason is the end of a sentence that starts with the path. It says why, and what to use instead.
	Reason string
}

// Finding is an unimplemented field that an object sets.
type Finding struct {
	// Path is the path of the field in the object.
	Path *field.Path
	// Field is the row of the table.
	Field *Field
}

// String returns a warning for the user.
func (f Finding) String() string {
	return fmt.Sprintf("%s %s: %s", f.Path, f.Field.Effect, f.Field.Reason)
}

// UnimplementedInVMI returns the unimplemented fields that the spec of a VMI sets. path is that of the spec.
func UnimplementedInVMI(path *field.Path, spec *v1.VirtualMachineInstanceSpec) []Finding {
	return find(path, spec, VMIFields)
}

// UnimplementedInVM returns the unimplemented fields that the spec of a VM sets outside its template. path is that of
// the spec.
func UnimplementedInVM(path *field.Path, spec *v1.VirtualMachineSpec) []Finding {
	return find(path, spec, VMFields)
}

// UnimplementedInKubeVirt returns the unimplemented fields that the spec of a KubeVirt object sets. path is that of the
// spec.
func UnimplementedInKubeVirt(path *field.Path, spec *v1.KubeVirtSpec) []Finding {
	return find(path, spec, KubeVirtFields)
}

// UnimplementedInMigration returns the unimplemented fields that the spec of a migration sets. path is that of the
// spec.
func UnimplementedInMigration(path *field.Path, spec *v1.VirtualMachineInstanceMigrationSpec) []Finding {
	return find(path, spec, MigrationFields)
}

// Refusals returns the findings that keep an object from starting, or make it fail, as errors.
func Refusals(findings []Finding) field.ErrorList {
	var errs field.ErrorList
	for _, f := range findings {
		if f.Field.Effect == Refuse || f.Field.Effect == Fail {
			errs = append(errs, field.Forbidden(f.Path, f.Field.Reason))
		}
	}
	return errs
}

// Warnings returns one warning for each finding. Their number is capped.
func Warnings(findings []Finding) []string {
	warnings := make([]string, 0, min(len(findings), MaxErrors+1))
	for i, f := range findings {
		if i == MaxErrors {
			return append(warnings, fmt.Sprintf("and %d more fields, which are not listed", len(findings)-i))
		}
		warnings = append(warnings, f.String())
	}
	return warnings
}

// find returns the rows of a table that an object sets. It ignores conversion errors: the API server has already
// decoded the object.
func find(base *field.Path, object any, table []Field) []Finding {
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil
	}
	var found []Finding
	for i := range table {
		row := &table[i]
		for _, p := range setPaths(base, tree, strings.Split(row.Path, "."), row.Values) {
			found = append(found, Finding{p, row})
		}
	}
	return found
}

// setPaths follows the steps of a row's path through node and returns the path of each value that is set.
func setPaths(at *field.Path, node any, steps, values []string) []*field.Path {
	if len(steps) == 0 {
		if isSet(node, values) {
			return []*field.Path{at}
		}
		return nil
	}
	tree, ok := node.(map[string]any)
	if !ok {
		return nil
	}
	name, each := strings.CutSuffix(steps[0], "[]")
	child, ok := tree[name]
	if !ok {
		return nil
	}
	if !each {
		return setPaths(at.Child(name), child, steps[1:], values)
	}
	list, _ := child.([]any) // a nil list has no elements
	var found []*field.Path
	for i := range list {
		found = append(found, setPaths(at.Child(name).Index(i), list[i], steps[1:], values)...)
	}
	return found
}

// isSet reports whether a value enables a field. False, zero, the empty string and an object with "enabled: false" do
// not. An empty object does: it is how the API selects an alternative that has no options. false counts if a row names
// it as its value.
func isSet(node any, values []string) bool {
	switch v := node.(type) {
	case nil:
		return false
	case bool:
		return v && len(values) == 0 || slices.Contains(values, strconv.FormatBool(v))
	case string:
		return v != "" && (len(values) == 0 || slices.Contains(values, v))
	case int64:
		return v != 0
	case float64:
		return v != 0
	case []any:
		return len(v) > 0
	case map[string]any:
		return v["enabled"] != false
	default:
		return true
	}
}
