// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package convergence

import (
	"time"

	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/migration/policy"
)

// defaultProgressTimeout is the default of progressTimeout, in seconds. KubeVirt's (pkg/virt-config, defaults of migrations).
const defaultProgressTimeout = 150

// MaxDowntime is the most that QEMU accepts (MAX_MIGRATE_DOWNTIME in QEMU's migration/options.c): with it QEMU pauses the guest and
// switches over at once, however long that takes.
const MaxDowntime = 2000 * time.Second

// Rules are the limits of a transfer, from a migration's configuration.
type Rules struct {
	// perGiB is how long each GiB of memory and disks may take, and stuck how long the transfer may make no progress. 0 is forever.
	perGiB, stuck time.Duration
	// maxTotal is the most bytes that there can be to transfer, by the VMI; 0 is any number. The launcher reports the actual number, and
	// the more it reports, the longer the migration may take.
	maxTotal uint64
	// downtime is the longest that the guest may be paused as long as it is not disrupted; 0 leaves it to QEMU.
	downtime time.Duration
	// disruption allows to disrupt the guest, and postCopy to do that by a post-copy.
	disruption, postCopy bool
	// autoConverge has QEMU throttle the guest.
	autoConverge bool
	// stall configures the stall detection, with the feature gate MigrationStallDetection; nil without.
	stall *stallOptions
}

// NewRules returns the rules of a migration. maxTotal is the most bytes that there can be to transfer; 0 is any number. detectStalls is
// the feature gate MigrationStallDetection.
func NewRules(c *v1.VMIMConfigurationOptions, maxTotal uint64, detectStalls bool) Rules {
	r := rulesOf(c)
	r.maxTotal = maxTotal
	if detectStalls {
		r.stall = stallOptionsOf(c)
	}
	return r
}

func rulesOf(c *v1.VMIMConfigurationOptions) Rules {
	r := Rules{perGiB: policy.PerGiB(c), stuck: defaultProgressTimeout * time.Second}
	if c == nil {
		return r
	}
	if c.ProgressTimeout != nil {
		r.stuck = seconds(*c.ProgressTimeout)
	}
	if c.MaxDowntimeMs != nil {
		r.downtime = time.Duration(min(*c.MaxDowntimeMs, uint64(MaxDowntime.Milliseconds()))) * time.Millisecond
	}
	r.autoConverge = ptr.Deref(c.AllowAutoConverge, false)
	r.postCopy = ptr.Deref(c.AllowPostCopy, false)
	r.disruption = r.postCopy
	if c.AllowWorkloadDisruption != nil {
		r.disruption = *c.AllowWorkloadDisruption
	}
	return r
}

// WithoutPostCopy returns the rules for a target that does not support post-copy. Allowing post-copy does not allow to pause the guest.
func (r Rules) WithoutPostCopy() Rules {
	r.disruption = r.disruption && !r.postCopy
	r.postCopy = false
	return r
}

// seconds converts a number that a user wrote. More than a year counts as a year: it does not overflow.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), 365*24*3600)) * time.Second
}
