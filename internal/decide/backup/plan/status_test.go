// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

// Clients of KubeVirt look for its sentences.
func TestMessagesBeginWithTheSentencesOfKubeVirt(t *testing.T) {
	begins := func(c *cluster, kind v1alpha1.ConditionType, text string) {
		t.Helper()
		got := meta.FindStatusCondition(c.Backup.Status.Conditions, string(kind))
		if got == nil || !strings.HasPrefix(got.Message, text) || got.Message == text {
			t.Errorf("condition %s is %+v, its message does not begin with %q", kind, got, text)
		}
	}
	c := newCluster(t)
	c.begin()
	begins(c, v1alpha1.ConditionProgressing, "Backup is in progress")
	begins(c, v1alpha1.ConditionQuiesced, "Guest filesystem quiesce was skipped")
	c.record(backup.Succeeded, "")
	c.finish()
	begins(c, v1alpha1.ConditionComplete, "Successfully completed VirtualMachineBackup")
	begins(c, v1alpha1.ConditionProgressing, "Successfully completed VirtualMachineBackup")

	c = newCluster(t)
	c.begin()
	c.record(backup.Failed, "no space left")
	c.finish()
	begins(c, v1alpha1.ConditionFailed, "Backup has failed: ")

	c = newCluster(t)
	c.begin()
	deleted := metav1.NewTime(c.Now)
	c.Backup.DeletionTimestamp = &deleted
	c.next()
	begins(c, v1alpha1.ConditionProgressing, "Backup is aborting")

	for quiesced, kept := range map[string]bool{"Guest filesystem was successfully quiesced": true,
		"Guest filesystem quiesce failed": false} {
		c = newCluster(t)
		c.connectAgent()
		c.next()
		c.mount()
		c.next()
		c.freeze(freeze.Frozen, false, "")
		c.next()
		c.record(backup.Running, "")
		c.next()
		c.freeze(freeze.Thawed, kept, "")
		c.next()
		begins(c, v1alpha1.ConditionQuiesced, quiesced)
		if kept {
			continue
		}
		c.record(backup.Succeeded, "")
		c.finish()
		begins(c, v1alpha1.ConditionComplete, "Completed VirtualMachineBackup, warning: Guest filesystem quiesce failed")
	}
}
