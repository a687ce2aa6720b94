// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package backup

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vireo-project/vireo/internal/component/printable"
)

// Changes is what the agent knows about the changed blocks of a running guest's disks.
type Changes struct {
	// Tracked are the volumes whose disks have an overlay.
	Tracked []string
	// Checkpoints are the guest's checkpoints by name, with the volumes whose changed blocks are known since.
	Checkpoints map[string][]string
}

// maxBecause is how many characters a reason may have: the limit in the schema of the VMI's status.
const maxBecause = 1024

// maxNamed is how many volumes a text names.
const maxNamed = 5

// record returns the record with which a backup begins. It is an incremental one only if all of its disks have been tracked since the
// checkpoint: the images of one backup belong together. What kind of backup it is only changes if libvirt refuses an incremental one.
func (i *Intent) record(now time.Time, c Changes) Record {
	r := Record{ID: i.ID, Stage: Requested, StartedAt: now, Pull: i.Pull}
	if i.Checkpoint == "" {
		return r
	}
	if missing := i.without(c.Tracked); len(missing) > 0 {
		r.FullBecause = "changed blocks are not tracked of " + named(missing)
		return r
	}
	r.Checkpoint = i.Checkpoint
	if i.Since == "" {
		return r
	}
	since, found := c.Checkpoints[i.Since]
	switch missing := i.without(since); {
	case !found:
		r.FullBecause = fmt.Sprintf("the running guest does not have the checkpoint %s: it was started after that, or migrated without it, "+
			"or had more checkpoints than a guest keeps", i.Since)
	case len(missing) > 0:
		r.FullBecause = fmt.Sprintf("the checkpoint %s does not have %s", i.Since, named(missing))
	default:
		r.Since = i.Since
	}
	return r
}

// full returns the record of a full backup instead of an incremental one that has not begun. If the checkpoint is the cause, such as one with
// a broken bitmap, later backups would be refused, too. The tracker gets the checkpoint of this one instead.
func (r Record) full(because string) Record {
	r.Since, r.FullBecause = "", printable.Text(because, maxBecause)
	return r
}

// Obsolete returns the checkpoints from which no backup will start any more. A backup that creates none deletes none.
func (i *Intent) Obsolete(r Record, c Changes) []string {
	if r.Checkpoint == "" {
		return nil
	}
	var names []string
	for name := range c.Checkpoints {
		if name != r.Since && name != r.Checkpoint && !slices.Contains(i.Kept, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// without returns the volumes of the backup that are not in a list.
func (i *Intent) without(list []string) []string {
	var missing []string
	for _, volume := range i.Volumes {
		if !slices.Contains(list, volume) {
			missing = append(missing, volume)
		}
	}
	return missing
}

func named(volumes []string) string {
	if len(volumes) == 1 {
		return "the volume " + volumes[0]
	}
	text := "the volumes " + strings.Join(volumes[:min(len(volumes), maxNamed)], ", ")
	if more := len(volumes) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
