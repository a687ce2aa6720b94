// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// effect is what admission does about a field that nothing implements.
type effect int

const (
	// warn: the guest runs as asked, the field changes nothing that it could notice.
	warn effect = iota
	// refuse: starting would give something else than what was asked for.
	refuse
	// later: it works, but only from the next start of virt-controller on.
	later
)

// unimplementedField is a field of the API that nothing implements yet. No such field is ever passed over in silence: a
// VMI with it is refused or warned about, a VM is warned about, and a test holds every field of the API against this
// list and the list of those that work.
type unimplementedField struct {
	// path is the JSON path below the spec; [] stands for each element of a list.
	path string
	// values are those that are not implemented; none means all.
	values []string
	effect effect
	// reason ends the sentence that begins with the path and says what to do.
	reason string
}

// unimplementedVMI is about the spec of a VMI, and so about the template of a VM.
var unimplementedVMI = []unimplementedField{
	{"accessCredentials", nil, refuse, "keys and passwords are not brought into the guest yet: use cloud-init"},
	{"resourceClaims", nil, refuse, "devices by resource claim are not implemented yet"},
	{"utilityVolumes", nil, refuse, "volumes without a disk are not implemented yet"},
	{"livenessProbe", nil, refuse, "probes of the guest are not implemented yet"},
	{"readinessProbe", nil, refuse, "probes of the guest are not implemented yet"},
	{"evictionStrategy", []string{"LiveMigrate", "LiveMigrateIfPossible", "External"}, warn,
		"live migration is not implemented yet: an eviction shuts the guest down"},

	{"domain.cpu.dedicatedCpuPlacement", nil, refuse, "dedicated CPUs are not implemented yet"},
	{"domain.cpu.numa", nil, refuse, "NUMA passthrough is not implemented yet"},
	{"domain.cpu.isolateEmulatorThread", nil, refuse, "dedicated CPUs are not implemented yet"},
	{"domain.cpu.realtime", nil, refuse, "realtime guests are not implemented yet"},
	{"domain.memory.maxGuest", nil, warn, "memory hotplug is not implemented yet"},
	{"domain.memory.reservedOverhead.memLock", []string{"Required"}, refuse, "locked memory is not implemented yet"},
	{"domain.launchSecurity", nil, refuse, "encrypted guests are not implemented yet"},
	{"domain.firmware.acpi", nil, refuse, "ACPI tables from Secrets are not implemented yet"},
	{"domain.firmware.bootloader.efi.persistent", nil, refuse, "EFI variables are not kept across starts yet"},

	{"domain.devices.autoattachVSOCK", nil, refuse, "VSOCK is not implemented yet"},
	{"domain.devices.gpus", nil, refuse, "passing devices through is not implemented yet"},
	{"domain.devices.hostDevices", nil, refuse, "passing devices through is not implemented yet"},
	{"domain.devices.filesystems", nil, refuse, "shared file systems are not implemented yet"},
	{"domain.devices.downwardMetrics", nil, refuse, "downward metrics are not implemented yet"},
	{"domain.devices.clientPassthrough", nil, refuse, "USB redirection is not implemented yet"},
	{"domain.devices.tpm", nil, refuse, "a TPM is not implemented yet"},

	{"domain.devices.disks[].lun.reservation", nil, refuse, "persistent reservations are not implemented yet"},
	{"domain.devices.disks[].tag", nil, refuse, "tags in the config drive's metadata are not implemented yet"},
	{"domain.devices.disks[].changedBlockTracking", nil, refuse, "incremental backup is not implemented yet"},

	{"domain.devices.interfaces[].sriov", nil, refuse, "SR-IOV is not implemented yet: use masquerade or bridge"},
	{"domain.devices.interfaces[].passtBinding", nil, refuse, "passt is not implemented yet: use masquerade"},
	{"domain.devices.interfaces[].binding", nil, refuse, "binding plugins are not implemented yet: use masquerade or bridge"},
	{"domain.devices.interfaces[].portRanges", nil, refuse, "port ranges are not implemented yet: leave ports out to forward all"},
	{"domain.devices.interfaces[].tag", nil, refuse, "tags in the config drive's metadata are not implemented yet"},
	{"domain.devices.interfaces[].dhcpOptions", nil, refuse, "further DHCP options are not implemented yet: use cloud-init"},
	{"networks[].multus", nil, refuse, "secondary networks are not implemented yet: use the Pod's network"},
	{"networks[].resourceClaim", nil, refuse, "devices by resource claim are not implemented yet"},

	{"volumes[].dataVolume", nil, refuse,
		"DataVolumes are not implemented yet: use persistentVolumeClaim with the claim that the importer filled"},
	{"volumes[].persistentVolumeClaim.hotpluggable", nil, warn, "volume hotplug is not implemented yet"},
	{"volumes[].ephemeral", nil, refuse, "overlays of claims are not implemented yet"},
	{"volumes[].configMap", nil, refuse, "disks of ConfigMaps are not implemented yet: use cloud-init's write_files"},
	{"volumes[].secret", nil, refuse, "disks of Secrets are not implemented yet: use cloud-init with secretRef"},
	{"volumes[].downwardAPI", nil, refuse, "disks of the downward API are not implemented yet"},
	{"volumes[].serviceAccount", nil, refuse, "disks of service accounts are not implemented yet"},
	{"volumes[].downwardMetrics", nil, refuse, "downward metrics are not implemented yet"},
	{"volumes[].sysprep", nil, refuse, "sysprep is not implemented yet"},
	{"volumes[].memoryDump", nil, refuse, "memory dumps are not implemented yet"},
	{"volumes[].containerPath", nil, refuse, "shared file systems are not implemented yet"},
}

