// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/internal/component/memorylimit"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/observe/monitoring"
	"github.com/vireo-project/vireo/internal/decide/restore"
)

// What is not bounded by a constant is the cache: SECURITY.md says which quotas bound it.
func TestWorstCaseFitsIntoTheMemoryLimit(t *testing.T) {
	const mib = 1 << 20
	const (
		// The heap of 10,000 VMs of the usual size, docs/adr/0039-memory-of-the-components.md.
		heap = 290 * mib
		// The workers that list the metadata of a namespace: those of pools, replica sets, clones, backups, and VMIs that
		// backups have abandoned, those of VMIs, which look for the state claim, and the one that admits migrations, which
		// lists whole ones afterwards. A page is in memory encoded and decoded.
		listing, listingWhole, copies = 5*3 + 10 + 1, 1, 2
		// large is how many objects of a mebibyte fit beside all that. SECURITY.md names the number.
		large = 250
	)
	used := int64(heap) + int64(metrics.LabelCopies)*monitoring.MaxLabelBytes + restore.RememberedBytes +
		listing*copies*kit.PageSize*kit.MetadataBytes + listingWhole*copies*kit.WholePageSize*kit.ObjectBytes
	limit := memoryLimit(t) / 100 * memorylimit.PureGo
	t.Logf("%d MiB, limit for Go: %d MiB", used/mib, limit/mib)
	if used+large*mib > limit {
		t.Errorf("the heap may have %d MiB with %d objects of 1 MiB, and GOMEMLIMIT is %d MiB", used/mib+large, large,
			limit/mib)
	}
}

// memoryLimit returns the memory limit of virt-controller's container in bytes.
func memoryLimit(t *testing.T) int64 {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "..", "config", "manager", "virt-controller.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(content, &d); err != nil {
		t.Fatal(err)
	}
	limit := d.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().Value()
	if limit == 0 {
		t.Fatal("virt-controller has no memory limit")
	}
	return limit
}
