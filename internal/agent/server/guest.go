// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/httpserver"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/limits"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// queued returns a verb that waits for a slot in the fair queue. It is for verbs that wait for a guest, or whose
// response takes memory: unresponsive guests of one namespace do not delay requests of others.
func (s *Server) queued(do verb) verb {
	return func(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
		release, err := s.guestRequests.Acquire(r.Context(), v.vmi.Namespace, 1)
		if errors.Is(err, limits.ErrQueueFull) {
			return tooMany(fmt.Sprintf(
				"%d requests to guests of namespace %s are running or queued on the node, which is the limit for one namespace",
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
		UserList: usersOf(agent.Users),
		FSInfo:   v1.VirtualMachineInstanceFileSystemInfo{Filesystems: filesystemsOf(agent.Filesystems)},
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
		text := fmt.Sprintf("the guest is frozen: its file systems are those of %s ago",
			time.Since(known.At).Round(time.Second))
		if header, err := utilnet.NewWarningHeader(299, "-", text); err == nil {
			w.Header().Add(agentapi.WarningHeader, header)
		}
	default:
		return err
	}
	httpserver.WriteJSON(w, http.StatusOK, v1.VirtualMachineInstanceFileSystemList{
		TypeMeta: typeMeta("VirtualMachineInstanceFileSystemList"), ListMeta: omitted(filesystems.Omitted),
		Items: filesystemsOf(filesystems),
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
			DiskName: f.Name, MountPoint: f.Mountpoint, FileSystemType: f.Type, UsedBytes: int(f.UsedBytes),
			TotalBytes: int(f.TotalBytes),
		}
		for _, d := range f.Disks {
			filesystem.Disk = append(filesystem.Disk, v1.VirtualMachineInstanceFileSystemDisk{Serial: d.Serial, BusType: d.Bus})
		}
		out = append(out, filesystem)
	}
	return out
}

// defaultUnfreeze is the time after which a guest is thawed if the request has none. Source: KubeVirt's
// staging/src/kubevirt.io/client-go; its snapshots use the same.
const defaultUnfreeze = 5 * time.Minute

// freeze stops writes to the guest's file systems. They resume after a timeout, so that a client that dies does not
// leave the guest frozen. A timeout of zero means until unfreeze, as in KubeVirt.
func freeze(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	options := &v1.FreezeUnfreezeTimeout{}
	if err := json.NewDecoder(r.Body).Decode(options); err != nil && !errors.Is(err, io.EOF) {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return err
		}
		return apierrors.NewBadRequest("the body is no FreezeUnfreezeTimeout: " + err.Error())
	}
	limit := defaultUnfreeze
	if options.UnfreezeTimeout != nil {
		limit = options.UnfreezeTimeout.Duration
	}
	if limit < 0 {
		return apierrors.NewBadRequest(
			"unfreezeTimeout is negative: give 0s for a freeze that lasts until unfreeze, or how long it may last")
	}
	if err := v.conn.Freeze(r.Context(), v.domain, limit); err != nil {
		return commandFailed("Freeze", err)
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// unfreeze ends a freeze.
func unfreeze(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	if err := v.conn.Thaw(r.Context(), v.domain); err != nil {
		return commandFailed("Unfreeze", err)
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// commandFailed returns an error of the guest agent with the words of KubeVirt's (pkg/virt-handler/cmd-client), which
// clients search for.
func commandFailed(command string, err error) error {
	if !errors.Is(err, hypervisor.ErrGuestSilent) && !errors.Is(err, hypervisor.ErrGuestRefused) {
		return err
	}
	return apierrors.NewInternalError(
		fmt.Errorf("command %s failed: %s", command, hypervisor.CleanLine(err.Error(), maxErrorText)))
}

// act returns a verb that performs one action on the guest and sends an empty response. The VMI's status shows the
// result.
func act(do func(Connection, context.Context, string) error) verb {
	return func(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
		if err := do(v.conn, r.Context(), v.domain); err != nil {
			return err
		}
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
}