// unimplementedVM is about the spec of a VM outside of its template.
var unimplementedVM = []unimplementedField{
	{"runStrategy", []string{"RerunOnFailure", "Once", "WaitAsReceiver"}, refuse, "use Always, Halted or Manual"},
	{"instancetype", nil, refuse, "instance types are not implemented yet: give CPU and memory in the template"},
	{"preference", nil, refuse, "preferences are not implemented yet: give the devices in the template"},
	{"dataVolumeTemplates", nil, refuse, "DataVolumes are not implemented yet: create a PersistentVolumeClaim"},
	{"updateVolumesStrategy", []string{"Migration"}, warn, "volume migration is not implemented yet: a change applies at the next start"},
}

// Reasons that more than one field has.
const (
	deploymentSays    = "virt-controller runs as its Deployment says: edit that"
	imageHasFirmware  = "the firmware of the launcher image is used"
	restartController = "restart the Deployment virt-controller to have it now"
)

// unimplementedKubeVirt is about the spec of a KubeVirt object. All of it only warns: clusters carry their configuration
// along, and none of these fields makes a guest something else than its manifest says.
var unimplementedKubeVirt = []unimplementedField{
	{"monitorNamespace", nil, warn, "no monitoring objects are installed yet"},
	{"serviceMonitorNamespace", nil, warn, "no monitoring objects are installed yet"},
	{"monitorAccount", nil, warn, "no monitoring objects are installed yet"},
	{"workloadUpdateStrategy.workloadUpdateMethods", nil, warn, "running guests keep their launcher until they restart"},
	{"synchronizationPort", nil, warn, "migration between clusters is not implemented yet"},
	{"workloads.replicas", nil, warn, "the agent runs once on each node: use nodePlacement to choose the nodes"},
	{"customizeComponents.patches", nil, warn, "patches of components are not implemented yet"},
	{"customizeComponents.flags.api", nil, warn, "there is no virt-api yet"},
	{"customizeComponents.flags.controller", nil, warn, deploymentSays},
	{"infra.nodePlacement", nil, warn, deploymentSays},
	{"infra.replicas", nil, warn, deploymentSays},
	{"certificateRotateStrategy.selfSigned.caRotateInterval", nil, warn, "use ca.duration"},
	{"certificateRotateStrategy.selfSigned.certRotateInterval", nil, warn, "use server.duration"},
	{"certificateRotateStrategy.selfSigned.caOverlapInterval", nil, warn, "the old and the new CA are never needed together"},
	{"certificateRotateStrategy.selfSigned.ca.renewBefore", nil, warn, "the CA is renewed by server.renewBefore as well"},
	{"certificateRotateStrategy.selfSigned.ca.duration", nil, later, restartController},
	{"certificateRotateStrategy.selfSigned.server", nil, later, restartController},
	{"productVersion", nil, warn, "the labels of what is installed do not change"},
	{"productName", nil, warn, "the labels of what is installed do not change"},
	{"productComponent", nil, warn, "the labels of what is installed do not change"},
	{"configuration.ovmfPath", nil, warn, imageHasFirmware},
	{"configuration.architectureConfiguration.amd64.ovmfPath", nil, warn, imageHasFirmware},
	{"configuration.architectureConfiguration.arm64.ovmfPath", nil, warn, imageHasFirmware},
	{"configuration.architectureConfiguration.s390x.ovmfPath", nil, warn, imageHasFirmware},
	{"configuration.architectureConfiguration.ppc64le", nil, warn, "KubeVirt dropped the architecture"},
	{"configuration.supportedGuestAgentVersions", nil, warn, "every version of the guest's agent is used"},
	{"configuration.tlsConfiguration", nil, warn, "TLS 1.2 or newer with Go's ciphers is used"},
	{"configuration.vmRolloutStrategy", []string{"LiveUpdate"}, warn, "hotplug is not implemented yet: a change applies at the next start"},
	{"configuration.developerConfiguration.minimumClusterTSCFrequency", nil, warn, "guests with a fixed TSC frequency are not implemented yet"},
	{"configuration.developerConfiguration.logVerbosity.virtAPI", nil, warn, "there is no virt-api yet"},
	{"configuration.developerConfiguration.logVerbosity.virtOperator", nil, warn, "virt-controller does its work: use virtController"},
	{"configuration.developerConfiguration.logVerbosity.virtSynchronizationController", nil, warn, "migration between clusters is not implemented yet"},
	{"configuration.migrations", nil, warn, "live migration is not implemented yet"},
	{"configuration.selinuxLauncherType", nil, warn, "the container runtime's SELinux type is used"},
	{"configuration.supportContainerResources", nil, warn, "there are no support containers"},
	{"configuration.permittedHostDevices", nil, warn, "passing devices through is not implemented yet"},
	{"configuration.mediatedDevicesConfiguration", nil, warn, "passing devices through is not implemented yet"},
	{"configuration.minCPUModel", nil, warn, "KubeVirt does not use it either"},
	{"configuration.seccompConfiguration", nil, warn, "RuntimeDefault is used"},
	{"configuration.vmStateStorageClass", nil, warn, "persistent TPM and EFI state are not implemented yet"},
	{"configuration.ksmConfiguration", nil, warn, "same-page merging is left to the node"},
	{"configuration.autoCPULimitNamespaceLabelSelector", nil, warn, "automatic CPU limits are not implemented yet"},
	{"configuration.liveUpdateConfiguration", nil, warn, "hotplug is not implemented yet"},
	{"configuration.commonInstancetypesDeployment.enabled", nil, warn, "instance types are not implemented yet"},
	{"configuration.virtTemplateDeployment.enabled", nil, warn, "templates are not implemented yet"},
	{"configuration.instancetype", nil, warn, "instance types are not implemented yet"},
	{"configuration.hypervisors", nil, warn, "KVM and emulation are what there is"},
	{"configuration.changedBlockTrackingLabelSelectors", nil, warn, "incremental backup is not implemented yet"},
	{"configuration.persistentReservationConfiguration.enabled", nil, warn, "persistent reservations are not implemented yet"},
	{"configuration.confidentialCompute", nil, warn, "encrypted guests are not implemented yet"},
	{"configuration.roleAggregationStrategy", nil, warn, "roles are installed with the manager"},
	{"configuration.network.binding", nil, warn, "binding plugins are not implemented yet"},
	{"configuration.network.permitSlirpInterface", nil, warn, "slirp was removed from KubeVirt"},
	{"configuration.developerConfiguration.diskVerification", nil, warn, "disks are read inside of the guest's own memory limit"},
	{"configuration.developerConfiguration.clusterProfiler", nil, warn, "the cluster profiler is not implemented yet"},
	{"configuration.apiConfiguration", nil, warn, "the rate of requests is fixed"},
	{"configuration.webhookConfiguration", nil, warn, "the rate of requests is fixed"},
	{"configuration.controllerConfiguration", nil, warn, "the rate of requests is fixed"},
	{"configuration.handlerConfiguration", nil, warn, "the rate of requests is fixed"},
}

