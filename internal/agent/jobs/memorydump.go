// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Reasons of the status of a volume with a memory dump, and of the events about it. KubeVirt's.
const (
	// ReasonDumpInProgress: memory is being written, and the guest is suspended.
	ReasonDumpInProgress = "MemoryDumpInProgress"
	// ReasonDumpCompleted: the dump is there.
	ReasonDumpCompleted = "MemoryDumpCompleted"
	// ReasonDumpFailed: there is none.
	ReasonDumpFailed = "MemoryDumpFailed"
)

const (
	// dumpPoll is the time between two reads of the state of a memory dump. No event is registered that reports its
	// end.
	dumpPoll = 2 * time.Second
	// dumpTime is the format of the time in the name of a memory dump. KubeVirt's.
	dumpTime = "20060102-150405"
	// noDump is the message if a dump has ended and libvirt's error is not known.
	noDump = "The memory dump failed, and libvirt removed its file; often the claim is full. Use a larger claim and dump again"
)

// memoryDumper writes the memory of a running guest to a file.
type memoryDumper interface {
	// BeginMemoryDump removes earlier memory dumps from a directory and begins one. It does not wait until that is
	// complete.
	BeginMemoryDump(ctx context.Context, domain, dir, file string) error
	// MemoryDump returns how far a memory dump is.
	MemoryDump(ctx context.Context, domain, dir, file string) (hypervisor.DumpState, error)
}

// DumpMemory writes the guest's memory to each utility volume for that, once. The status has the file's name before
// libvirt is requested to write it. So the request is never repeated, and an agent that was restarted finds out how it
// ended: nothing but libvirt writes the file, and libvirt removes it after an error. mounted reports whether a volume
// is in the launcher Pod.
func (s *Guest) DumpMemory(ctx context.Context, guest memoryDumper, mounted func(volume string) bool) error {
	if s.VMI == nil || !s.Assigned || !s.Domain.Active() || vmistatus.Migrating(&s.VMI.Status) {
		return nil
	}
	for i := range s.VMI.Status.VolumeStatus {
		v := &s.VMI.Status.VolumeStatus[i]
		switch {
		case !vmistatus.IsHotplugged(v):
		case v.Phase == v1.HotplugVolumeMounted && isForDump(s.VMI, v) && vmistatus.IsWanted(s.VMI, v) && mounted(v.Name):
			s.announceDump(v)
		case v.Phase == v1.MemoryDumpVolumeInProgress && v.MemoryDumpVolume != nil:
			if err := s.followDump(ctx, guest, v); err != nil {
				return err
			}
		}
	}
	return nil
}

func isForDump(vmi *v1.VirtualMachineInstance, v *v1.VolumeStatus) bool {
	u := vmistatus.FindUtility(&vmi.Spec, v.Name)
	return u != nil && ptr.Deref(u.Type, "") == v1.MemoryDump && v.PersistentVolumeClaimInfo != nil
}

// DumpWaits reports whether a backup has to end before the memory is dumped to a volume: libvirt has one job at a time.
func (s *Guest) DumpWaits(v *v1.VolumeStatus) bool {
	return isForDump(s.VMI, v) && backup.InProgress(&s.VMI.Status)
}

// memoryDump is a memory dump that this process has announced and not begun.
type memoryDump struct {
	// file is the name of its file, or empty if there is none.
	file string
}

// announceDump puts the name of the file into the status, unless a backup has to end first.
func (s *Guest) announceDump(v *v1.VolumeStatus) {
	if s.DumpWaits(v) {
		s.RequeueAfter(backupPoll)
		return
	}
	claim, now := v.PersistentVolumeClaimInfo.ClaimName, s.Now.Truncate(time.Second)
	s.state.dump.file = fmt.Sprintf("%s-%s-%s%s", s.VMI.Name, claim, now.UTC().Format(dumpTime), hypervisor.DumpSuffix)
	v.Phase, v.Reason = v1.MemoryDumpVolumeInProgress, ReasonDumpInProgress
	v.Message = fmt.Sprintf("Memory dump Volume %s is attached, getting memory dump", v.Name)
	v.MemoryDumpVolume = &v1.DomainMemoryDumpInfo{ClaimName: claim, TargetFileName: s.state.dump.file,
		StartTimestamp: ptr.To(metav1.NewTime(now))}
	s.RequeueAfter(dumpPoll)
}

// followDump begins a dump that this process has announced, and reports how one has ended. The other phases wait until
// then.
func (s *Guest) followDump(ctx context.Context, guest memoryDumper, v *v1.VolumeStatus) error {
	dir, file := launcherpod.UtilityVolumeDir(v.Name), v.MemoryDumpVolume.TargetFileName
	if s.state.dump.file == file {
		s.state.dump.file = ""
		if err := guest.BeginMemoryDump(ctx, s.DomainName(), dir, file); err != nil {
			if errors.Is(err, hypervisor.ErrUnreachable) || errors.Is(err, hypervisor.ErrNoDomain) {
				return phase.FromConnection(err)
			}
			return s.endDump(v, hypervisor.CleanLine(err.Error(), phase.MaxMessage))
		}
	}
	state, err := guest.MemoryDump(ctx, s.DomainName(), dir, file)
	switch {
	case err != nil:
		return phase.FromConnection(err)
	case state == hypervisor.DumpActive:
		return &outcome.Requeue{After: dumpPoll}
	case state == hypervisor.DumpDone:
		return s.endDump(v, "")
	default:
		return s.endDump(v, noDump)
	}
}

// endDump reports how a dump has ended: with success if there is no problem. It ends the reconciliation, so that this
// is written before a later phase can unmount the volume.
func (s *Guest) endDump(v *v1.VolumeStatus, problem string) error {
	v.MemoryDumpVolume.EndTimestamp = ptr.To(metav1.NewTime(s.Now.Truncate(time.Second)))
	if problem == "" {
		v.Phase, v.Reason = v1.MemoryDumpVolumeCompleted, ReasonDumpCompleted
		v.Message = fmt.Sprintf("Memory dump Volume %s has completed successfully", v.Name)
	} else {
		v.Phase, v.Reason, v.Message = v1.MemoryDumpVolumeFailed, ReasonDumpFailed, problem
	}
	return &outcome.Requeue{After: time.Second}
}
