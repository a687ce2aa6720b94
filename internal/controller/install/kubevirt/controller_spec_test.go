// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt_test

import (
	"encoding/base64"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("KubeVirt", func() {
	var k *installation

	BeforeEach(func() { k = newInstallation() })

	It("installs the agents, and is Deployed when all are ready", func() {
		Expect(k.reconcile(k.kv)).To(Succeed())
		Expect(ExpectExists(k.kv).Finalizers).To(ContainElement(kubevirt.Finalizer))
		Expect(k.kv.Status.Phase).To(Equal(v1.KubeVirtPhaseDeploying))
		k.expectCondition(k.kv, v1.KubeVirtConditionProgressing, corev1.ConditionTrue, kubevirt.ReasonDeploymentInProgress)
		Expect(ExpectExists(k.agents()).Spec.Template.Spec.Containers[0].Image).To(Equal("e.org/h:v1"))
		Expect(ExpectExists(k.brokers()).Spec.Template.Spec.Containers[0].Image).To(Equal("e.org/b:v1"))
		ExpectExists(k.service())

		k.rolledOut(2)
		Expect(k.reconcile(k.kv)).To(Succeed())
		Expect(ExpectExists(k.kv).Status.Phase).To(Equal(v1.KubeVirtPhaseDeployed))
		k.expectCondition(k.kv, v1.KubeVirtConditionAvailable, corev1.ConditionTrue, kubevirt.ReasonAllComponentsReady)
		Expect(k.kv.Status.ObservedKubeVirtVersion).To(Equal("v1"))
		Expect(k.kv.Status.ObservedDeploymentID).To(Equal(k.kv.Status.TargetDeploymentID))
		Expect(k.reconciler.DeploymentID(k.kv)).To(Equal(k.kv.Status.TargetDeploymentID),
			"the ID does not depend on observed objects")
		Expect(k.kv.Status.Generations).To(HaveLen(9))
		Expect(*k.kv.Status.ObservedGeneration).To(Equal(k.kv.Generation))
	})

	It("installs virt-api with its CA bundle, and is not Available until it is ready", func() {
		Expect(k.reconcile(k.kv)).To(Succeed())
		Expect(ExpectExists(k.api()).Spec.Template.Spec.Containers[0].Image).To(Equal("e.org/a:v1"))
		k.rolledOut(2)
		k.served(1)
		Expect(k.reconcile(k.kv)).To(Succeed())
		k.expectCondition(k.kv, v1.KubeVirtConditionAvailable, corev1.ConditionFalse, kubevirt.ReasonDeploymentInProgress)
		Expect(k.kv.Status.Conditions[0].Message).To(
			Equal("Deploying version v1 with registry e.org: 1 of 2 Pods of virt-api are ready"))

		trusted := ExpectExists(k.bundles()).Data
		for _, role := range certificate.Authorities() {
			secret := ExpectExists(k.authority(role))
			Expect(trusted[role.Name]).To(Equal(string(secret.Data[corev1.TLSCertKey])))
		}
		ca, _, err := unstructured.NestedString(ExpectExists(k.apiService()).Object, "spec", "caBundle")
		Expect(err).NotTo(HaveOccurred())
		Expect(base64.StdEncoding.DecodeString(ca)).To(BeEquivalentTo(trusted[certificate.APIServing.Name]))
	})

	It("writes nothing without a change", func() {
		Expect(k.reconcile(k.kv)).To(Succeed())
		k.rolledOut(2)
		Expect(k.reconcile(k.kv)).To(Succeed())
		k.writes.Take()
		before := []string{ExpectExists(k.agents()).ResourceVersion, ExpectExists(k.service()).ResourceVersion,
			ExpectExists(k.kv).ResourceVersion}
		managed := ExpectExists(k.agents()).ManagedFields

		Expect(k.reconcile(k.kv)).To(Succeed())
		Expect(k.writes.Take()).To(BeEmpty())
		Expect([]string{ExpectExists(k.agents()).ResourceVersion, ExpectExists(k.service()).ResourceVersion,
			ExpectExists(k.kv).ResourceVersion}).To(Equal(before))
		Expect(ExpectExists(k.agents()).ManagedFields).To(Equal(managed), "an apply without changes is a write too")
	})

	It("updates the brokers, and then the agents, when spec.imageTag changes", func() {
		Expect(k.reconcile(k.kv)).To(Succeed())
		k.rolledOut(2)
		Expect(k.reconcile(k.kv)).To(Succeed())

		ExpectExists(k.kv).Spec.ImageTag = "v2"
		Expect(K8sClient.Update(ctx, k.kv)).To(Succeed())
		Expect(k.reconcile(k.kv)).To(Succeed())
		Expect(ExpectExists(k.brokers()).Spec.Template.Spec.Containers[0].Image).To(Equal("e.org/b:v2"))
		Expect(ExpectExists(k.agents()).Spec.Template.Spec.Containers[0].Image).To(Equal("e.org/h:v1"))
		k.rolled(k.brokers(), 2)
		Expect(k.reconcile(k.kv)).To(Succeed())
		Expect(ExpectExists(k.agents()).Spec.Template.Spec.Containers[0].Image).To(Equal("e.org/h:v2"))
		k.expectCondition(k.kv, v1.KubeVirtConditionDegraded, corev1.ConditionTrue, kubevirt.ReasonUpdateInProgress)
		Expect(k.kv.Status.TargetKubeVirtVersion).To(Equal("v2"))
		Expect(k.kv.Status.ObservedKubeVirtVersion).To(Equal("v1"))
	})

	It("reverts changes to what it installed, and deletes its leftovers", func() {
		Expect(k.reconcile(k.kv)).To(Succeed())
		ds := ExpectExists(k.brokers())
		ds.Spec.Template.Spec.HostPID = false
		Expect(K8sClient.Update(ctx, ds)).To(Succeed())
		leftover := k.service()
		leftover.Name, leftover.Labels = "leftover", map[string]string{manifests.ManagedByLabel: manifests.ManagedBy}
		leftover.Spec.Ports = []corev1.ServicePort{{Port: 1}}
		other := k.service()
		other.Name, other.Spec.Ports = "not-managed", leftover.Spec.Ports
		ExpectCreated(leftover, other)

		Expect(k.reconcile(k.kv)).To(Succeed())
		Expect(ExpectExists(k.brokers()).Spec.Template.Spec.HostPID).To(BeTrue())
		k.collect(leftover)
		ExpectExists(other)
	})

	It("reports invalid fields, and installs with the others", func() {
		ExpectExists(k.kv).Spec.Configuration.NetworkConfiguration = &v1.NetworkConfiguration{NetworkInterface: "pigeon"}
		Expect(K8sClient.Update(ctx, k.kv)).To(Succeed())
		Expect(k.reconcile(k.kv)).To(Succeed())
		k.rolledOut(2)
		Expect(k.reconcile(k.kv)).To(Succeed())
		k.expectCondition(k.kv, v1.KubeVirtConditionSynchronized, corev1.ConditionFalse, kubevirt.ReasonInvalidConfiguration)
	})

	It("requeues with a stale cache, and installs nothing until the cache is current", func() {
		k.writes.Stale = ExpectExists(k.kv).DeepCopy()
		metav1.SetMetaDataAnnotation(&k.kv.ObjectMeta, "of", "someone else")
		Expect(K8sClient.Update(ctx, k.kv)).To(Succeed())
		again, err := Reconcile(k.reconciler, k.kv)
		Expect(err).NotTo(HaveOccurred())
		Expect(again).NotTo(BeZero())
		ExpectGone(k.agents())
		Expect(ExpectExists(k.kv).Finalizers).To(BeEmpty())

		k.writes.Stale = nil
		Expect(k.reconcile(k.kv)).To(Succeed())
		ExpectExists(k.agents())
		Expect(ExpectExists(k.kv).Annotations).To(HaveKey("of"))
	})

	It("waits for a cache that does not contain yet what was installed", func() {
		Expect(k.reconcile(k.kv)).To(Succeed())
		installed := ExpectExists(k.agents())
		k.writes.Blind = func(_ client.ObjectKey, o client.Object) bool { _, ds := o.(*appsv1.DaemonSet); return ds }
		Expect(k.reconcile(k.kv)).To(Succeed())
		Expect(ExpectExists(k.agents()).Generation).To(Equal(installed.Generation))
		Expect(ExpectExists(k.kv).Status.Phase).To(Equal(v1.KubeVirtPhaseDeploying))
		k.writes.Blind = nil
		k.rolledOut(2)
		Expect(k.reconcile(k.kv)).To(Succeed())
		Expect(ExpectExists(k.kv).Status.Phase).To(Equal(v1.KubeVirtPhaseDeployed))
	})

	It("reports a second KubeVirt object, and follows the first one", func() {
		Expect(k.reconcile(k.kv)).To(Succeed())
		second := k.newKubeVirt("second")
		ExpectCreated(second)
		Expect(k.reconcile(second)).To(Succeed())
		k.expectCondition(second, v1.KubeVirtConditionDegraded, corev1.ConditionTrue, kubevirt.ReasonExistingDeployment)
		Expect(second.Finalizers).To(BeEmpty())

		Expect(K8sClient.Delete(ctx, second)).To(Succeed())
		Expect(k.reconcile(second)).To(Succeed())
		ExpectExists(k.agents())
	})

	Describe("deletion", func() {
		var (
			vm      *v1.VirtualMachineInstance
			set     *v1.VirtualMachineInstanceReplicaSet
			machine *v1.VirtualMachine
			pool    *poolv1.VirtualMachinePool
		)

		BeforeEach(func() {
			deleteGuests()
			Expect(k.reconcile(k.kv)).To(Succeed())
			vm = &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: "guest",
				Finalizers: []string{"test/guest-runs"}}}
			set = builder.MakeReplicaSet("set").Namespace(k.namespace).Obj()
			machine = builder.MakeVM("machine").Namespace(k.namespace).Strategy(v1.RunStrategyHalted).Obj()
			pool = builder.MakePool("pool").Namespace(k.namespace).Obj()
			ExpectCreated(vm, set, machine, pool)
			DeferCleanup(deleteGuests)
		})
		deleteKubeVirt := func(strategy v1.KubeVirtUninstallStrategy) {
			GinkgoHelper()
			ExpectExists(k.kv).Spec.UninstallStrategy = strategy
			Expect(K8sClient.Update(ctx, k.kv)).To(Succeed())
			Expect(K8sClient.Delete(ctx, k.kv)).To(Succeed())
			Expect(k.reconcile(k.kv)).To(Succeed())
		}

		It("is blocked while guests exist, with the reason", func() {
			deleteKubeVirt(v1.KubeVirtUninstallStrategyBlockUninstallIfWorkloadsExist)
			k.expectCondition(k.kv, v1.KubeVirtConditionDegraded, corev1.ConditionTrue, kubevirt.ReasonDeletionFailed)
			Expect(k.kv.Status.Conditions[0].Message).To(ContainSubstring(k.namespace + "/guest"))
			Expect(ExpectExists(k.agents()).DeletionTimestamp).To(BeNil())
			Expect(ExpectExists(vm).DeletionTimestamp).To(BeNil())
			Expect(ExpectExists(set).DeletionTimestamp).To(BeNil())
			Expect(ExpectExists(machine).DeletionTimestamp).To(BeNil())
			Expect(ExpectExists(pool).DeletionTimestamp).To(BeNil())
			Expect(k.kv.Status.Conditions[0].Message).To(
				ContainSubstring("1 VirtualMachineInstanceReplicaSets, 1 VirtualMachinePools"))
		})

		It("deletes guests, then what it installed and what the agents published, then its finalizer", func() {
			host := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				GenerateName: "node-", Annotations: map[string]string{v1.VirtHandlerHeartbeat: "2026-01-01T00:00:00Z"},
				Labels: map[string]string{v1.NodeSchedulable: "false", "machine-type.node.kubevirt.io/q35": "true",
					"theirs": "stays"},
			}}
			ExpectCreated(host)
			published := metav1.ObjectMeta{
				Namespace: k.namespace, Name: agentapi.ObjectName(host.Name),
				Labels: map[string]string{v1.AppLabel: agentapi.LabelValue},
			}
			lease, report := &coordinationv1.Lease{ObjectMeta: published}, &corev1.ConfigMap{ObjectMeta: published}
			ExpectCreated(lease, report)
			deleteKubeVirt(v1.KubeVirtUninstallStrategyRemoveWorkloads)
			Expect(ExpectExists(k.kv).Status.Phase).To(Equal(v1.KubeVirtPhaseDeleting))
			Expect(ExpectExists(vm).DeletionTimestamp).NotTo(BeNil())
			ExpectGone(set)
			ExpectGone(machine)
			ExpectGone(pool)
			Expect(ExpectExists(k.agents()).DeletionTimestamp).To(BeNil(), "the agents must not be deleted before the guests")

			removeVMIFinalizers(vm)
			Expect(k.reconcile(k.kv)).To(Succeed())
			ExpectExists(k.kv)
			second := k.apiService()
			second.SetName("v1alpha3.subresources.kubevirt.io")
			budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: "virt-api-pdb"}}
			front := k.service()
			front.Name = manifests.APIName
			for _, o := range []client.Object{k.agents(), k.brokers(), k.service(), k.api(), front, k.bundles(), budget,
				k.apiService(), second} {
				k.collect(o)
			}
			ExpectExists(k.authority(certificate.APIServing))
			reconcileInFull(k.reconciler, k.kv)
			ExpectNoCommonInstancetypes()
			for _, role := range certificate.Authorities() {
				ExpectGone(k.authority(role))
			}
			Expect(k.reconcile(k.kv)).To(Succeed())
			ExpectGone(k.kv)
			ExpectGone(lease)
			ExpectGone(report)
			Expect(ExpectExists(host).Labels).To(Equal(map[string]string{"theirs": "stays"}))
			Expect(host.Annotations).To(BeEmpty())
		})

		DescribeTable("goes on when the last object is deleted that it waits for", func(of func() client.Object) {
			last := of()
			deleteGuests()
			k = newInstallation(func(s *v1.KubeVirtSpec) {
				s.UninstallStrategy = v1.KubeVirtUninstallStrategyBlockUninstallIfWorkloadsExist
			})
			last.SetResourceVersion("")
			ExpectCreated(last)
			k.run()
			Eventually(func() error { return K8sClient.Get(ctx, client.ObjectKeyFromObject(k.agents()), k.agents()) }).
				Should(Succeed())
			Expect(K8sClient.Delete(ctx, k.kv)).To(Succeed())
			Eventually(func() *v1.KubeVirtCondition {
				return conditions.Find(ExpectExists(k.kv).Status.Conditions, v1.KubeVirtConditionDegraded)
			}).Should(HaveValue(HaveField("Reason", kubevirt.ReasonDeletionFailed)))
			Expect(K8sClient.Delete(ctx, last)).To(Succeed())
			Eventually(func() bool {
				agents := k.agents()
				err := K8sClient.Get(ctx, client.ObjectKeyFromObject(agents), agents)
				return apierrors.IsNotFound(err) || err == nil && agents.DeletionTimestamp != nil
			}).Should(BeTrue())
		},
			Entry("a pool", func() client.Object { return pool }),
			Entry("a replica set", func() client.Object { return set }),
			Entry("a VM", func() client.Object { return machine }),
			Entry("a VMI", func() client.Object {
				vm.Finalizers = nil
				return vm
			}),
		)
	})
})
