// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// maxListLength is KubeVirt's limit for lists of devices.
const maxListLength = 256

// check collects the errors of one VMI spec. Each rule adds all errors of its subject.
type check struct {
	path   *field.Path
	spec   *v1.VirtualMachineInstanceSpec
	config clusterconfig.Config
	errs   field.ErrorList
}

// specRules apply to the spec of a VMI and to the template of a VM.
var specRules = []func(*check){
	checkArchitecture,
	checkCPU,
	checkDedicatedCPU,
	checkNUMAAndRealtime,
	checkCPUResources,
	checkMemory,
	checkHugepages,
	checkMachine,
	checkFirmware,
	checkKernelBoot,
	checkDisks,
	checkBootOrder,
	checkVolumes,
	checkCloudInit,
	checkNetworks,
	checkInterfaces,
	checkPorts,
	checkPortRanges,
	checkNetworkClaims,
	checkDHCP,
	checkInputs,
	checkSound,
	checkVideo,
	checkPanicDevices,
	checkIOThreads,
	checkProbes,
	checkAccessCredentials,
	checkHostname,
	checkDNS,
	checkAffinity,
	checkTopologySpread,
	checkLifecycle,
	checkGates,
	checkDomainGates,
	checkLaunchSecurity,
}

// instanceRules apply only to a VMI. An instance type or the defaults may still add fields that are missing in a
// template.
var instanceRules = []func(*check){
	checkMemoryGiven,
	checkVolumesUsed,
	checkArchitectureOfInstance,
	checkHyperv,
	checkUtilityVolumes,
}

// validateSpec returns the errors of a VMI spec. path is the path of the spec.
func validateSpec(path *field.Path, spec *v1.VirtualMachineInstanceSpec, config clusterconfig.Config) field.ErrorList {
	c := &check{path: path, spec: spec, config: config}
	for _, rule := range specRules {
		rule(c)
	}
	return c.errs
}

// validateInstance returns the errors of the spec of a VMI that has its defaults.
func validateInstance(
	path *field.Path, spec *v1.VirtualMachineInstanceSpec, config clusterconfig.Config,
) field.ErrorList {
	c := &check{path: path, spec: spec, config: config, errs: validateSpec(path, spec, config)}
	for _, rule := range instanceRules {
		rule(c)
	}
	return c.errs
}

// at returns the path of a field below the spec.
func (c *check) at(name string, more ...string) *field.Path { return c.path.Child(name, more...) }

// devices returns the path of a list below domain.devices.
func (c *check) devices(name string) *field.Path { return c.path.Child("domain", "devices", name) }

func (c *check) invalid(p *field.Path, value any, format string, args ...any) {
	c.add(func() *field.Error { return field.Invalid(p, value, fmt.Sprintf(format, args...)) })
}

func (c *check) required(p *field.Path, format string, args ...any) {
	c.add(func() *field.Error { return field.Required(p, fmt.Sprintf(format, args...)) })
}

func (c *check) forbidden(p *field.Path, format string, args ...any) {
	c.add(func() *field.Error { return field.Forbidden(p, fmt.Sprintf(format, args...)) })
}

// add adds an error. One that is not listed is only counted, as a copy of the last one: a user determines how many
// there are, and a million texts would take hundreds of MiB.
func (c *check) add(err func() *field.Error) {
	if n := len(c.errs); n > specsupport.MaxErrors {
		c.errs = append(c.errs, c.errs[n-1])
		return
	}
	c.errs = append(c.errs, err())
}

// tooMany reports whether a list is longer than KubeVirt permits, and adds an error if it is.
func (c *check) tooMany(p *field.Path, length int) bool {
	if length <= maxListLength {
		return false
	}
	c.invalid(p, length, "%s list exceeds the %d element limit in length", p, maxListLength)
	return true
}

// Limits of what virt-controller keeps in memory for each object of a tenant, in bytes of JSON. The API server permits
// 1.5 MiB. KubeVirt has no such limits. A template is written as often as it has replicas.
const (
	maxSpec     = 512 << 10
	maxTemplate = 256 << 10
)

// tooLarge returns an error if a part of an object is larger than a limit, unless it already was: objects of an earlier
// version can still be started and changed. before is nil for a new object.
func tooLarge[T any](path *field.Path, limit int, before, after *T) field.ErrorList {
	if size(after) <= limit || before != nil && size(before) > limit {
		return nil
	}
	return field.ErrorList{field.TooLong(path, "", limit)}
}

// size returns how many bytes a part of an object has. What was decoded can be encoded.
func size[T any](part *T) int {
	raw, err := json.Marshal(part)
	if err != nil {
		return 0
	}
	return len(raw)
}
