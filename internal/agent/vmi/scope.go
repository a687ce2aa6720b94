// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/jobs"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/domain"
)

// scope is the state of one reconciliation. Phases change it in memory; only report writes the VMI's status.
type scope struct {
	phase.Scope
	// cache is what earlier reconciliations of this Pod stored to save work.
	cache *podCache

	// jobs has the guest's backups, dumps and freezes.
	jobs *jobs.Guest
	// connection is the connection to the Pod's libvirtd. Phases take the interfaces that they need instead.
	connection Connection
	// interfaces are the taps by the interface's name, once they exist.
	interfaces map[string]domain.InterfaceFact
	// disks are the prepared volumes.
	disks *media.Result
	// guest is the guest agent's last report.
	guest *hypervisor.GuestInfo
	// credentials is the result of setting the access credentials in the guest; nil if that is not known.
	credentials *hypervisor.CredentialsState
	// delayedReport is the guest's previous report, which is used while writes of the current one are rate limited.
	delayedReport *guestReport
	// omitted is how many interfaces that the guest reports are not in the status.
	omitted int
	// ioErrors are the messages about the disks that failed, if that has changed.
	ioErrors []string
	// settling reports whether the guest was resumed after an I/O error and may be paused again in a moment.
	settling bool
	// undecided reports whether a migration has paused the guest, and neither node may let it run yet.
	undecided bool
}

// use sets what earlier reconciliations of the Pod stored, and what depends on it.
func (s *scope) use(cache *podCache, j *jobs.Jobs) {
	s.cache, s.Acts = cache, &cache.acts
	s.jobs = j.Of(&s.Scope, &cache.jobs)
}

// podCache saves work between reconciliations of a Pod. If it is lost, work is repeated, and nothing else happens. It is used only by the
// reconciliations of the Pod's VMI, of which there is one at a time, and by metrics, which read scraped.
//
// Each part belongs to one subject: only the file that declares the part's type uses its fields, and others call its methods.
// TestPartsOfThePodCache checks that.
type podCache struct {
	// key is the VMI's key.
	key types.NamespacedName
	// pod is the Pod's name.
	pod string
	// vmi is the VMI as it was read before it was assigned, when it is not in the cache. Nothing that is prepared from it
	// changes before the start.
	vmi *v1.VirtualMachineInstance

	// The start.
	prepared preparation
	realtime realtimePriority
	acts     phase.Acts
	// Changes of a running guest.
	sizes       diskSizes
	growths     growths
	pluggings   pluggings
	earlyMounts earlyMounts
	releases    releases
	// Jobs.
	jobs jobs.State
	// Pauses.
	recovery  recovery
	apiErrors apiErrors
	// Migrations.
	received received
	sent     sent
	// The end.
	shutdown shutdownRequests
	// What others see.
	reports reports
	scraped scraped
}

func newPodCache(key types.NamespacedName, pod string) *podCache {
	return &podCache{key: key, pod: pod, reports: newReports()}
}
