// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/handler/reconciler"
	"github.com/vireo-project/vireo/internal/handler/server"
	"github.com/vireo-project/vireo/internal/libvirtrpc"
	"github.com/vireo-project/vireo/internal/memorylimit"
)

const kib, mib int64 = 1 << 10, 1 << 20

// TestTheWorstThatLaunchersDoFitsIntoTheAgentsLimit reckons up docs/adr/0060-what-launchers-make-an-agent-keep.md.
func TestTheWorstThatLaunchersDoFitsIntoTheAgentsLimit(t *testing.T) {
	limit, tmpfs := fromManifest(t)
	const (
		// At rest the agent has 91 MiB resident (README.md), of which libraries and code are a third.
		restGo, restOther = 64 * mib, 32 * mib
		// The C library has an answer twice while it decodes it: as a message, and as what it decoded.
		copies = 2
	)
	shares := int64(hypervisor.AnswersBytes / hypervisor.AnswerBytes)
	launchers := int64(reconciler.MaxVMIs)
	inGo := restGo +
		hypervisor.AnswersBytes +
		hypervisor.MaxParsing*hypervisor.MaxXMLElements*hypervisor.ElementParsing +
		launchers*(rpc.RelayBytes+
			// One small answer of libvirt and one of the guest's agent, one small description, and what the guest told last.
			2*hypervisor.SmallAnswer+hypervisor.SmallDescription+rpc.MaxGuestInfo) +
		int64(server.DefaultLimits.Streams)*server.StreamBytes
	other := restOther + tmpfs +
		shares*copies*rpc.MaxMessage +
		launchers*(copies*hypervisor.SmallAnswer+rpc.BurstEvents*libvirtrpc.MaxEvent)
	t.Logf("Go: %d MiB, other: %d MiB, limit: %d MiB", inGo/mib, other/mib, limit/mib)
	if most := limit / 100 * memorylimit.WithLibvirt; inGo > most {
		t.Errorf("Go's heap may have %d KiB, and GOMEMLIMIT is %d KiB", inGo/kib, most/kib)
	}
	if inGo+other > limit {
		t.Errorf("all may have %d KiB, and the limit is %d KiB", (inGo+other)/kib, limit/kib)
	}
}

// fromManifest is the agent's limit, and the size of its files in memory, which count against it.
func fromManifest(t *testing.T) (limit, tmpfs int64) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "operator", "manifests", "virt-handler.yaml"))
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
