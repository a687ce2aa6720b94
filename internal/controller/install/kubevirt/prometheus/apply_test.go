// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package prometheus

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/rules"
)

// metadataOf returns the metadata of an object.
func metadataOf(of schema.GroupVersionKind, namespace, name, version string) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		ResourceVersion: version}}
	o.SetGroupVersionKind(of)
	return o
}

// TestApplyReadsOnlyWhatHasChanged has a cluster in which everything is installed.
func TestApplyReadsOnlyWhatHasChanged(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	spec := &v1.KubeVirtSpec{MonitorNamespace: "monitoring"}
	installed, err := render(Settings{Rules: rules.Settings{Namespace: "kubevirt"}, Monitor: "monitoring"})
	g.Expect(err).NotTo(HaveOccurred())
	definition := schema.GroupVersionKind{Group: definitions.Group, Version: definitions.Version,
		Kind: "CustomResourceDefinition"}
	scheme, lists := metadatafake.NewTestScheme(), map[schema.GroupVersionResource]string{}
	g.Expect(metav1.AddMetaToScheme(scheme)).To(Succeed())
	var objects, metadata []runtime.Object
	for _, k := range kinds {
		o := installed[k.kind]
		objects, lists[k.GroupVersionResource] = append(objects, o), k.kind+"List"
		metadata = append(metadata, metadataOf(o.GroupVersionKind(), o.GetNamespace(), o.GetName(), "1"))
		if name := k.definition(); name != "" {
			metadata = append(metadata, metadataOf(definition, "", name, "1"))
		}
	}
	server := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects...)
	watched := metadatafake.NewSimpleMetadataClient(scheme, metadata...)
	i := &Installer{Dynamic: server, Namespace: "kubevirt"}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	source := i.Source(watched, func(context.Context) []reconcile.Request { return nil })
	g.Expect(source.Start(ctx, queue)).To(Succeed())
	read := func() int {
		server.ClearActions()
		g.Expect(i.Apply(ctx, spec)).To(Succeed())
		return len(server.Actions())
	}
	const soon = 10 * time.Second
	g.Eventually(read, soon, time.Millisecond).Should(BeZero())

	rule := installed["PrometheusRule"]
	newer := metadataOf(rule.GroupVersionKind(), rule.GetNamespace(), rule.GetName(), "2")
	g.Expect(watched.Tracker().Update(kinds[len(kinds)-1].GroupVersionResource, newer, rule.GetNamespace())).To(Succeed())
	g.Eventually(read, soon, time.Millisecond).ShouldNot(BeZero())
	g.Eventually(read, soon, time.Millisecond).Should(BeZero())

	// What was written has another version, which is still to come.
	server.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, nil })
	spec.MonitorAccount = "other"
	for range 2 {
		g.Expect(read()).NotTo(BeZero())
	}
	spec.MonitorAccount = ""
	g.Expect(read()).NotTo(BeZero())
	g.Eventually(read, soon, time.Millisecond).Should(BeZero())
}
