// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"bytes"
	"context"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

var _ = Describe("the manifests in config", func() {
	ctx := context.Background()
	config := filepath.Join("..", "..", "..", "config")

	It("has samples that are admitted with all their fields", func() {
		// The samples say which feature gates they need.
		Expect(suiteConfig.Set(&v1.KubeVirt{Spec: v1.KubeVirtSpec{Configuration: v1.KubeVirtConfiguration{
			DeveloperConfiguration: &v1.DeveloperConfiguration{FeatureGates: []string{clusterconfig.GateIncrementalBackup}},
		}}})).To(Succeed())
		DeferCleanup(func() { Expect(suiteConfig.Set(&v1.KubeVirt{})).To(Succeed()) })
		files, err := filepath.Glob(filepath.Join(config, "samples", "*.yaml"))
		Expect(err).NotTo(HaveOccurred())
		Expect(files).NotTo(BeEmpty())
		for _, file := range files {
			if filepath.Base(file) == "kustomization.yaml" {
				continue
			}
			for _, sample := range documents(file) {
				if namespace := sample.GetNamespace(); namespace != "" {
					Expect(client.IgnoreAlreadyExists(
						k8s.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))).To(Succeed())
				} else {
					sample.SetNamespace("default")
				}
				// Strict: a misspelled field is an error rather than a warning.
				Expect(k8s.Create(ctx, sample, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))).
					To(Succeed(), file)
			}
		}
	})

	It("has CRDs that client-side kubectl apply accepts", func() {
		_, stderr, err := kubectl("apply", "--dry-run=server", "-f", filepath.Join(config, "crd", "bases"))
		message := ""
		if stderr != nil {
			text := make([]byte, 4096)
			n, _ := stderr.Read(text)
			message = string(text[:n])
		}
		Expect(err).NotTo(HaveOccurred(), message)
	})
})

var _ = Describe("a VM of kubevirt.io/v1alpha3", func() {
	ctx := context.Background()
	legacy := func(name string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "kubevirt.io/v1alpha3", "kind": "VirtualMachine",
			"metadata": map[string]any{"name": name, "namespace": "default"},
			"spec": map[string]any{"runStrategy": "Halted", "template": map[string]any{
				"spec": spec,
			}},
		}}
	}

	It("is validated by the webhooks, and is the same VM in v1", func() {
		vm := legacy("legacy", map[string]any{"domain": map[string]any{"devices": map[string]any{}}})
		Expect(k8s.Create(ctx, vm)).To(Succeed())
		DeferCleanup(expectGone, ctx, vm)
		Expect(vm.GetFinalizers()).NotTo(BeEmpty())
		stored := newVM("legacy")
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(stored), stored)).To(Succeed())
		Expect(stored.Spec.RunStrategy).To(HaveValue(BeEquivalentTo("Halted")))
	})

	It("is refused for the same errors as in v1", func() {
		vm := legacy("faulty",
			map[string]any{"hostname": "Not A Label", "domain": map[string]any{"devices": map[string]any{}}})
		expectInvalid(k8s.Create(ctx, vm), "spec.template.spec.hostname")
	})
})

// documents reads the objects of a file.
func documents(file string) []*unstructured.Unstructured {
	GinkgoHelper()
	data, err := os.ReadFile(file)
	Expect(err).NotTo(HaveOccurred())
	var all []*unstructured.Unstructured
	for _, text := range bytes.Split(data, []byte("\n---\n")) {
		object := map[string]any{}
		Expect(yaml.UnmarshalStrict(text, &object)).To(Succeed(), file)
		if len(object) > 0 {
			all = append(all, &unstructured.Unstructured{Object: object})
		}
	}
	return all
}
