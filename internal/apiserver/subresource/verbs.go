// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/version"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
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
			Doc:   "Remove a hotpluggable volume from a VirtualMachine, and unplug it from the running guest.",
			Serve: a.removeVolumeFromVM,
		},
		{
			Resource: VirtualMachines, Name: "memorydump", Method: http.MethodPut, Body: &v1.VirtualMachineMemoryDumpRequest{},
			Doc: "Dump the memory of the running guest of a VirtualMachine to a PersistentVolumeClaim.", Serve: a.memoryDump,
		},
		{
			Resource: VirtualMachines, Name: "removememorydump", Method: http.MethodPut,
			Doc:   "Remove the association of a VirtualMachine with the PersistentVolumeClaim of its memory dump.",
			Serve: a.removeMemoryDump,
		},
		{
			Resource: VirtualMachines, Name: "evacuate/cancel", Method: http.MethodPut, Body: &v1.EvacuateCancelOptions{},
			Doc:   "Cancel the evacuation of the VirtualMachineInstance of a VirtualMachine.",
			Serve: a.cancelEvacuation(a.vmiOfVM),
		},
		{
			Resource: VirtualMachines, Name: "expand-spec", Method: http.MethodGet, Response: &v1.VirtualMachine{},
			Doc: "Get a VirtualMachine with its instance type and preference expanded.", Serve: a.expandSpec,
		},
		{
			Resource: VirtualMachines, Name: "objectgraph", Method: http.MethodGet, Body: &v1.ObjectGraphOptions{},
			Response: &v1.ObjectGraphNode{}, Doc: "Get the objects that a VirtualMachine depends on.", Serve: a.vmObjectGraph,
		},
	}
}

// vmiVerbs returns the verbs of a VMI that do not stream.
func (a *API) vmiVerbs() []Verb {
	return []Verb{
		{
			Resource: VirtualMachineInstances, Name: agentapi.Pause, Method: http.MethodPut, Body: &v1.PauseOptions{},
			Doc: "Pause the CPUs of a VirtualMachineInstance.", Serve: a.pause,
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.Unpause, Method: http.MethodPut, Body: &v1.UnpauseOptions{},
			Doc: "Resume a paused VirtualMachineInstance.", Serve: a.unpause,
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.SoftReboot, Method: http.MethodPut,
			Doc: "Request that the guest of a VirtualMachineInstance reboots.", Serve: a.softReboot,
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.Reset, Method: http.MethodPut,
			Doc: "Reset a VirtualMachineInstance without the cooperation of its guest.", Serve: a.reset,
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.Freeze, Method: http.MethodPut, Body: &v1.FreezeUnfreezeTimeout{},
			Doc: "Freeze the file systems of the guest of a VirtualMachineInstance.", Serve: a.freeze,
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.Unfreeze, Method: http.MethodPut,
			Doc: "Thaw the file systems of the guest of a VirtualMachineInstance.", Serve: a.unfreeze,
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.GuestOSInfo, Method: http.MethodGet,
			Response: &v1.VirtualMachineInstanceGuestAgentInfo{},
			Doc:      "Get what the guest agent reports about the operating system.",
			Serve:    guestInfo[v1.VirtualMachineInstanceGuestAgentInfo](a, agentapi.GuestOSInfo),
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.UserList, Method: http.MethodGet,
			Response: &v1.VirtualMachineInstanceGuestOSUserList{},
			Doc:      "Get the users that are logged in to the guest.",
			Serve:    guestInfo[v1.VirtualMachineInstanceGuestOSUserList](a, agentapi.UserList),
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.FilesystemList, Method: http.MethodGet,
			Response: &v1.VirtualMachineInstanceFileSystemList{},
			Doc:      "Get the file systems that the guest has mounted.",
			Serve:    guestInfo[v1.VirtualMachineInstanceFileSystemList](a, agentapi.FilesystemList),
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.Screenshot, Method: http.MethodGet,
			Doc: "Get a screenshot of a VirtualMachineInstance as PNG.", Serve: a.screenshot,
		},
		{
			Resource: VirtualMachineInstances, Name: addVolume, Method: http.MethodPut, Body: &v1.AddVolumeOptions{},
			Doc:   "Plug a volume into the guest of a VirtualMachineInstance that no VirtualMachine owns.",
			Serve: a.addVolumeToVMI,
		},
		{
			Resource: VirtualMachineInstances, Name: removeVolume, Method: http.MethodPut, Body: &v1.RemoveVolumeOptions{},
			Doc:   "Unplug a volume from the guest of a VirtualMachineInstance that no VirtualMachine owns.",
			Serve: a.removeVolumeFromVMI,
		},
		{
			Resource: VirtualMachineInstances, Name: "evacuate/cancel", Method: http.MethodPut,
			Body: &v1.EvacuateCancelOptions{},
			Doc:  "Cancel the evacuation of a VirtualMachineInstance.", Serve: a.cancelEvacuation(a.requireVMI),
		},
		{
			Resource: VirtualMachineInstances, Name: "objectgraph", Method: http.MethodGet, Body: &v1.ObjectGraphOptions{},
			Response: &v1.ObjectGraphNode{},
			Doc:      "Get the objects that a VirtualMachineInstance depends on.", Serve: a.vmiObjectGraph,
		},
	}
}

// clusterVerbs returns the verbs that concern no object.
func (a *API) clusterVerbs() []Verb {
	return []Verb{
		{
			Name: "expand-vm-spec", Namespaced: true, Method: http.MethodPut, Body: &v1.VirtualMachine{},
			Response: &v1.VirtualMachine{},
			Doc:      "Expand the instance type and the preference of a VirtualMachine.", Serve: a.expandVMSpec,
		},
		{
			Name: "version", Method: http.MethodGet, Response: &version.Info{},
			Doc: "Get the version of virt-api.", Serve: serveVersion,
		},
		{
			Name: "guestfs", Method: http.MethodGet, Response: &v1.GuestfsInfo{},
			Doc: "Get the image of libguestfs-tools.", Serve: a.guestfs,
		},
		{
			Name: "healthz", Method: http.MethodGet,
			Doc: "Check whether virt-api reaches the API server.", Serve: a.healthz,
		},
	}
}

func serveVersion(w http.ResponseWriter, _ *http.Request) error {
	writeObject(w, version.Get())
	return nil
}

// healthz serves the same response as the component's /healthz, as in KubeVirt.
func (a *API) healthz(w http.ResponseWriter, r *http.Request) error {
	a.Health.ServeHTTP(w, r)
	return nil
}
