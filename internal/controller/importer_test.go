// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vireo-project/vireo/api/cdi"
	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/datavolume"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// imports reads DataVolumes from the suite's API server. It triggers no reconciliation.
type imports struct{ Reader client.Reader }

func (i imports) Get(ctx context.Context, key client.ObjectKey) (*cdi.DataVolume, error) {
	dv := &cdi.DataVolume{}
	return dv, i.Reader.Get(ctx, key, dv)
}

func (i imports) List(ctx context.Context, namespace string) ([]cdi.DataVolume, error) {
	list := &cdi.DataVolumeList{}
	err := i.Reader.List(ctx, list, client.InNamespace(namespace))
	return list.Items, err
}

func (imports) Source(func(context.Context, datavolume.Change) []reconcile.Request) *datavolume.Source {
	return nil
}

// noImporter is a cluster without DataVolumes.
type noImporter struct{ imports }

func (noImporter) Get(context.Context, client.ObjectKey) (*cdi.DataVolume, error) {
	return nil, datavolume.ErrNotInstalled
}

func (noImporter) List(context.Context, string) ([]cdi.DataVolume, error) {
	return nil, datavolume.ErrNotInstalled
}

func dataVolume(ns, name string) *cdi.DataVolume {
	return &cdi.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
}

// specOf returns the whole spec of a DataVolume, of which package cdi decodes a part.
func specOf(dv *cdi.DataVolume) cdiv1beta1.DataVolumeSpec {
	GinkgoHelper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(cdi.GroupVersion.WithKind("DataVolume"))
	Expect(K8sClient.Get(ctx, client.ObjectKeyFromObject(dv), object)).To(Succeed())
	var read struct {
		Spec cdiv1beta1.DataVolumeSpec `json:"spec"`
	}
	Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &read)).To(Succeed())
	return read.Spec
}

// fill writes a DataVolume's phase and conditions, as the importer does.
func fill(dv *cdi.DataVolume, phase cdi.DataVolumePhase, conditions ...cdi.DataVolumeCondition) {
	GinkgoHelper()
	ExpectExists(dv)
	dv.Status = cdi.DataVolumeStatus{Phase: phase, Conditions: conditions}
	ExpectStatus(dv)
}

// provide creates the claim of a DataVolume, as the importer does.
func provide(dv *cdi.DataVolume, bound bool) {
	GinkgoHelper()
	ExpectExists(dv)
	b := builder.MakePVC(dv.Name).Namespace(dv.Namespace)
	if bound {
		b = b.Bound("1Gi")
	}
	claim := b.Obj()
	claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(dv, cdi.GroupVersion.WithKind("DataVolume"))}
	ExpectCreated(claim)
}

// keyOf returns the key of an object in a VM's namespace.
func keyOf(vm *v1.VirtualMachine, name string) client.ObjectKey {
	return client.ObjectKey{Namespace: vm.Namespace, Name: name}
}
