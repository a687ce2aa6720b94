// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

var _ = Describe("a migration", func() {
	ctx := context.Background()

	guest := func(name string, change func(*v1.VirtualMachineInstanceStatus)) {
		GinkgoHelper()
		vmi := newVMI(name)
		Expect(k8s.Create(ctx, vmi)).To(Succeed())
		DeferCleanup(expectGone, ctx, vmi)
		vmi.Status.Phase = v1.Running
		if change != nil {
			change(&vmi.Status)
		}
		Expect(k8s.Status().Update(ctx, vmi)).To(Succeed())
	}
	request := func(vmi string,
		change ...func(*v1.VirtualMachineInstanceMigrationSpec)) *v1.VirtualMachineInstanceMigration {
		m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "go-"}}
		m.Spec.VMIName = vmi
		for _, c := range change {
			c(&m.Spec)
		}
		return m
	}
	create := func(c client.Client, m *v1.VirtualMachineInstanceMigration) error {
		err := c.Create(ctx, m)
		if err == nil {
			DeferCleanup(expectGone, ctx, m)
		}
		return err
	}

	It("gets its finalizer and label, and its spec cannot be changed", func() {
		guest("migrates", nil)
		m := request("migrates")
		Expect(create(k8s, m)).To(Succeed())
		Expect(m.Finalizers).To(ConsistOf(v1.VirtualMachineInstanceMigrationFinalizer))
		Expect(m.Labels).To(HaveKeyWithValue(v1.MigrationSelectorLabel, "migrates"))
		changed := m.DeepCopy()
		changed.Spec.AddedNodeSelector = map[string]string{"a": "b"}
		Expect(k8s.Update(ctx, changed)).To(MatchError(ContainSubstring("update of Migration object's spec is restricted")))
		changed = m.DeepCopy()
		changed.Labels[v1.MigrationSelectorLabel] = "other"
		Expect(k8s.Update(ctx, changed)).To(
			MatchError(ContainSubstring("selector label can't be modified on an in-flight migration")))
		changed = m.DeepCopy()
		changed.Labels = nil
		Expect(k8s.Update(ctx, changed)).To(
			MatchError(ContainSubstring("selector label can't be removed from an in-flight migration")))
	})

	It("is the only unfinished migration of its VMI", func() {
		guest("busy", nil)
		first := request("busy")
		Expect(create(k8s, first)).To(Succeed())
		message := fmt.Sprintf(
			"in-flight migration detected. Active migration job (%s) is currently already in progress for VMI busy.", first.UID)
		Expect(create(k8s, request("busy"))).To(MatchError(ContainSubstring(message)))
		guest("idle", nil)
		Expect(create(k8s, request("idle"))).To(Succeed())
		first.Status.Phase = v1.MigrationFailed
		Expect(k8s.Status().Update(ctx, first)).To(Succeed())
		Expect(create(k8s, request("busy"))).To(Succeed())
	})

	It("is refused for a guest that cannot migrate, with KubeVirt's message", func() {
		Expect(create(k8s, request("nobody"))).To(MatchError(ContainSubstring(`the VMI "default/nobody" does not exist`)))
		guest("over", func(s *v1.VirtualMachineInstanceStatus) { s.Phase = v1.Failed })
		Expect(create(k8s, request("over"))).To(MatchError(ContainSubstring("Cannot migrate VMI in finalized state.")))
		guest("bound", func(s *v1.VirtualMachineInstanceStatus) {
			s.Conditions = []v1.VirtualMachineInstanceCondition{{
				Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionFalse, Reason: "DisksNotLiveMigratable",
				Message: "disk root",
			}}
		})
		Expect(create(k8s, request("bound"))).To(
			MatchError(ContainSubstring("Cannot migrate VMI, Reason: DisksNotLiveMigratable, Message: disk root")))
	})

	It("must name its VMI and must not set a priority", func() {
		guest("plain", nil)
		expectInvalid(create(k8s, request("")), "spec.vmiName")
		urgent := func(s *v1.VirtualMachineInstanceMigrationSpec) { s.Priority = ptr.To(v1.PrioritySystemCritical) }
		expectInvalid(create(k8s, request("plain", urgent)), "spec.priority")
		Expect(create(controller, request("plain", urgent))).To(Succeed())
	})
})

