// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/vireo-project/vireo/api/cdi/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestDataVolumeTemplates(t *testing.T) {
	root := disk(v1.Disk{Name: "root"}, &v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}})
	of := func(change func(*v1.DataVolumeTemplateSpec)) *v1.VirtualMachine {
		return vmWith(func(s *v1.VirtualMachineSpec) {
			template := v1.DataVolumeTemplateSpec{ObjectMeta: metav1.ObjectMeta{Name: "root"}}
			template.Spec.Storage = &cdi.StorageSpec{}
			template.Spec.Source = &cdi.DataVolumeSource{Blank: &cdi.DataVolumeBlankImage{}}
			change(&template)
			s.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{template}
		}, root)
	}
	same := func(*v1.DataVolumeTemplateSpec) {}
	populated := &corev1.TypedObjectReference{Kind: "Image", Name: "debian"}
	foreign := func(d *v1.DataVolumeTemplateSpec) { d.Namespace = "elsewhere" }
	// KubeVirt's paths, of which only the first exists in the object.
	const (
		field, first = "spec.dataVolumeTemplates[0]", "spec.dataVolumeTemplate[0]"
		spec, source = first + ".PVC.Storage", first + ".source"
	)
	decide(t, []testCase{
		{name: "template", object: of(same)},
		{name: "template of a claim", object: of(func(d *v1.DataVolumeTemplateSpec) {
			d.Spec.Storage, d.Spec.PVC = nil, &corev1.PersistentVolumeClaimSpec{}
		})},
		{name: "template in the VM's namespace", object: of(func(d *v1.DataVolumeTemplateSpec) { d.Namespace = metav1.NamespaceDefault })},
		{name: "template in another namespace", object: of(foreign), fields: []string{field},
			says: "Embedded DataVolume namespace elsewhere differs from VM namespace default"},
		{name: "template that goes to another namespace", object: of(same), change: func(o client.Object) {
			foreign(&o.(*v1.VirtualMachine).Spec.DataVolumeTemplates[0])
		}, fields: []string{field}, says: "differs from VM namespace"},
		{name: "template without a name", object: of(func(d *v1.DataVolumeTemplateSpec) { d.Name = "" }), fields: []string{first + ".name"},
			says: "'name' field must not be empty for DataVolumeTemplate entry spec.dataVolumeTemplate[0].name."},
		{name: "template that nothing uses", object: of(func(d *v1.DataVolumeTemplateSpec) { d.Name = "other" }), fields: []string{first},
			says: "DataVolumeTemplate entry spec.dataVolumeTemplate[0] must be referenced in the VMI template's 'volumes' list"},
		{name: "template of neither storage nor claim", object: of(func(d *v1.DataVolumeTemplateSpec) { d.Spec.Storage = nil }), fields: []string{spec},
			says: "Missing Data volume PVC or Storage"},
		{name: "template of storage and claim", object: of(func(d *v1.DataVolumeTemplateSpec) { d.Spec.PVC = &corev1.PersistentVolumeClaimSpec{} }),
			fields: []string{spec}, says: "Duplicate storage definition, both target storage and target pvc defined"},
		{name: "template without a source", object: of(func(d *v1.DataVolumeTemplateSpec) { d.Spec.Source = nil }), fields: []string{source + ".sourceRef"},
			says: "Data volume should have either Source, SourceRef, or be externally populated"},
		{name: "template of a DataSource", object: of(func(d *v1.DataVolumeTemplateSpec) {
			d.Spec.Source, d.Spec.SourceRef = nil,
				&cdi.DataVolumeSourceRef{Kind: "DataSource", Namespace: ptr.To("images"), Name: "debian"}
		})},
		{name: "template that something else fills", object: of(func(d *v1.DataVolumeTemplateSpec) {
			d.Spec.Source, d.Spec.Storage.DataSourceRef = nil, populated
		})},
		{name: "template that two fill", object: of(func(d *v1.DataVolumeTemplateSpec) { d.Spec.Storage.DataSourceRef = populated }), fields: []string{source},
			says: "External population is incompatible with Source and SourceRef"},
		{name: "template of no kind of source", object: of(func(d *v1.DataVolumeTemplateSpec) { d.Spec.Source = &cdi.DataVolumeSource{} }),
			fields: []string{source}, says: "Missing dataVolume valid source"},
		{name: "template of two kinds of source", object: of(func(d *v1.DataVolumeTemplateSpec) {
			d.Spec.Source.HTTP = &cdi.DataVolumeSourceHTTP{URL: "http://example.org"}
		}), fields: []string{source}, says: "Multiple dataVolume sources"},
	})
}

func TestGatesOfFields(t *testing.T) {
	reboot := with(func(s *spec) { s.Domain.RebootPolicy = ptr.To(v1.RebootPolicyTerminate) })
	reserved := memory(v1.Memory{Guest: quantity("1Gi"),
		ReservedOverhead: &v1.ReservedOverhead{AddedOverhead: quantity("64Mi")}})
	token := disk(v1.Disk{Name: "token"},
		&v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: "robot"}})
	runsAs := func(name string) option { return with(func(s *spec) { s.ServiceAccountName = name }) }
	decide(t, []testCase{
		{name: "reboot policy", object: vmi(reboot)},
		{name: "reboot policy with its gate turned off", config: without("RebootPolicy"), object: vmi(reboot), fields: []string{"spec.domain.rebootPolicy"},
			says: "RebootPolicy feature gate is not enabled"},
		{name: "reserved overhead without the gate", object: vmi(reserved), fields: []string{"spec.domain.memory.reservedOverhead"},
			says: "ReservedOverheadMemlock feature gate is not enabled"},
		{name: "reserved overhead", config: gates("ReservedOverheadMemlock"), object: vmi(reserved)},
		{name: "service account", object: vmi(runsAs("robot"))},
		{name: "service account that has a volume", object: vmi(runsAs("robot"), token)},
		{name: "service account and the volume of another", object: vmi(runsAs("alice"), token), fields: []string{"spec.serviceAccountName"},
			says: "differs from that of the serviceAccount volume"},
	})
}
