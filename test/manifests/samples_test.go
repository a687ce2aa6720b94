// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/api/cdi"
	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// TestSamples checks that the samples have no field that their types do not have. The group of a new kind is added to
// its scheme.
func TestSamples(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, v1.AddToScheme, poolv1.AddToScheme, cdi.AddToScheme, snapshotv1beta1.AddToScheme,
		clonev1beta1.AddToScheme, exportv1.AddToScheme, backupv1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	names, err := filepath.Glob("../../config/samples/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("there are no samples: %v", err)
	}
	for _, name := range names {
		if filepath.Base(name) == "kustomization.yaml" {
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		documents := yaml.NewDocumentDecoder(file)
		buffer := make([]byte, 1<<16)
		for {
			n, err := documents.Read(buffer)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if _, _, err := decoder.Decode(buffer[:n], nil, nil); err != nil {
				t.Errorf("%s: %v (TestSamples in test/manifests/samples_test.go lists the groups)", name, err)
			}
		}
		if err := documents.Close(); err != nil {
			t.Error(err)
		}
	}
}
