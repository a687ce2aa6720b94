// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("The rollout of a KubeVirt object", func() {
	var (
		namespace  string
		reconciler *kubevirt.Reconciler
		writes     *Writes
		kv         *v1.KubeVirt
		recorded   *RecordedEvents
	)
	reconcile := func() error {
		_, err := Reconcile(reconciler, kv)
		return err
	}
	daemons := func(name string) *appsv1.DaemonSet {
		GinkgoHelper()
		return ExpectExists(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	}
	agents := func() *appsv1.DaemonSet {
		GinkgoHelper()
		return daemons(manifests.HandlerName)
	}
	deployment := func(name string) *appsv1.Deployment {
		GinkgoHelper()
		return ExpectExists(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	}
	imageOf := func(template corev1.PodTemplateSpec) string { return template.Spec.Containers[0].Image }
	// expectImages expects the images of agents and virt-api.
	expectImages := func(handler, api string) {
		GinkgoHelper()
		Expect(imageOf(agents().Spec.Template)).To(Equal("e.org/h:" + handler))
		Expect(imageOf(deployment(manifests.APIName).Spec.Template)).To(Equal("e.org/a:" + api))
	}
	// daemonsRolled, agentsRolled and rolled write statuses, in place of the controllers of Kubernetes.
	daemonsRolled := func(name string, updated, ready int32) {
		GinkgoHelper()
		ds := daemons(name)
		ds.Status = appsv1.DaemonSetStatus{ObservedGeneration: ds.Generation, DesiredNumberScheduled: 2,
			CurrentNumberScheduled: 2,
			UpdatedNumberScheduled: updated, NumberReady: ready, NumberAvailable: ready}
		ExpectStatus(ds)
	}
	agentsRolled := func(updated, ready int32) {
		GinkgoHelper()
		daemonsRolled(manifests.HandlerName, updated, ready)
	}
	brokerImage := func() string {
		GinkgoHelper()
		return imageOf(daemons(manifests.BrokerName).Spec.Template)
	}
	rolled := func(name string) {
		GinkgoHelper()
		d := deployment(name)
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 2, UpdatedReplicas: 2,
			ReadyReplicas: 2}
		ExpectStatus(d)
	}
	change := func(spec func(*v1.KubeVirtSpec)) {
		GinkgoHelper()
		spec(&ExpectExists(kv).Spec)
		Expect(K8sClient.Update(ctx, kv)).To(Succeed())
		Expect(reconcile()).To(Succeed())
	}
	setTag := func(tag string) {
		GinkgoHelper()
		change(func(s *v1.KubeVirtSpec) { s.ImageTag = tag })
	}
	// updateTo changes the tag to a newer one, and lets the brokers be replaced, so that it is the agents' turn.
	updateTo := func(tag string) {
		GinkgoHelper()
		setTag(tag)
		Expect(brokerImage()).To(Equal("e.org/b:" + tag))
		daemonsRolled(manifests.BrokerName, 2, 2)
		Expect(reconcile()).To(Succeed())
	}
	createCanary := func(status corev1.PodStatus) {
		GinkgoHelper()
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: "virt-handler-canary", Labels: map[string]string{v1.AppLabel: manifests.HandlerName},
				Annotations: agents().Spec.Template.Annotations,
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "virt-handler", Image: "e.org/h:v1.2.0"}}},
		}
		ExpectCreated(pod)
		pod.Status = status
		ExpectStatus(pod)
	}
	degraded := func() v1.KubeVirtCondition {
		GinkgoHelper()
		for _, c := range ExpectExists(kv).Status.Conditions {
			if c.Type == v1.KubeVirtConditionDegraded {
				return c
			}
		}
		Fail("there is no condition Degraded")
		return v1.KubeVirtCondition{}
	}

	BeforeEach(func() {
		namespace = NewInstallNamespace()
		writes, recorded = NewWrites(), &RecordedEvents{}
		reconciler = &kubevirt.Reconciler{
			Client: writes, APIReader: AsController, Recorder: recorded, Namespace: namespace,
			Options: []clusterconfig.Option{clusterconfig.WithImages(
				clusterconfig.Images{Launcher: "e.org/l:v1.1.0", Handler: "e.org/h:v1.1.0", Broker: "e.org/b:v1.1.0",
					API: "e.org/a:v1.1.0"})},
		}
		deleteCommonInstancetypes()
		kv = &v1.KubeVirt{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kubevirt"},
			Spec: v1.KubeVirtSpec{
				// Independent of the nodes of other specs.
				Infra: &v1.ComponentConfig{Replicas: ptr.To[uint8](2)},
				// Without a cache, reading them takes almost half of the time of a reconciliation.
				Configuration: withoutCommonInstancetypes(),
			},
		}
		ExpectCreated(kv)
		Expect(reconcile()).To(Succeed())
		daemonsRolled(manifests.BrokerName, 2, 2)
		agentsRolled(2, 2)
		rolled(manifests.APIName)
		Expect(reconcile()).To(Succeed())
		Expect(ExpectExists(kv).Status.ObservedKubeVirtVersion).To(Equal("v1.1.0"))
	})

	It("updates the brokers, the agents and then virt-api, reverts in the other order, and observes the generation at the end", func() {
		setTag("v1.2.0")
		Expect(brokerImage()).To(Equal("e.org/b:v1.2.0"))
		expectImages("v1.1.0", "v1.1.0")
		daemonsRolled(manifests.BrokerName, 1, 2)
		Expect(reconcile()).To(Succeed())
		expectImages("v1.1.0", "v1.1.0")
		daemonsRolled(manifests.BrokerName, 2, 2)
		Expect(reconcile()).To(Succeed())
		expectImages("v1.2.0", "v1.1.0")
		Expect(agents().Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue()).To(Equal(1))
		Expect(degraded().Reason).To(Equal(kubevirt.ReasonUpdateInProgress))
		Expect(*kv.Status.ObservedGeneration).To(BeNumerically("<", kv.Generation))
		agentsRolled(1, 2)
		Expect(reconcile()).To(Succeed())
		expectImages("v1.2.0", "v1.1.0")

		agentsRolled(2, 2)
		Expect(reconcile()).To(Succeed())
		expectImages("v1.2.0", "v1.2.0")
		Expect(*ExpectExists(kv).Status.ObservedGeneration).To(BeNumerically("<", kv.Generation))
		rolled(manifests.APIName)
		Expect(reconcile()).To(Succeed())
		Expect(degraded().Reason).To(Equal(kubevirt.ReasonAllComponentsReady))
		Expect(*kv.Status.ObservedGeneration).To(Equal(kv.Generation))
		Expect(kv.Status.ObservedDeploymentID).To(Equal(agents().Annotations[manifests.IdentifierAnnotation]))
		Expect(deployment(manifests.APIName).Annotations).To(HaveKeyWithValue(manifests.VersionAnnotation, "v1.2.0"))

		setTag("")
		expectImages("v1.2.0", "v1.1.0")
		rolled(manifests.APIName)
		Expect(reconcile()).To(Succeed())
		expectImages("v1.1.0", "v1.1.0")
		Expect(brokerImage()).To(Equal("e.org/b:v1.2.0"))
		agentsRolled(2, 2)
		Expect(reconcile()).To(Succeed())
		Expect(brokerImage()).To(Equal("e.org/b:v1.1.0"))
	})

	It("installs the brokers of an installation without them before it replaces the agents", func() {
		Expect(K8sClient.Delete(ctx, daemons(manifests.BrokerName))).To(Succeed())
		setTag("v1.2.0")
		Expect(brokerImage()).To(Equal("e.org/b:v1.2.0"))
		expectImages("v1.1.0", "v1.1.0")
		daemonsRolled(manifests.BrokerName, 2, 2)
		Expect(reconcile()).To(Succeed())
		expectImages("v1.2.0", "v1.1.0")
	})

	It("stops when an updated broker cannot run, replaces no agent, and goes on after one change of the object", func() {
		setTag("v1.2.0")
		daemonsRolled(manifests.BrokerName, 1, 1)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: "virt-broker-canary", Labels: map[string]string{v1.AppLabel: manifests.BrokerName},
				Annotations: daemons(manifests.BrokerName).Spec.Template.Annotations,
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "virt-broker", Image: "e.org/b:v1.2.0"}}},
		}
		ExpectCreated(pod)
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "virt-broker", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff",
				Message: "back-off"}},
		}}}
		ExpectStatus(pod)
		Expect(reconcile()).To(Succeed())
		Expect(degraded().Reason).To(Equal(kubevirt.ReasonDeploymentFailed))
		Expect(degraded().Message).To(ContainSubstring(`"virt-broker-canary"`))
		expectImages("v1.1.0", "v1.1.0")

		By("taking it back, while the agent of that node is not ready without its broker")
		agentsRolled(2, 1)
		setTag("")
		Expect(brokerImage()).To(Equal("e.org/b:v1.1.0"))
		daemonsRolled(manifests.BrokerName, 2, 2)
		agentsRolled(2, 2)
		Expect(reconcile()).To(Succeed())
		Expect(degraded().Reason).To(Equal(kubevirt.ReasonAllComponentsReady))
	})

	It("stops when an updated agent cannot run, names it, and goes on after one change of the object", func() {
		updateTo("v1.2.0")
		agentsRolled(1, 1)
		createCanary(corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "virt-handler",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff",
				Message: "back-off"}},
		}}})
		for range 2 {
			result, err := Reconcile(reconciler, kv)
			Expect(err).NotTo(HaveOccurred())
			Expect(result.RequeueAfter).To(BeNumerically(">", 0), "a Pod that starts to crash changes no status that is watched")
			Expect(degraded().Reason).To(Equal(kubevirt.ReasonDeploymentFailed))
			Expect(degraded().Message).To(SatisfyAll(ContainSubstring(`"virt-handler-canary"`), ContainSubstring("CrashLoopBackOff")))
		}
		Expect(recorded.Take()).To(ConsistOf(ContainSubstring(kubevirt.ReasonFailedUpdate)))
		expectImages("v1.2.0", "v1.1.0")
		Expect(agents().Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue()).To(Equal(1))

		setTag("")
		expectImages("v1.1.0", "v1.1.0")
		Expect(degraded().Reason).NotTo(Equal(kubevirt.ReasonDeploymentFailed), "the Pod that crashes is an old one now")
		agentsRolled(2, 2)
		Expect(reconcile()).To(Succeed())
		daemonsRolled(manifests.BrokerName, 2, 2)
		Expect(reconcile()).To(Succeed())
		Expect(degraded().Reason).To(Equal(kubevirt.ReasonAllComponentsReady))
	})

	It("names an updated agent that runs and does not become ready", func() {
		updateTo("v1.2.0")
		agentsRolled(1, 1)
		createCanary(corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionFalse,
			LastTransitionTime: metav1.NewTime(time.Now().Add(-5 * time.Minute)),
		}}})
		Expect(reconcile()).To(Succeed())
		Expect(degraded().Reason).To(Equal(kubevirt.ReasonUpdateInProgress))
		Expect(degraded().Message).To(And(ContainSubstring("updated on 1 of 2 nodes"), ContainSubstring(`"virt-handler-canary"`), ContainSubstring("not been ready")))
	})

	It("replaces a tenth of the agents at a time after the first one is available", func() {
		updateTo("v1.2.0")
		ds := agents()
		ds.Status = appsv1.DaemonSetStatus{ObservedGeneration: ds.Generation, DesiredNumberScheduled: 40,
			UpdatedNumberScheduled: 1, NumberReady: 40}
		ExpectStatus(ds)
		createCanary(corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour)),
		}}})
		Expect(reconcile()).To(Succeed())
		Expect(agents().Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue()).To(Equal(4))
		template := agents().Spec.Template

		agentsRolled(2, 2)
		Expect(reconcile()).To(Succeed())
		Expect(agents().Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue()).To(Equal(1))
		Expect(agents().Spec.Template).To(Equal(template))
	})

	It("waits for the agents of all nodes but lost ones", func() {
		lost := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: namespace + "-lost"}, Spec: corev1.NodeSpec{
			Taints: []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}},
		}}
		ExpectCreated(lost)
		updateTo("v1.2.0")
		updated := agents().Spec.Template.Annotations
		for node, annotations := range map[string]map[string]string{lost.Name: updated, "a": updated, "b": nil} {
			ExpectCreated(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "virt-handler-" + node,
					Labels:      map[string]string{v1.AppLabel: manifests.HandlerName},
					Annotations: annotations},
				Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "virt-handler", Image: "e.org/h"}}},
			})
		}
		ds := agents()
		ds.Status = appsv1.DaemonSetStatus{ObservedGeneration: ds.Generation, DesiredNumberScheduled: 3,
			UpdatedNumberScheduled: 2, NumberReady: 2}
		ExpectStatus(ds)
		Expect(reconcile()).To(Succeed())
		expectImages("v1.2.0", "v1.1.0")
		Expect(agents().Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue()).To(Equal(2), "one, and the lost one")

		old := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "virt-handler-b"}}
		ExpectExists(old).Annotations = updated
		Expect(K8sClient.Update(ctx, old)).To(Succeed())
		ds = agents()
		ds.Status.ObservedGeneration, ds.Status.UpdatedNumberScheduled = ds.Generation, 3
		ExpectStatus(ds)
		Expect(reconcile()).To(Succeed())
		expectImages("v1.2.0", "v1.2.0")
	})

	Describe("with virt-controller's own Deployment", func() {
		BeforeEach(func() {
			own := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: manifests.ControllerName,
				Labels: map[string]string{v1.AppLabel: manifests.ControllerName},
			}}
			own.Spec.Replicas = ptr.To[int32](2)
			own.Spec.Selector = &metav1.LabelSelector{MatchLabels: own.Labels}
			own.Spec.Template.Labels = own.Labels
			own.Spec.Template.Spec.Containers = []corev1.Container{{Name: manifests.ControllerName, Image: "e.org/c:v1.1.0"}}
			ExpectCreated(own)
			rolled(manifests.ControllerName)
			Expect(reconcile()).To(Succeed())
		})

		It("replaces itself between the agents and virt-api, and not twice", func() {
			ExpectExists(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
				Name: "virt-controller-pdb"}})
			writes.Take()
			Expect(reconcile()).To(Succeed())
			Expect(writes.Take()).To(BeEmpty())

			updateTo("v1.2.0")
			Expect(imageOf(deployment(manifests.ControllerName).Spec.Template)).To(Equal("e.org/c:v1.1.0"))
			agentsRolled(2, 2)
			Expect(reconcile()).To(Succeed())
			Expect(imageOf(deployment(manifests.ControllerName).Spec.Template)).To(Equal("e.org/c:v1.2.0"))
			expectImages("v1.2.0", "v1.1.0")

			By("waiting until no virt-controller of the old version runs")
			Expect(reconcile()).To(Succeed())
			expectImages("v1.2.0", "v1.1.0")
			generation := deployment(manifests.ControllerName).Generation
			rolled(manifests.ControllerName)
			Expect(reconcile()).To(Succeed())
			expectImages("v1.2.0", "v1.2.0")
			rolled(manifests.APIName)
			Expect(reconcile()).To(Succeed())
			Expect(degraded().Reason).To(Equal(kubevirt.ReasonAllComponentsReady))
			Expect(deployment(manifests.ControllerName).Generation).To(Equal(generation))

			By("taking it back")
			setTag("")
			rolled(manifests.APIName)
			Expect(reconcile()).To(Succeed())
			own := deployment(manifests.ControllerName)
			Expect(imageOf(own.Spec.Template)).To(Equal("e.org/c:v1.1.0"))
			Expect(own.Annotations).NotTo(HaveKey(kubevirt.CustomizedAnnotation))
		})

		It("follows infra, flags and a patch whose defaults the API server adds", func() {
			change(func(s *v1.KubeVirtSpec) {
				s.Infra = &v1.ComponentConfig{Replicas: ptr.To[uint8](3)}
				s.CustomizeComponents.Flags = &v1.Flags{Controller: map[string]string{"v": "5"}}
				s.CustomizeComponents.Patches = []v1.CustomizeComponentsPatch{{
					ResourceType: "deployment", ResourceName: "virt-controller", Type: v1.StrategicMergePatchType,
					Patch: `{"spec":{"template":{"spec":{"containers":[{"name":"virt-controller","env":[{"name":"N","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]}]}}}}`,
				}}
			})
			d := deployment(manifests.APIName)
			d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 3, UpdatedReplicas: 3,
				ReadyReplicas: 3}
			ExpectStatus(d)
			Expect(reconcile()).To(Succeed())
			own := deployment(manifests.ControllerName)
			Expect(*own.Spec.Replicas).To(BeEquivalentTo(3))
			container := own.Spec.Template.Spec.Containers[0]
			Expect(container.Args).To(Equal([]string{"--v=5"}))
			Expect(container.Env[0].ValueFrom.FieldRef.APIVersion).To(Equal("v1"))
			Expect(reconcile()).To(Succeed())
			Expect(deployment(manifests.ControllerName).ResourceVersion).To(Equal(own.ResourceVersion))
		})
	})

	It("reports a patch that fails, keeps what it should change, and rotates certificates meanwhile", func() {
		before := deployment(manifests.APIName).ResourceVersion
		spec := &ExpectExists(kv).Spec
		spec.ImageTag = "v1.2.0"
		spec.CustomizeComponents.Patches = []v1.CustomizeComponentsPatch{{
			ResourceType: "Deployment", ResourceName: "virt-api", Type: v1.JSONPatchType, Patch: `[{"op":"replace","path":"/spec/nowhere/x","value":1}]`,
		}}
		Expect(K8sClient.Update(ctx, kv)).To(Succeed())
		Expect(reconcile()).To(MatchError(ContainSubstring("patches[0]")))
		Expect(degraded().Reason).To(Equal(kubevirt.ReasonDeploymentFailed))
		Expect(degraded().Message).To(
			ContainSubstring("spec.customizeComponents.patches[0] cannot be applied to Deployment virt-api"))
		Expect(deployment(manifests.APIName).ResourceVersion).To(Equal(before))
		Expect(*kv.Status.ObservedGeneration).To(BeNumerically("<", kv.Generation))
	})

	It("leaves out a product label that is not valid, and reports it", func() {
		change(func(s *v1.KubeVirtSpec) { s.ProductName, s.ProductVersion = "acme", "not a label" })
		rolled(manifests.APIName)
		Expect(reconcile()).To(Succeed())
		Expect(agents().Labels).To(SatisfyAll(HaveKeyWithValue(v1.AppPartOfLabel, "acme"), Not(HaveKey(v1.AppVersionLabel))))
		agentsRolled(2, 2)
		Expect(reconcile()).To(Succeed())
		daemonsRolled(manifests.BrokerName, 2, 2)
		Expect(reconcile()).To(Succeed())
		Expect(degraded().Message).To(ContainSubstring("spec.productVersion"))
	})
})
