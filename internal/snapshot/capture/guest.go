// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package capture

import (
	"fmt"
	"time"

	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
)

// Guest is the guest of a VM while a snapshot of it is taken.
type Guest struct {
	// Online reports whether there is a VMI, even a finished one.
	Online bool
	// Paused reports whether the guest's CPUs are paused.
	Paused bool
	// Agent reports whether its guest agent responds.
	Agent bool
	// Frozen is how long its file systems were frozen; zero until they are thawed.
	Frozen time.Duration
	// Broken reports whether a snapshot was taken while the file systems were not frozen, though they should have been.
	Broken bool
	// Problem explains that, if it is known.
	Problem string
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

// indications returns what was special about the guest, in the order of their names.
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
		broken.Message = g.Problem + ". Snapshot is crash-consistent and may not be application-consistent."
	}
	return []v1beta1.SourceIndication{agent, online, broken}
}
