// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt_test

import (
	"context"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/decide/instancetype/common"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// commonObjects are how many common instance types and preferences there are, and writesPerPass is how many of them one
// reconciliation changes.
const (
	commonObjects = 65 + 54
	writesPerPass = 50
)

var _ = Describe("Common instance types", func() {
	var (
		reconciler *kubevirt.Reconciler
		writes     *Writes
		kv         *v1.KubeVirt
	)
	instancetype := func(name string) *v1beta1.VirtualMachineClusterInstancetype {
		return &v1beta1.VirtualMachineClusterInstancetype{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	// of returns what somebody creates under the name of a common instance type.
	of := func(name string, labels map[string]string) *v1beta1.VirtualMachineClusterInstancetype {
		made := instancetype(name)
		made.Labels = labels
		made.Spec = NewInstancetype("", "", 7).Spec
		return made
	}
	marks := map[string]string{manifests.ManagedByLabel: manifests.ManagedBy, v1.AppComponentLabel: v1.AppComponent}
	pass := func() error {
		_, err := Reconcile(reconciler, kv)
		return err
	}
	enable := func(enabled bool) {
		GinkgoHelper()
		ExpectExists(kv).Spec.Configuration.CommonInstancetypesDeployment = &v1.CommonInstancetypesDeployment{Enabled: ptr.To(
			enabled)}
		Expect(K8sClient.Update(ctx, kv)).To(Succeed())
	}
	condition := func() *v1.KubeVirtCondition {
		GinkgoHelper()
		for _, c := range ExpectExists(kv).Status.Conditions {
			if c.Type == v1.KubeVirtConditionCommonInstancetypesDeployed {
				return &c
			}
		}
		return nil
	}
	// applyAs applies an object by server-side apply as another client does.
	applyAs := func(manager string, object client.Object) {
		GinkgoHelper()
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		Expect(err).NotTo(HaveOccurred())
		unversioned := toUnstructured(content, v1beta1.GroupVersion.WithKind("VirtualMachineClusterInstancetype"))
		Expect(K8sClient.Apply(ctx, client.ApplyConfigurationFromUnstructured(unversioned), client.FieldOwner(manager),
			client.ForceOwnership)).
			To(Succeed())
	}

	BeforeEach(func() {
		deleteCommonInstancetypes()
		DeferCleanup(deleteCommonInstancetypes)
		namespace := NewInstallNamespace()
		writes = NewWrites()
		reconciler = &kubevirt.Reconciler{
			Client: writes, APIReader: AsController, Recorder: &RecordedEvents{}, Namespace: namespace,
			Options: []clusterconfig.Option{clusterconfig.WithImages(
				clusterconfig.Images{Launcher: "e.org/l:v1", Handler: "e.org/h:v1", Broker: "e.org/b:v1", API: "e.org/a:v1"})},
		}
		kv = &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kubevirt"}}
		ExpectCreated(kv)
	})

	It("are created, some in each pass, and not written again, not even by another process", func() {
		for _, present := range []int{writesPerPass, 2 * writesPerPass, commonObjects} {
			Expect(pass()).To(Succeed())
			Expect(commonVersions()).To(HaveLen(present))
		}
		small := ExpectExists(instancetype("u1.small"))
		Expect(small.Spec).To(Equal(commonInstancetype("u1.small").Spec))
		Expect(small.Labels).To(SatisfyAll(HaveKeyWithValue("app.kubernetes.io/managed-by", "virt-operator"),
			HaveKeyWithValue("app.kubernetes.io/component", "kubevirt"),
			HaveKeyWithValue("instancetype.kubevirt.io/vendor", "kubevirt.io")))
		before := commonVersions()
		Expect(pass()).To(Succeed())
		Expect(commonVersions()).To(Equal(before))
		Expect(condition()).To(BeNil())
	})

	It("are restored when they are changed or deleted, and those of earlier releases are deleted", func() {
		reconcileInFull(reconciler, kv)
		before := commonVersions()
		changed := ExpectExists(instancetype("u1.small"))
		changed.Spec.CPU.Guest = 9
		changed.Labels["instancetype.kubevirt.io/class"] = "mine"
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, "of", "a user")
		Expect(K8sClient.Update(ctx, changed)).To(Succeed())
		Expect(K8sClient.Delete(ctx, instancetype("o1.large"))).To(Succeed())
		applyAs(manifests.FieldManager, of("x1.old", marks))

		Expect(pass()).To(Succeed())
		Expect(ExpectExists(changed).Spec).To(Equal(commonInstancetype("u1.small").Spec))
		Expect(changed.Labels).To(HaveKeyWithValue("instancetype.kubevirt.io/class", "general.purpose"))
		Expect(changed.Annotations).To(HaveKeyWithValue("of", "a user"))
		ExpectExists(instancetype("o1.large"))
		ExpectGone(instancetype("x1.old"))
		after := commonVersions()
		for _, restored := range []string{"u1.small", "o1.large"} {
			delete(before, restored)
			delete(after, restored)
		}
		Expect(after).To(Equal(before), "the others are not written")
	})

	It("never replace an object of another client, which a condition names", func() {
		user, copied, owned := of("u1.small", nil), of("u1.medium", marks), of("u1.large", marks)
		owner := ExpectExists(kv)
		applyAs(manifests.FieldManager, owned)
		ExpectExists(owned).OwnerReferences = []metav1.OwnerReference{{
			APIVersion: v1.GroupVersion.String(), Kind: "KubeVirt", Name: owner.Name, UID: owner.UID,
		}}
		Expect(K8sClient.Update(ctx, owned)).To(Succeed())
		ExpectCreated(user, copied)
		reconcileInFull(reconciler, kv)
		taken := of("u1.micro", nil)
		applyAs("gitops", taken)
		before := commonVersions()
		Expect(before).To(HaveLen(commonObjects))

		reconcileInFull(reconciler, kv)
		Expect(commonVersions()).To(Equal(before))
		for _, theirs := range []*v1beta1.VirtualMachineClusterInstancetype{user, copied, owned, taken} {
			Expect(ExpectExists(theirs).Spec.CPU.Guest).To(BeEquivalentTo(7), theirs.Name)
		}
		reported := condition()
		Expect(reported).NotTo(BeNil())
		Expect(reported.Status).To(Equal(corev1.ConditionFalse))
		Expect(reported.Reason).To(Equal(kubevirt.ReasonForeignInstancetypes))
		Expect(reported.Message).To(
			SatisfyAll(HavePrefix("VirtualMachineClusterInstancetype u1.micro, VirtualMachineClusterInstancetype u1.small, "+
				"VirtualMachineClusterInstancetype u1.medium, VirtualMachineClusterInstancetype u1.large already existed"),
				ContainSubstring("delete them")))

		By("giving the name back")
		Expect(K8sClient.Delete(ctx, user)).To(Succeed())
		Expect(pass()).To(Succeed())
		Expect(ExpectExists(instancetype("u1.small")).Spec).To(Equal(commonInstancetype("u1.small").Spec))
		Expect(condition().Message).NotTo(ContainSubstring("u1.small"))

		By("switching the common ones off")
		enable(false)
		reconcileInFull(reconciler, kv)
		Expect(commonVersions()).To(HaveLen(3))
		for _, theirs := range []*v1beta1.VirtualMachineClusterInstancetype{copied, owned, taken} {
			Expect(ExpectExists(theirs).Spec.CPU.Guest).To(BeEquivalentTo(7), theirs.Name)
		}
		Expect(condition()).To(BeNil())
	})

	It("never replace an object that the cache does not contain yet", func() {
		ExpectCreated(of("u1.small", nil))
		writes.StaleList = &v1beta1.VirtualMachineClusterInstancetypeList{}
		reconcileInFull(reconciler, kv)
		before := commonVersions()
		reconcileInFull(reconciler, kv)
		Expect(commonVersions()).To(Equal(before))
		Expect(ExpectExists(instancetype("u1.small")).Spec.CPU.Guest).To(BeEquivalentTo(7))
		Expect(condition()).To(BeNil(), "a cache that is behind is no failure")
	})

	It("are removed when they are switched off, and created when they are switched on", func() {
		reconcileInFull(reconciler, kv)
		enable(false)
		Expect(pass()).To(Succeed())
		Expect(commonVersions()).To(HaveLen(commonObjects - writesPerPass))
		reconcileInFull(reconciler, kv)
		ExpectNoCommonInstancetypes()
		enable(true)
		reconcileInFull(reconciler, kv)
		Expect(commonVersions()).To(HaveLen(commonObjects))
	})

	It("are applied without one that the API server refuses, which a condition names until it succeeds", func() {
		refuse := true
		reconciler.Client = interceptor.NewClient(writes, interceptor.Funcs{
			Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration,
				opts ...client.ApplyOption) error {
				if named, ok := object.(interface{ GetName() string }); ok && refuse &&
					strings.HasPrefix(named.GetName(), "u1.nano") {
					return apierrors.NewForbidden(
						v1beta1.GroupVersion.WithResource("virtualmachineclusterinstancetypes").GroupResource(),
						named.GetName(), ErrInjected)
				}
				return c.Apply(ctx, object, opts...)
			},
		})
		for range 3 {
			Expect(pass()).To(MatchError(ContainSubstring(ErrInjected.Error())))
		}
		Expect(commonVersions()).To(HaveLen(commonObjects - 1))
		Expect(condition()).To(HaveField("Reason", kubevirt.ReasonCommonInstancetypesFailed))
		Expect(condition().Message).To(ContainSubstring("cannot apply VirtualMachineClusterInstancetype u1.nano"))
		Expect(ExpectExists(kv).Status.Phase).To(Equal(v1.KubeVirtPhaseDeploying), "the installation goes on")
		Expect(kv.Status.TargetDeploymentID).NotTo(BeEmpty())

		refuse = false
		Expect(pass()).To(Succeed())
		ExpectExists(instancetype("u1.nano"))
		Expect(condition()).To(BeNil())
	})
})

func commonInstancetype(name string) *v1beta1.VirtualMachineClusterInstancetype {
	GinkgoHelper()
	for _, object := range common.Instancetypes() {
		if object.Name == name {
			return object
		}
	}
	Fail("there is no instance type " + name)
	return nil
}

// reconcileInFull reconciles a KubeVirt object as often as the events of all common objects would.
func reconcileInFull(reconciler *kubevirt.Reconciler, kv *v1.KubeVirt) {
	GinkgoHelper()
	for range 1 + commonObjects/writesPerPass {
		_, err := Reconcile(reconciler, kv)
		Expect(err).NotTo(HaveOccurred())
	}
}

// clusterInstancetypes returns the cluster's instance types and preferences with the names of common ones or with our
// labels.
func clusterInstancetypes() []client.Object {
	GinkgoHelper()
	names := map[string]bool{}
	for _, object := range common.Instancetypes() {
		names[object.Name] = true
	}
	for _, object := range common.Preferences() {
		names[object.Name] = true
	}
	instancetypes, preferences := &v1beta1.VirtualMachineClusterInstancetypeList{},
		&v1beta1.VirtualMachineClusterPreferenceList{}
	Expect(K8sClient.List(ctx, instancetypes)).To(Succeed())
	Expect(K8sClient.List(ctx, preferences)).To(Succeed())
	var found []client.Object
	add := func(object client.Object) {
		if names[object.GetName()] || object.GetLabels()[manifests.ManagedByLabel] == manifests.ManagedBy {
			found = append(found, object)
		}
	}
	for i := range instancetypes.Items {
		add(&instancetypes.Items[i])
	}
	for i := range preferences.Items {
		add(&preferences.Items[i])
	}
	return found
}

// commonVersions returns the resource versions of these by name.
func commonVersions() map[string]string {
	GinkgoHelper()
	versions := map[string]string{}
	for _, object := range clusterInstancetypes() {
		versions[object.GetName()] = object.GetResourceVersion()
	}
	return versions
}

// ExpectNoCommonInstancetypes expects that no common instance type and preference exists.
func ExpectNoCommonInstancetypes() {
	GinkgoHelper()
	Expect(commonVersions()).To(BeEmpty())
}

// withoutCommonInstancetypes is for specs that do not depend on them.
func withoutCommonInstancetypes() v1.KubeVirtConfiguration {
	return v1.KubeVirtConfiguration{CommonInstancetypesDeployment: &v1.CommonInstancetypesDeployment{Enabled: ptr.To(
		false)}}
}

func deleteCommonInstancetypes() {
	GinkgoHelper()
	for _, object := range clusterInstancetypes() {
		Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, object))).To(Succeed())
	}
}

// toUnstructured returns the content of an object without what the API server sets.
func toUnstructured(content map[string]any, kind schema.GroupVersionKind) *unstructured.Unstructured {
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	object := &unstructured.Unstructured{Object: content}
	object.SetGroupVersionKind(kind)
	return object
}
