// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("A network for migrations", func() {
	var m *migrations

	BeforeEach(func() { m = newMigrations() })

	// named configures the network in the KubeVirt object.
	named := func() {
		config := m.vmis.Config.Current()
		config.Migrations.Network = ptr.To(m.ns + "/wire")
		config.MigrationNetwork = types.NamespacedName{Namespace: m.ns, Name: "wire"}
		m.vmis.Config = FixedConfig{Config: config}
		m.reconciler.Config = FixedConfig{Config: config}
	}
	laid := func() {
		m.vmis.APIReader = definedNetworks{m.vmis.APIReader}
		m.reconciler.APIReader = definedNetworks{m.reconciler.APIReader}
	}
	state := func(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstanceMigrationState {
		GinkgoHelper()
		return ExpectExists(vmi).Status.MigrationState
	}

	It("is used when both Pods are on it", func() {
		laid()
		named()
		vmi := m.running("a", "vm")
		Expect(podspec.OnMigrationNetwork(ExpectExists(PodOf(vmi)))).To(BeTrue())
		m.assignedToAgents(vmi, builder.MakeMigration("go", "vm"), "b")
		Expect(state(vmi).MigrationNetworkType).To(Equal(v1.Migration))
		Expect(state(vmi).VMIMConfigurationOptions.Network).To(HaveValue(Equal(m.ns + "/wire")))
		Expect(m.recorded.Take()).NotTo(ContainElement(ContainSubstring("NotOnMigrationNetwork")))
	})

	It("is not used when the source's Pod was created before it was configured", func() {
		laid()
		vmi := m.running("a", "vm")
		named()
		m.assignedToAgents(vmi, builder.MakeMigration("go", "vm"), "b")
		Expect(state(vmi).MigrationNetworkType).To(Equal(v1.Pod))
		Expect(m.recorded.Take()).To(ContainElement(ContainSubstring("NotOnMigrationNetwork")))
	})

	It("blocks neither starts nor migrations when it does not exist", func() {
		named()
		vmi := m.running("a", "vm")
		Expect(podspec.OnMigrationNetwork(ExpectExists(PodOf(vmi)))).To(BeFalse())
		m.assignedToAgents(vmi, builder.MakeMigration("go", "vm"), "b")
		Expect(state(vmi).MigrationNetworkType).To(Equal(v1.Pod))
		Expect(m.recorded.Take()).To(
			ContainElement(ContainSubstring("when there was no NetworkAttachmentDefinition " + m.ns + "/wire")))
	})
})

// definedNetworks reads from a cluster in which every NetworkAttachmentDefinition exists.
type definedNetworks struct{ client.Reader }

func (r definedNetworks) Get(
	ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption,
) error {
	if object.GetObjectKind().GroupVersionKind() == NetworkAttachmentKind {
		return nil
	}
	return r.Reader.Get(ctx, key, object, options...)
}
