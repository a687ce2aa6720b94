// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/fairqueue"
	"github.com/vireo-project/vireo/internal/agent/httpserver"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agentapi"
)

// queued returns a verb that waits for a slot in the fair queue. It is for verbs that wait for a guest, or whose response takes
// memory: unresponsive guests of one namespace do not delay requests of others.
func (s *Server) queued(do verb) verb {
	return func(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
		release, err := s.guestRequests.Acquire(r.Context(), v.vmi.Namespace, 1)
		if errors.Is(err, fairqueue.ErrQueueFull) {
			return tooMany(fmt.Sprintf("%d requests to guests of namespace %s are running or queued on the node, which is the limit for one namespace",
				s.Limits.GuestRequestsPerNamespace+s.Limits.GuestRequestQueue, v.vmi.Namespace))
		}
		if err != nil {
			return err
		}
		defer release()
		// The launcher's responses are in memory until the response is sent.
		ctx, end := s.Responses.StartConversation(r.Context(), v.vmi.Namespace)
		defer end()
		return do(w, r.WithContext(ctx), v)
	}
}

// guestOSInfo returns everything that the guest agent reports.
func guestOSInfo(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	agent, err := v.conn.GuestAgent(r.Context(), v.domain)
	if err != nil {
		return err
	}
	os := agent.Info.OS
	info := v1.VirtualMachineInstanceGuestAgentInfo{
		TypeMeta:  typeMeta("VirtualMachineInstanceGuestAgentInfo"),
		GAVersion: agent.Version, Hostname: agent.Info.Hostname, Timezone: agent.Timezone,
		OS: v1.VirtualMachineInstanceGuestOSInfo{
			Name: os.Name, KernelRelease: os.KernelRelease, Version: os.Version, PrettyName: os.PrettyName,
			VersionID: os.VersionID, KernelVersion: os.KernelVersion, Machine: os.Machine, ID: os.ID,
		},
		UserList: usersOf(agent.Users), FSInfo: v1.VirtualMachineInstanceFileSystemInfo{Filesystems: filesystemsOf(agent.Filesystems)},
	}
	for _, c := range agent.Commands {
		info.SupportedCommands = append(info.SupportedCommands, v1.GuestAgentCommandInfo{Name: c.Name, Enabled: c.Enabled})
	}
	if agent.Frozen {
		info.FSFreezeStatus = "frozen"
	}
	httpserver.WriteJSON(w, http.StatusOK, info)
	return nil
}

// userList returns the users who are logged in.
func userList(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	users, err := v.conn.GuestUsers(r.Context(), v.domain)
	if err != nil {
		return err
	}
	httpserver.WriteJSON(w, http.StatusOK, v1.VirtualMachineInstanceGuestOSUserList{
		TypeMeta: typeMeta("VirtualMachineInstanceGuestOSUserList"), ListMeta: omitted(users.Omitted), Items: usersOf(users),
	})
	return nil
}

// filesystemList returns the mounted file systems.
func filesystemList(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	filesystems, err := v.conn.GuestFilesystems(r.Context(), v.domain)
	known := v.conn.Usage()
	switch {
	case err == nil:
	case errors.Is(err, hypervisor.ErrGuestRefused) && v.vmi.Status.FSFreezeStatus != "" && known != nil:
		// The guest agent of a frozen guest reports none.
		filesystems.Items = known.Filesystems
		text := fmt.Sprintf("the guest is frozen: its file systems are those of %s ago", time.Since(known.At).Round(time.Second))
		if header, err := utilnet.NewWarningHeader(299, "-", text); err == nil {
			w.Header().Add(agentapi.WarningHeader, header)
		}
	default:
		return err
	}
	httpserver.WriteJSON(w, http.StatusOK, v1.VirtualMachineInstanceFileSystemList{
		TypeMeta: typeMeta("VirtualMachineInstanceFileSystemList"), ListMeta: omitted(filesystems.Omitted), Items: filesystemsOf(filesystems),
	})
	return nil
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: kind, APIVersion: v1.GroupVersion.String()}
}

// omitted returns the metadata of a list from which items were left out.
func omitted(count int) metav1.ListMeta {
	if count == 0 {
		return metav1.ListMeta{}
	}
	return metav1.ListMeta{RemainingItemCount: ptr.To(int64(count))}
}

func usersOf(users hypervisor.List[hypervisor.GuestUser]) []v1.VirtualMachineInstanceGuestOSUser {
	out := make([]v1.VirtualMachineInstanceGuestOSUser, 0, len(users.Items))
	for _, u := range users.Items {
		out = append(out, v1.VirtualMachineInstanceGuestOSUser{UserName: u.Name, Domain: u.Domain, LoginTime: u.LoginTime})
	}
	return out
}

func filesystemsOf(filesystems hypervisor.List[hypervisor.GuestFilesystem]) []v1.VirtualMachineInstanceFileSystem {
	out := make([]v1.VirtualMachineInstanceFileSystem, 0, len(filesystems.Items))
	for _, f := range filesystems.Items {
		filesystem := v1.VirtualMachineInstanceFileSystem{
			DiskName: f.Name, MountPoint: f.Mountpoint, FileSystemType: f.Type, UsedBytes: int(f.UsedBytes), TotalBytes: int(f.TotalBytes),
		}
		for _, d := range f.Disks {
			filesystem.Disk = append(filesystem.Disk, v1.VirtualMachineInstanceFileSystemDisk{Serial: d.Serial, BusType: d.Bus})
		}
		out = append(out, filesystem)
	}
	return out
}
