// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agentapi"
)

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
			Resource: VirtualMachineInstances, Name: agentapi.GuestOSInfo, Method: http.MethodGet, Response: &v1.VirtualMachineInstanceGuestAgentInfo{},
			Doc: "Get what the guest agent reports about the operating system.", Serve: guestInfo[v1.VirtualMachineInstanceGuestAgentInfo](a, agentapi.GuestOSInfo),
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.UserList, Method: http.MethodGet, Response: &v1.VirtualMachineInstanceGuestOSUserList{},
			Doc: "Get the users that are logged in to the guest.", Serve: guestInfo[v1.VirtualMachineInstanceGuestOSUserList](a, agentapi.UserList),
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.FilesystemList, Method: http.MethodGet, Response: &v1.VirtualMachineInstanceFileSystemList{},
			Doc: "Get the file systems that the guest has mounted.", Serve: guestInfo[v1.VirtualMachineInstanceFileSystemList](a, agentapi.FilesystemList),
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.Screenshot, Method: http.MethodGet,
			Doc: "Get a screenshot of a VirtualMachineInstance as PNG.", Serve: a.screenshot,
		},
		{
			Resource: VirtualMachineInstances, Name: addVolume, Method: http.MethodPut, Body: &v1.AddVolumeOptions{},
			Doc: "Plug a volume into the guest of a VirtualMachineInstance that no VirtualMachine owns.", Serve: a.addVolumeToVMI,
		},
		{
			Resource: VirtualMachineInstances, Name: removeVolume, Method: http.MethodPut, Body: &v1.RemoveVolumeOptions{},
			Doc: "Unplug a volume from the guest of a VirtualMachineInstance that no VirtualMachine owns.", Serve: a.removeVolumeFromVMI,
		},
		{
			Resource: VirtualMachineInstances, Name: "evacuate/cancel", Method: http.MethodPut, Body: &v1.EvacuateCancelOptions{},
			Doc: "Cancel the evacuation of a VirtualMachineInstance.", Serve: a.cancelEvacuation(a.requireVMI),
		},
		{
			Resource: VirtualMachineInstances, Name: "objectgraph", Method: http.MethodGet, Body: &v1.ObjectGraphOptions{}, Response: &v1.ObjectGraphNode{},
			Doc: "Get the objects that a VirtualMachineInstance depends on.", Serve: a.vmiObjectGraph,
		},
	}
}
