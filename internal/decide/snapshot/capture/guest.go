// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package capture

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	"github.com/vireo-project/vireo/internal/component/printable"
)

// Guest is the guest of a VM while a snapshot of it is taken.
type Guest struct {
	// Online reports whether there is a VMI, even a finished one.
	Online bool
	// Paused reports whether the guest's CPUs are paused.
	Paused bool
	// Agent reports whether its guest agent responds.
	Agent bool
	// Frozen is for how long its file systems were frozen; zero until they are thawed.
	Frozen time.Duration
	// Broken reports whether a snapshot was taken while the file systems were not frozen, though they should have been.
	Broken bool
	// Problem explains why, if that is known.
	Problem string
	// Settled reports whether it is known how the freeze ended: Frozen, Broken and Problem do not change any more.
	Settled bool
}

// messages explain the indications.
var messages = map[v1beta1.Indication]string{
	v1beta1.VMSnapshotOnlineSnapshotIndication: "Snapshot taken while the VM was running. " +
		"Consistency depends on guest-agent quiescing.",
	v1beta1.VMSnapshotGuestAgentIndication: "Guest agent was active and attempted to quiesce the filesystem for application consistency.",
	v1beta1.VMSnapshotNoGuestAgentIndication: "Guest agent was not available. " +
		"Snapshot is crash-consistent and may not be application-consistent.",
	v1beta1.VMSnapshotQuiesceTimeoutIndication: "Guest agent quiesced the filesystem, but the freeze window timed out before completion. " +
		"Snapshot is crash-consistent and may not be application-consistent.",
	v1beta1.VMSnapshotPausedIndication: "Snapshot taken while the VM was paused. " +
		"Snapshot is crash-consistent and may not be application-consistent.",
	v1beta1.VMSnapshotPartialSnapshotIndication: "Not all snapshotable volumes were included in the snapshot. " +
		"Check status.snapshotVolumes for excluded volumes and VM VolumeSnapshotStatus for details.",
}

func indication(kind v1beta1.Indication) v1beta1.SourceIndication {
	return v1beta1.SourceIndication{Indication: kind, Message: messages[kind]}
}

// indications returns the indications for the guest, ordered by name.
func (g Guest) indications() []v1beta1.SourceIndication {
	online := indication(v1beta1.VMSnapshotOnlineSnapshotIndication)
	switch {
	case !g.Online:
		return nil
	case g.Paused:
		return []v1beta1.SourceIndication{online, indication(v1beta1.VMSnapshotPausedIndication)}
	case !g.Agent:
		return []v1beta1.SourceIndication{indication(v1beta1.VMSnapshotNoGuestAgentIndication), online}
	}
	agent := indication(v1beta1.VMSnapshotGuestAgentIndication)
	if g.Frozen > 0 {
		agent.Message += fmt.Sprintf(" Its file systems were frozen for %s.", g.Frozen.Round(time.Millisecond))
	}
	if !g.Broken {
		return []v1beta1.SourceIndication{agent, online}
	}
	broken := indication(v1beta1.VMSnapshotQuiesceTimeoutIndication)
	if g.Problem != "" {
		// KubeVirt retries until the snapshot fails.
		broken.Message = printable.Text(g.Problem, maxProblem) +
			". Snapshot is crash-consistent and may not be application-consistent."
	}
	return []v1beta1.SourceIndication{agent, online, broken}
}

// Quiesced reports whether the guest's file systems are to be frozen while snapshots are taken.
func (g Guest) Quiesced() bool { return g.Online && g.Agent && !g.Paused }

// storedGuest is a Guest in the annotation of a content.
type storedGuest struct {
	Online  bool          `json:"online,omitempty"`
	Paused  bool          `json:"paused,omitempty"`
	Agent   bool          `json:"agent,omitempty"`
	Frozen  time.Duration `json:"frozen,omitempty"`
	Broken  bool          `json:"broken,omitempty"`
	Problem string        `json:"problem,omitempty"`
	Settled bool          `json:"settled,omitempty"`
}

// GuestOf returns the guest that is stored in a content. If there is none, or it cannot be read, the result is a guest
// that is not online.
func GuestOf(content *v1beta1.VirtualMachineSnapshotContent) Guest {
	var stored storedGuest
	if json.Unmarshal([]byte(content.Annotations[snapshot.GuestAnnotation]), &stored) != nil {
		return Guest{}
	}
	return Guest(stored)
}

// SetGuest stores a guest in a content, because the VMI may have been deleted when the status of the snapshot is
// computed.
func SetGuest(content *v1beta1.VirtualMachineSnapshotContent, guest Guest) error {
	raw, err := json.Marshal(storedGuest(guest))
	if err != nil {
		return fmt.Errorf("encode the state of the guest: %w", err)
	}
	metav1.SetMetaDataAnnotation(&content.ObjectMeta, snapshot.GuestAnnotation, string(raw))
	return nil
}
