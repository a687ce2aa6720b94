// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// NewNamespace creates a namespace for one spec. envtest never deletes the contents of a namespace, so names are not
// reused.
func NewNamespace() string {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "spec-"}}
	Expect(K8sClient.Create(ctx, ns)).To(Succeed())
	return ns.Name
}

// NewInstallNamespace creates a namespace in which virt-controller's account has the rights that it has in the install
// namespace.
func NewInstallNamespace() string {
	GinkgoHelper()
	namespace := NewNamespace()
	Expect(shipped.InstallIn(ctx, K8sClient, namespace)).To(Succeed())
	return namespace
}

// NewAuthority creates the Secret of a new CA in a namespace of NewInstallNamespace, and returns the CA.
func NewAuthority(namespace string, role certificate.Role, now time.Time) certificate.Authority {
	GinkgoHelper()
	none, err := certificate.AuthorityFrom(role, nil)
	Expect(err).NotTo(HaveOccurred())
	authority, _, _, err := none.Advance(now, clusterconfig.Default().Certificates)
	Expect(err).NotTo(HaveOccurred())
	data, err := authority.Data()
	Expect(err).NotTo(HaveOccurred())
	ExpectCreated(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: role.AuthoritySecret(),
			Labels: map[string]string{v1.AppLabel: certificate.AuthorityLabelValue},
		},
		Type: corev1.SecretTypeTLS, Data: data,
	})
	return authority
}

// ExpectCreated creates objects, with the status that they have in memory.
func ExpectCreated(objects ...client.Object) {
	GinkgoHelper()
	for _, object := range objects {
		wanted, ok := object.DeepCopyObject().(client.Object)
		Expect(ok).To(BeTrue())
		Expect(K8sClient.Create(ctx, object)).To(Succeed())
		wanted.SetResourceVersion(object.GetResourceVersion())
		wanted.SetUID(object.GetUID())
		switch wanted := wanted.(type) {
		case *v1.VirtualMachineInstance:
			if wanted.Status.Phase == v1.VmPhaseUnset {
				continue // the test wants the schema's default
			}
			ExpectStatus(wanted)
		case *corev1.PersistentVolumeClaim:
			ExpectStatus(wanted)
		case *v1.VirtualMachineInstanceMigration:
			// The cluster's limit counts the unfinished migrations of all namespaces.
			DeferCleanup(removeMigration, wanted)
		}
	}
}

// removeMigration deletes a migration, whose finalizer no reconciler removes once its spec has ended.
func removeMigration(m *v1.VirtualMachineInstanceMigration) {
	GinkgoHelper()
	noFinalizers := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	Expect(client.IgnoreNotFound(K8sClient.Patch(ctx, m, noFinalizers))).To(Succeed())
	Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, m))).To(Succeed())
}

// ExpectStatus writes the status of an object, in place of its owner.
func ExpectStatus(object client.Object) {
	GinkgoHelper()
	current, ok := object.DeepCopyObject().(client.Object)
	Expect(ok).To(BeTrue())
	object.SetResourceVersion(ExpectExists(current).GetResourceVersion())
	object.SetManagedFields(nil)
	Expect(K8sClient.Status().Update(ctx, object)).To(Succeed())
}

// ExpectExists reads an object from the API server.
func ExpectExists[T client.Object](object T) T {
	GinkgoHelper()
	Expect(K8sClient.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
	return object
}

// ExpectGone expects that the object no longer exists.
func ExpectGone(object client.Object) {
	GinkgoHelper()
	err := K8sClient.Get(ctx, client.ObjectKeyFromObject(object), object)
	Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%T %s is still there: %v", object, object.GetName(), err)
}

// RemoveOwner removes the owner of a revision as the garbage collector does.
func RemoveOwner(revision *appsv1.ControllerRevision, owner client.Object) error {
	patch := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"$patch":"delete","uid":%q}],"uid":%q}}`, owner.GetUID(), revision.UID)
	return K8sClient.Patch(ctx, revision.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
}
