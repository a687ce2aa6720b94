// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// maxSteps is how many reconciliations Settle makes at most.
const maxSteps = 10

// Reconcile reconciles an object once.
func Reconcile(r reconcile.Reconciler, object client.Object) (ctrl.Result, error) {
	return r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(object)})
}

// Steps reconciles objects one step at a time, in place of the events that start reconciliations under a manager. After
// a step, specs say what the objects look like, not which requests were made: that is for ExpectSteady, for the one
// spec of a kind that holds its write budget, and for an order of writes that something depends on.
type Steps struct {
	// Of is the reconciler. It writes through Writes.
	Of reconcile.Reconciler
	// Writes logs what the reconciler writes.
	Writes *Writes
}

// Try reconciles an object once and returns what the reconciler does.
func (s *Steps) Try(object client.Object) (ctrl.Result, error) {
	return Reconcile(s.Of, object)
}

// Step reconciles an object once, without an error.
func (s *Steps) Step(object client.Object) ctrl.Result {
	GinkgoHelper()
	result, _ := s.step(object)
	return result
}

func (s *Steps) step(object client.Object) (ctrl.Result, []string) {
	GinkgoHelper()
	s.Writes.Take()
	result, err := s.Try(object)
	Expect(err).NotTo(HaveOccurred())
	return result, s.Writes.Take()
}

// Settle reconciles an object until nothing is written any more, as the events of the writes would have it.
func (s *Steps) Settle(object client.Object) ctrl.Result {
	GinkgoHelper()
	for range maxSteps {
		if result, written := s.step(object); len(written) == 0 {
			return result
		}
	}
	Fail(fmt.Sprintf("%T %s is still written in step %d", object, client.ObjectKeyFromObject(object), maxSteps))
	return ctrl.Result{}
}

// ExpectSteady reconciles an object once and expects that nothing is written, because nothing has changed.
func (s *Steps) ExpectSteady(object client.Object) ctrl.Result {
	GinkgoHelper()
	result, written := s.step(object)
	Expect(written).To(BeEmpty())
	return result
}

// ExpectBudget reconciles an object once and expects these writes, each as often as it is listed, in any order.
func (s *Steps) ExpectBudget(object client.Object, writes ...string) ctrl.Result {
	GinkgoHelper()
	result, written := s.step(object)
	Expect(written).To(ConsistOf(writes))
	return result
}

// ExpectOrder reconciles an object once and expects these writes in this order. A caller explains what depends on it.
func (s *Steps) ExpectOrder(object client.Object, writes ...string) {
	GinkgoHelper()
	_, written := s.step(object)
	Expect(written).To(Equal(writes))
}
