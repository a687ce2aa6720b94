// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/vireo-project/vireo/api/cdi"
)

func TestArchitectureOfAReferencedDataSource(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := cdi.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	labeled := func(namespace string) *cdi.DataSource {
		return &cdi.DataSource{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "debian", Labels: map[string]string{architectureLabel: "arm64"},
		}}
	}
	s := &Scope{APIReader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(labeled("mine"),
		labeled("theirs")).Build()}
	for _, tc := range []struct{ namespace, name, want string }{
		{"mine", "debian", "arm64"},
		{"", "debian", "arm64"},
		// Whether it exists, and what its label is, would be visible in the VM's status.
		{"theirs", "debian", ""},
		{"theirs", "missing", ""},
	} {
		source := &cdi.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "stable"}}
		source.Spec.Source.DataSource = &cdi.DataSourceReference{Namespace: tc.namespace, Name: tc.name}
		if got, err := s.architectureOf(t.Context(), source); err != nil || got != tc.want {
			t.Errorf("%s/%s: got %q, %v", tc.namespace, tc.name, got, err)
		}
	}
}
