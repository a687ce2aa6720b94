// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestSubscribersAreNotified(t *testing.T) {
	s := NewStore(WithImages(testImages))
	var seen []bool
	s.Subscribe(func(c Config) { seen = append(seen, c.UseEmulation) })
	if err := s.Set(kubeVirt(
		func(s *v1.KubeVirtSpec) { s.Configuration.DeveloperConfiguration.UseEmulation = true })); err != nil {
		t.Fatal(err)
	}
	if err := s.Set(nil); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 3 || seen[0] || !seen[1] || seen[2] {
		t.Errorf("subscriber saw emulation as %v, want false, true, false", seen)
	}
	if s.Current().Images != testImages {
		t.Errorf("images are %v", s.Current().Images)
	}
}

func TestValidFieldsBesideAnInvalidOne(t *testing.T) {
	s := NewStore()
	err := s.Set(kubeVirt(func(s *v1.KubeVirtSpec) {
		s.Configuration.DeveloperConfiguration.UseEmulation = true
		s.ImagePullPolicy = "Maybe"
	}))
	if err == nil || s.Err() == nil {
		t.Error("no error")
	}
	if !s.Current().UseEmulation {
		t.Error("a valid value was ignored")
	}
}

func TestLoadUsesTheOldestOfItsNamespace(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	at := func(namespace, name string, age time.Duration) *v1.KubeVirt {
		kv := kubeVirt(nil)
		kv.Namespace, kv.Name = namespace, name
		kv.CreationTimestamp = metav1.Time{Time: time.Unix(1e9, 0).Add(-age)}
		return kv
	}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		at("kubevirt", "a-young", time.Minute), at("kubevirt", "z-old", time.Hour), at("other", "oldest", 2*time.Hour),
	).Build()

	s := NewStore()
	if err := s.Load(t.Context(), reader, "kubevirt"); err != nil {
		t.Fatal(err)
	}
	if got := s.Current().KubeVirt; got != "z-old" {
		t.Errorf("loaded %q", got)
	}
	if err := s.Load(t.Context(), reader, "empty"); err != nil {
		t.Fatal(err)
	}
	if got := s.Current().KubeVirt; got != "" {
		t.Errorf("loaded %q from an empty namespace", got)
	}
}

// An object that was deleted and created again has the first generation again.
func TestLoadReadsAnotherObjectOfTheName(t *testing.T) {
	s := NewStore()
	s.load(t.Context(), kubeVirt(nil))
	again := kubeVirt(func(s *v1.KubeVirtSpec) { s.Configuration.DeveloperConfiguration.UseEmulation = true })
	again.UID = "another"
	s.load(t.Context(), again)
	if !s.Current().UseEmulation {
		t.Error("the configuration is still that of the earlier object")
	}
}