// finding is a field of an object that is set and not implemented.
type finding struct {
	path  *field.Path
	entry *unimplementedField
}

// findUnimplemented returns the entries of a table that an object sets. An object that cannot be converted sets none:
// the API server has decoded it before.
func findUnimplemented(base *field.Path, object any, table []unimplementedField) []finding {
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil
	}
	var found []finding
	for i := range table {
		entry := &table[i]
		for _, p := range setPaths(base, tree, strings.Split(entry.path, "."), entry.values) {
			found = append(found, finding{p, entry})
		}
	}
	return found
}

// setPaths follows steps down a tree and returns where they end in a value that is set.
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

// isSet says that a value asks for something: false, zero and the empty string do not, nor does a device that is not
// enabled; an empty object does, since that is how a choice without options is written.
func isSet(node any, values []string) bool {
	switch v := node.(type) {
	case nil:
		return false
	case bool:
		return v
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

// unimplementedInVMI sorts what a VMI asks for in vain into what must be refused and what is worth a warning.
func unimplementedInVMI(base *field.Path, spec *v1.VirtualMachineInstanceSpec) (refused field.ErrorList, warnings []string) {
	for _, f := range findUnimplemented(base, spec, unimplementedVMI) {
		if f.entry.effect == refuse {
			refused = append(refused, field.Forbidden(f.path, f.entry.reason))
		} else {
			warnings = append(warnings, fmt.Sprintf("%s has no effect: %s", f.path, f.entry.reason))
		}
	}
	return refused, warnings
}

// unimplementedInVM warns only: a VM may be kept, edited and moved about with fields that its next start would refuse.
func unimplementedInVM(base *field.Path, spec *v1.VirtualMachineSpec) []string {
	found := findUnimplemented(base, spec, unimplementedVM)
	if spec.Template != nil {
		found = append(found, findUnimplemented(base.Child("template", "spec"), &spec.Template.Spec, unimplementedVMI)...)
	}
	return describe(found)
}

func describe(found []finding) []string {
	warnings := make([]string, 0, len(found))
	for _, f := range found {
		words := "has no effect"
		switch f.entry.effect {
		case warn:
		case refuse:
			words = "keeps the VM from starting"
		case later:
			words = "has an effect when virt-controller starts next"
		}
		warnings = append(warnings, fmt.Sprintf("%s %s: %s", f.path, words, f.entry.reason))
	}
	return warnings
}