func TestMaxDowntimeNeedsItsGate(t *testing.T) {
	const refusal = "maxDowntimeMs cannot be modified without enabling the MigrationStallDetection feature gate"
	check := func(name string, err error, refused bool) {
		t.Helper()
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), refusal) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	gate := []string{"MigrationStallDetection"}
	for name, tc := range map[string]struct {
		before, after *uint64
		gates         []string
		refused       bool
	}{
		"nothing":                  {},
		"it is set":                {after: ptr.To[uint64](900), refused: true},
		"it is set with the gate":  {after: ptr.To[uint64](900), gates: gate},
		"it stays":                 {before: ptr.To[uint64](900), after: ptr.To[uint64](900)},
		"it changes":               {before: ptr.To[uint64](500), after: ptr.To[uint64](900), refused: true},
		"it changes with the gate": {before: ptr.To[uint64](500), after: ptr.To[uint64](900), gates: gate},
		"it is taken away":         {before: ptr.To[uint64](500)},
	} {
		kubeVirt := func(limit *uint64) *v1.KubeVirt {
			kv := &v1.KubeVirt{}
			kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{FeatureGates: tc.gates}
			kv.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{MaxDowntimeMs: limit,
				AllowAutoConverge: ptr.To(limit == nil)}
			return kv
		}
		_, err := (&kubeVirtValidator{}).ValidateUpdate(t.Context(), kubeVirt(tc.before), kubeVirt(tc.after))
		check("KubeVirt: "+name, err, tc.refused)

		config := clusterconfig.Default()
		config.FeatureGates = clusterconfig.NewFeatureGates(tc.gates, nil)
		policies := &migrationPolicyValidator{config: fixedConfig{config}}
		policy := func(limit *uint64) *v1alpha1.MigrationPolicy {
			return &v1alpha1.MigrationPolicy{Spec: v1alpha1.MigrationPolicySpec{MaxDowntimeMs: limit}}
		}
		_, err = policies.ValidateUpdate(t.Context(), policy(tc.before), policy(tc.after))
		check("MigrationPolicy: "+name, err, tc.refused)
		if tc.before == nil {
			_, err = policies.ValidateCreate(t.Context(), policy(tc.after))
			check("new MigrationPolicy: "+name, err, tc.refused)
		}
	}
}

func TestStallDetectorNeedsItsGate(t *testing.T) {
	const refusal = "experimental.stallDetector cannot be modified without enabling the MigrationStallDetection feature gate"
	policy := func(margin int64) *v1alpha1.MigrationPolicy {
		return &v1alpha1.MigrationPolicy{
			Spec: v1alpha1.MigrationPolicySpec{ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{
				StallDetector: &v1.StallDetectorOptions{StallMargin: &margin},
			}}}
	}
	for _, gates := range [][]string{nil, {"MigrationStallDetection"}} {
		config := clusterconfig.Default()
		config.FeatureGates = clusterconfig.NewFeatureGates(gates, nil)
		policies := &migrationPolicyValidator{config: fixedConfig{config}}
		_, created := policies.ValidateCreate(t.Context(), policy(5))
		_, changed := policies.ValidateUpdate(t.Context(), policy(4), policy(5))
		for name, err := range map[string]error{"new": created, "changed": changed} {
			if (err == nil) != (gates != nil) || err != nil && !strings.Contains(err.Error(), refusal) {
				t.Errorf("%s with gates %v: %v", name, gates, err)
			}
		}
		_, kept := policies.ValidateUpdate(t.Context(), policy(5), policy(5))
		_, removed := policies.ValidateUpdate(t.Context(), policy(5), &v1alpha1.MigrationPolicy{})
		if kept != nil || removed != nil {
			t.Errorf("with gates %v: %v, %v", gates, kept, removed)
		}
	}
}
