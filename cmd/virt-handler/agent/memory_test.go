// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/internal/agent/guestmetrics"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/agent/server"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/component/memorylimit"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

const kib, mib int64 = 1 << 10, 1 << 20

// The calculation of docs/adr/0060-response-memory-budget.md.
func TestWorstCaseFitsIntoTheMemoryLimit(t *testing.T) {
	limit, tmpfs := fromManifest(t)
	const (
		// When idle, the agent has 91 MiB resident (README.md), of which libraries and code are a third.
		restGo, restOther = 64 * mib, 32 * mib
		// While the C library decodes a response, it has it twice: encoded and decoded.
		copies = 2
	)
	conversations := int64(hypervisor.ResponseBudgetBytes / hypervisor.ConversationBytes)
	launchers := int64(agentvmi.MaxVMIs)
	inGo := restGo +
		hypervisor.ResponseBudgetBytes +
		hypervisor.MaxParsing*hypervisor.MaxXMLElements*hypervisor.ElementParsing +
		launchers*(rpc.RelayBytes+
			// One small response of libvirt and one of the guest agent, one small description, the last report of the guest, and
			// a few checkpoints.
			2*hypervisor.SmallResponse+hypervisor.SmallXML+rpc.MaxGuestInfo+rpc.SmallCheckpoints+
			// The last statistics of the guest.
			hypervisor.MaxStats+hypervisor.MaxUsage) +
		// Small responses with statistics.
		guestmetrics.Slots*hypervisor.SmallResponse +
		// Which blocks of a guest's disks have changed, for a backup after its migration.
		peer.ReceivedBitmaps + peer.SentBitmaps +
		metrics.LabelCopies*guestmetrics.MaxLabelBytes +
		int64(server.DefaultLimits.Streams)*server.StreamBytes
	other := restOther + tmpfs +
		conversations*copies*rpc.MaxMessage +
		launchers*(copies*hypervisor.SmallResponse+rpc.BurstEvents*libvirtwire.MaxEvent)
	t.Logf("Go: %d MiB, other: %d MiB, limit: %d MiB", inGo/mib, other/mib, limit/mib)
	if most := limit / 100 * memorylimit.WithLibvirt; inGo > most {
		t.Errorf("Go's heap may have %d KiB, and GOMEMLIMIT is %d KiB", inGo/kib, most/kib)
	}
	if inGo+other > limit {
		t.Errorf("all may have %d KiB, and the limit is %d KiB", (inGo+other)/kib, limit/kib)
	}
}

// fromManifest returns the agent's memory limit, and the size of its files in memory, which count toward it.
func fromManifest(t *testing.T) (limit, tmpfs int64) {
	t.Helper()
	content, err := os.ReadFile(
		filepath.Join("..", "..", "..", "internal", "controller", "install", "kubevirt", "manifests", "templates",
			"virt-handler.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(content, &set); err != nil {
		t.Fatal(err)
	}
	container := set.Spec.Template.Spec.Containers[0]
	for _, mount := range container.VolumeMounts {
		for _, volume := range set.Spec.Template.Spec.Volumes {
			if volume.Name == mount.Name && volume.EmptyDir != nil && volume.EmptyDir.Medium == "Memory" {
				tmpfs += volume.EmptyDir.SizeLimit.Value()
			}
		}
	}
	limit = container.Resources.Limits.Memory().Value()
	if limit == 0 || tmpfs == 0 {
		t.Fatalf("the limit is %d, files in memory have %d", limit, tmpfs)
	}
	return limit, tmpfs
}
