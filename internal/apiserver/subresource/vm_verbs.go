// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// vmVerbs returns the verbs of a VM.
func (a *API) vmVerbs() []Verb {
	return []Verb{
		{
			Resource: VirtualMachines, Name: "start", Method: http.MethodPut, Body: &v1.StartOptions{},
			Doc: "Start a VirtualMachine.", Serve: a.start,
		},
		{
			Resource: VirtualMachines, Name: "stop", Method: http.MethodPut, Body: &v1.StopOptions{},
			Doc: "Stop a VirtualMachine.", Serve: a.stop,
		},
		{
			Resource: VirtualMachines, Name: "restart", Method: http.MethodPut, Body: &v1.RestartOptions{},
			Doc: "Restart a VirtualMachine: stop its VirtualMachineInstance and start another.", Serve: a.restart,
		},
		{
			Resource: VirtualMachines, Name: "migrate", Method: http.MethodPut, Body: &v1.MigrateOptions{},
			Doc: "Migrate a running VirtualMachine to another node.", Serve: a.migrate,
		},
		{
			Resource: VirtualMachines, Name: addVolume, Method: http.MethodPut, Body: &v1.AddVolumeOptions{},
			Doc: "Add a volume to a VirtualMachine, and plug it into the running guest.", Serve: a.addVolumeToVM,
		},
		{
			Resource: VirtualMachines, Name: removeVolume, Method: http.MethodPut, Body: &v1.RemoveVolumeOptions{},
			Doc: "Remove a hotpluggable volume from a VirtualMachine, and unplug it from the running guest.", Serve: a.removeVolumeFromVM,
		},
		{
			Resource: VirtualMachines, Name: "memorydump", Method: http.MethodPut, Body: &v1.VirtualMachineMemoryDumpRequest{},
			Doc: "Dump the memory of the running guest of a VirtualMachine to a PersistentVolumeClaim.", Serve: a.memoryDump,
		},
		{
			Resource: VirtualMachines, Name: "removememorydump", Method: http.MethodPut,
			Doc: "Remove the association of a VirtualMachine with the PersistentVolumeClaim of its memory dump.", Serve: a.removeMemoryDump,
		},
		{
			Resource: VirtualMachines, Name: "evacuate/cancel", Method: http.MethodPut, Body: &v1.EvacuateCancelOptions{},
			Doc: "Cancel the evacuation of the VirtualMachineInstance of a VirtualMachine.", Serve: a.cancelEvacuation(a.vmiOfVM),
		},
		{
			Resource: VirtualMachines, Name: "expand-spec", Method: http.MethodGet, Response: &v1.VirtualMachine{},
			Doc: "Get a VirtualMachine with its instance type and preference expanded.", Serve: a.expandSpec,
		},
		{
			Resource: VirtualMachines, Name: "objectgraph", Method: http.MethodGet, Body: &v1.ObjectGraphOptions{}, Response: &v1.ObjectGraphNode{},
			Doc: "Get the objects that a VirtualMachine depends on.", Serve: a.vmObjectGraph,
		},
	}
}
