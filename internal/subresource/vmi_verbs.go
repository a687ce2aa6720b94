// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agentapi"
)

// vmiVerbs are done to an instance, and do not stream.
func (a *API) vmiVerbs() []Verb {
	return []Verb{
		{
			Resource: VirtualMachineInstances, Name: agentapi.Pause, Method: http.MethodPut, Body: &v1.PauseOptions{},
			Doc: "Pause a VirtualMachineInstance: its CPUs stand still.", Serve: a.pause,
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.Unpause, Method: http.MethodPut, Body: &v1.UnpauseOptions{},
			Doc: "Let the CPUs of a paused VirtualMachineInstance run again.", Serve: a.unpause,
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.SoftReboot, Method: http.MethodPut,
			Doc: "Ask the guest of a VirtualMachineInstance to reboot.", Serve: a.softReboot,
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.Reset, Method: http.MethodPut,
			Doc: "Reset a VirtualMachineInstance without asking its guest.", Serve: a.reset,
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
			Resource: VirtualMachineInstances, Name: agentapi.GuestOSInfo, Method: http.MethodGet, Answer: &v1.VirtualMachineInstanceGuestAgentInfo{},
			Doc: "Get what the agent in the guest tells of its operating system.", Serve: guestInfo[v1.VirtualMachineInstanceGuestAgentInfo](a, agentapi.GuestOSInfo),
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.UserList, Method: http.MethodGet, Answer: &v1.VirtualMachineInstanceGuestOSUserList{},
			Doc: "Get the users that are logged in to the guest.", Serve: guestInfo[v1.VirtualMachineInstanceGuestOSUserList](a, agentapi.UserList),
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.FilesystemList, Method: http.MethodGet, Answer: &v1.VirtualMachineInstanceFileSystemList{},
			Doc: "Get the file systems that the guest has mounted.", Serve: guestInfo[v1.VirtualMachineInstanceFileSystemList](a, agentapi.FilesystemList),
		},
		{
			Resource: VirtualMachineInstances, Name: agentapi.Screenshot, Method: http.MethodGet,
			Doc: "Get a picture of the screen of a VirtualMachineInstance as PNG.", Serve: a.screenshot,
		},
		{
			Resource: VirtualMachineInstances, Name: "evacuate/cancel", Method: http.MethodPut, Body: &v1.EvacuateCancelOptions{},
			Doc: "Let a VirtualMachineInstance stay on a node that it was to leave.", Serve: a.cancelEvacuation(a.requireVMI),
		},
		{
			Resource: VirtualMachineInstances, Name: "objectgraph", Method: http.MethodGet, Body: &v1.ObjectGraphOptions{}, Answer: &v1.ObjectGraphNode{},
			Doc: "Get the objects that a VirtualMachineInstance needs.", Serve: a.vmiObjectGraph,
		},
	}
}
