// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// cleanup lets go of the Pods of a VMI that have finished or are gone. There is nothing else to clean: all that was
// made lies in the Pod and goes with it.
func (r *Reconciler) cleanup(key types.NamespacedName, pods []corev1.Pod) {
	live := map[types.UID]bool{}
	for i := range pods {
		if !finished(&pods[i]) {
			live[pods[i].UID] = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, m := range r.memory {
		if m.key == key && !live[uid] {
			delete(r.memory, uid)
			r.Arrivals.Forget(uid, m.migration)
			r.Machines.Forget(uid)
			r.Networks.Forget(uid)
		}
	}
}
