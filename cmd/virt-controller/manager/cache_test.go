// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/rights"
)

func podWarning(name, pod, reason string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Annotations: map[string]string{"big": "x"}},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: metav1.NamespaceDefault, Name: pod, UID: "u"},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: "why", LastTimestamp: metav1.Now(),
	}
}

// TestEventsInCache checks that the cache excludes frequent events, and keeps the contents only of those about launcher Pods.
func TestEventsInCache(t *testing.T) {
	g := NewWithT(t)
	environment := apiserver.New(filepath.Join(root, "config", "crd", "bases"))
	rights.AuditTest(t, environment, root, t.Name())
	config := startAPIServer(t, environment)
	c, err := client.New(config, client.Options{Scheme: NewScheme()})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = rights.Ship(t.Context(), root, c)
	g.Expect(err).NotTo(HaveOccurred())
	for _, e := range []*corev1.Event{
		podWarning("ours", "virt-launcher-vm-1", "FailedMount"),
		podWarning("theirs", "web-1", "FailedMount"),
		podWarning("frequent", "virt-launcher-vm-1", "FailedScheduling"),
	} {
		g.Expect(c.Create(t.Context(), e)).To(Succeed())
	}

	options := cacheOptions("kubevirt")
	options.Scheme = NewScheme()
	events, err := cache.New(rights.Controller.Impersonate(config, nil), options)
	g.Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- events.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})

	list := &corev1.EventList{}
	listCtx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, err = events.GetInformer(listCtx, &corev1.Event{}, cache.BlockUntilSynced(false))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(events.WaitForCacheSync(listCtx)).To(BeTrue())
	g.Expect(events.List(listCtx, list, client.InNamespace(metav1.NamespaceDefault))).To(Succeed())
	messages := map[string]string{}
	for _, e := range list.Items {
		messages[e.Name] = e.Message
		g.Expect(e.Annotations).To(BeEmpty())
	}
	g.Expect(messages).To(Equal(map[string]string{"ours": "why", "theirs": ""}))
}
