// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// The shortest lifetimes of authorities. An authority is trusted for two minutes before it signs, signs for two
// minutes, and is trusted for two more. The certificates are renewed within a minute, so that each authority that signs
// is used.
const (
	shortAuthority, shortOverlap       = 6 * time.Minute, 4 * time.Minute
	shortCertificate, shortRenewBefore = 3 * time.Minute, 2 * time.Minute
)

// This is the last spec, because the authorities are replaced for some more minutes after it. test/rotation covers each
// certificate, with a clock that is moved.
var _ = Describe("A rotation of all authorities and certificates", Serial, SpecPriority(-1), slow(), func() {
	It("closes no console, and neither requests nor migrations fail", func(ctx context.Context) {
		needLocalNodes()
		if len(nodes(ctx)) < 2 {
			Skip("migrations need two nodes")
		}
		m := &migratingGuest{namespace: newNamespace(ctx), name: "mover", network: v1.Pod}
		create(ctx, makeVM(m.namespace, "guest"), makeVM(m.namespace, m.name))
		guest := expectReady(ctx, m.namespace, "guest")
		m.instance = expectReady(ctx, m.namespace, m.name)
		first := openConsole(ctx, m.namespace, "guest")
		before := restarts(ctx)
		calls := callRepeatedly(ctx, m.namespace)
		observed := followRotation(ctx)

		By("setting lifetimes of minutes")
		start, configured := time.Now(), kubeVirt(ctx).Spec.CertificateRotationStrategy
		DeferCleanup(func(ctx context.Context) { setRotation(ctx, configured) }, nodeTimeout(time.Minute))
		setRotation(ctx, v1.KubeVirtCertificateRotateStrategy{SelfSigned: &v1.KubeVirtSelfSignConfiguration{
			CA: lifetime(shortAuthority, shortOverlap), Server: lifetime(shortCertificate, shortRenewBefore),
		}})

		By("migrating a guest again and again until an authority of minutes has expired")
		for missing := observed.missing(); len(missing) > 0; missing = observed.missing() {
			GinkgoWriter.Printf("after %s: %v\n", time.Since(start).Round(time.Second), missing)
			m.expectMigration(ctx, m.migrate)
			expectKept(ctx, first, m.migrated)
			Expect(observed.problems()).To(BeEmpty())
		}
		reportTime(fmt.Sprintf("all authorities and certificates were replaced, during %d migrations,", m.migrated), start)
		AddReportEntry("rotation", observed.String())

		By("using only certificates of its successors")
		m.expectMigration(ctx, m.migrate)
		expectKept(ctx, first, m.migrated)
		openConsole(ctx, m.namespace, m.name)
		expectSameGuest(ctx, guest)
		expectSameGuest(ctx, m.instance)
		Expect(calls()).To(BeEmpty(), "a call and its retry a second later failed")
		Expect(observed.problems()).To(BeEmpty())
		Expect(restarts(ctx)).To(Equal(before), "a component was restarted or replaced")
		Expect(kubeVirt(ctx)).To(haveCondition(v1.KubeVirtConditionDegraded, HaveField("Status", corev1.ConditionFalse)))
		Expect(kubectl(ctx, "", "get", "events", "-n", "kubevirt", "--field-selector", "reason=CertificateRotationOverdue")).
			To(ContainSubstring("No resources found"))
	}, specTimeout(18*time.Minute))
})

func lifetime(duration, renewBefore time.Duration) *v1.CertConfig {
	return &v1.CertConfig{Duration: &metav1.Duration{Duration: duration},
		RenewBefore: &metav1.Duration{Duration: renewBefore}}
}

// setRotation sets the lifetimes of certificates in the KubeVirt object.
func setRotation(ctx context.Context, strategy v1.KubeVirtCertificateRotateStrategy) {
	GinkgoHelper()
	kv := kubeVirt(ctx)
	before := kv.DeepCopy()
	kv.Spec.CertificateRotationStrategy = strategy
	Expect(k8s.Patch(ctx, kv, client.MergeFrom(before))).To(Succeed())
}

// expectKept checks that an open console still transfers input and the response to it. n makes the response unique.
func expectKept(ctx context.Context, console *terminal, n int) {
	GinkgoHelper()
	console.press(fmt.Sprintf("echo KEPT-$((%d+1000))\n", n))
	expectOutput(ctx, console.Out, fmt.Sprintf("KEPT-%d", n+1000))
}

// restarts returns how often each component's Pod was restarted.
func restarts(ctx context.Context) map[types.UID]int32 {
	GinkgoHelper()
	counts := map[types.UID]int32{}
	for _, pod := range components(ctx) {
		for i := range pod.Status.ContainerStatuses {
			counts[pod.UID] += pod.Status.ContainerStatuses[i].RestartCount
		}
	}
	return counts
}
