// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// unresponsiveAnnotation is that of the reconciler of nodes, which this package does not import.
const unresponsiveAnnotation = "kubevirt.io/unresponsive-since"

// MakeUnresponsive marks a Node as the Node reconciler does when the agent stops responding, and sets the kubelet's
// readiness.
func MakeUnresponsive(name string, kubelet corev1.ConditionStatus) *corev1.Node {
	GinkgoHelper()
	host := ExpectExists(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	metav1.SetMetaDataLabel(&host.ObjectMeta, v1.NodeSchedulable, "false")
	metav1.SetMetaDataAnnotation(&host.ObjectMeta, unresponsiveAnnotation, time.Now().UTC().Format(time.RFC3339))
	Expect(K8sClient.Update(ctx, host)).To(Succeed())
	host.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: kubelet}}
	Expect(K8sClient.Status().Update(ctx, host)).To(Succeed())
	return ExpectExists(host)
}

// DeclareOutOfService adds the taint that the VMI's condition advises.
func DeclareOutOfService(host *corev1.Node) {
	GinkgoHelper()
	host = ExpectExists(host)
	host.Spec.Taints = append(host.Spec.Taints, corev1.Taint{
		Key: "node.kubernetes.io/out-of-service", Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute,
	})
	Expect(K8sClient.Update(ctx, host)).To(Succeed())
}
