// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/vireo-project/vireo/test/apiserver"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// installMultus installs the CRD of NetworkAttachmentDefinition until the end of the spec.
func installMultus() {
	GinkgoHelper()
	names := apiextensionsv1.CustomResourceDefinitionNames{
		Plural: "network-attachment-definitions", Singular: "network-attachment-definition", Kind: NetworkAttachmentKind.Kind,
	}
	definition := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: names.Plural + "." + NetworkAttachmentKind.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: NetworkAttachmentKind.Group, Names: names, Scope: apiextensionsv1.NamespaceScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: NetworkAttachmentKind.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: ptr.To(true),
				}},
			}},
		},
	}
	options := apiserver.Install()
	options.CRDs = []*apiextensionsv1.CustomResourceDefinition{definition}
	_, err := envtest.InstallCRDs(AdminConfig, options)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(envtest.UninstallCRDs(AdminConfig, options)).To(Succeed()) })
}

// attachmentDefinition returns a NetworkAttachmentDefinition that requires a resource.
func attachmentDefinition(namespace, name, resource string) client.Object {
	definition := &unstructured.Unstructured{}
	definition.SetGroupVersionKind(NetworkAttachmentKind)
	definition.SetNamespace(namespace)
	definition.SetName(name)
	definition.SetAnnotations(map[string]string{"k8s.v1.cni.cncf.io/resourceName": resource})
	return definition
}
