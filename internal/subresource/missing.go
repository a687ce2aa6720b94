// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/subresource/agent"
)

// missing is a verb of KubeVirt that cannot be done yet.
type missing struct {
	resource, name, method string
	why                    string
}

// Why verbs are missing.
const (
	noHotplug    = "disks cannot be attached to and detached from a running guest"
	noMemoryDump = "there is nothing that takes memory dumps"
	noBackup     = "there is nothing that takes backups"
	noSEV        = "guests with encrypted memory do not run"
	noProfiler   = "the components' profiles cannot be collected"
)

// missings are those verbs. They are in the table so that they are known, are a right of their own, and say what is missing.
var missings = []missing{
	{VirtualMachines, "addvolume", http.MethodPut, noHotplug},
	{VirtualMachines, "removevolume", http.MethodPut, noHotplug},
	{VirtualMachines, "memorydump", http.MethodPut, noMemoryDump},
	{VirtualMachines, "removememorydump", http.MethodPut, noMemoryDump},
	{VirtualMachineInstances, "addvolume", http.MethodPut, noHotplug},
	{VirtualMachineInstances, "removevolume", http.MethodPut, noHotplug},
	{VirtualMachineInstances, "backup", http.MethodPut, noBackup},
	{VirtualMachineInstances, "redefine-checkpoint", http.MethodPut, noBackup},
	{VirtualMachineInstances, "sev/fetchcertchain", http.MethodGet, noSEV},
	{VirtualMachineInstances, "sev/querylaunchmeasurement", http.MethodGet, noSEV},
	{VirtualMachineInstances, "sev/setupsession", http.MethodPut, noSEV},
	{VirtualMachineInstances, "sev/injectlaunchsecret", http.MethodPut, noSEV},
	{"", "start-cluster-profiler", http.MethodGet, noProfiler},
	{"", "stop-cluster-profiler", http.MethodGet, noProfiler},
	{"", "dump-cluster-profiler", http.MethodGet, noProfiler},
}

func missingVerbs() []Verb {
	verbs := make([]Verb, 0, len(missings))
	for _, m := range missings {
		verb := Verb{Resource: m.resource, Name: m.name, Method: m.method, Doc: "Not implemented: " + m.why + "."}
		verb.Serve = func(http.ResponseWriter, *http.Request) error { return notImplemented(verb.RBACName(), m.why) }
		verbs = append(verbs, verb)
	}
	return verbs
}

// notImplemented answers for a verb that cannot be done yet.
func notImplemented(verb, why string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotImplemented, Reason: agent.NotImplemented,
		Message: verb + " is not implemented by Vireo yet: " + why,
		Details: &metav1.StatusDetails{Group: GroupName, Kind: verb},
	}}
}
