// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"errors"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachineInstance reconciler", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("assigns a VMI with a Pod and two writes of the VMI", func() {
		vmi := w.create(builder.MakeVMI("vm").Label("app", "web").ContainerDisk("root", "image"))
		Expect(vmi.Status.Phase).To(Equal(v1.Pending), "the schema's default")

		// The README promises the number of writes for a start: these, those of the assignment below, and one of the agent.
		w.ExpectBudget(vmi, "create Pod")
		Expect(w.events.Take()).To(ConsistOf("Normal SuccessfulCreate: Created virtual machine pod " + podspec.PodName(vmi)))
		pod := ExpectExists(PodOf(vmi))
		Expect(metav1.IsControlledBy(pod, vmi)).To(BeTrue())
		Expect(pod.Labels).To(HaveKeyWithValue("app", "web"))
		Expect(w.ExpectSteady(vmi).RequeueAfter).To(BeNumerically(">", 0), "to report a Pod that starts slowly")
		Expect(w.events.Take()).To(BeEmpty())

		SetLauncherStatus(vmi, "node-1", builder.MakePodStatus().Waiting("ContainerCreating", ""))
		w.expectQuiet(vmi)

		pod = SetLauncherStatus(vmi, "node-1", builder.MakePodStatus().Running())
		// The status is last: from phase Scheduled on the agent starts the guest, which it finds by the labels.
		w.ExpectOrder(vmi, "patch VirtualMachineInstance", "patch Pod/status", "patch VirtualMachineInstance/status")
		Expect(w.events.Take()).To(ConsistOf("Normal SuccessfulHandOver: Pod ownership transferred to the node node-1"))
		ExpectExists(vmi)
		Expect(vmi.Status.Phase).To(Equal(v1.Scheduled))
		Expect(vmi.Status.NodeName).To(Equal("node-1"))
		Expect(vmi.Labels).To(HaveKeyWithValue(v1.NodeNameLabel, "node-1"))
		Expect(ExpectExists(pod).Labels).To(HaveKeyWithValue(v1.NodeNameLabel, "node-1"))
		Expect(pod.Labels).To(HaveKeyWithValue("app", "web"))
		Expect(vmi.Annotations).To(HaveKey(v1.MemoryOverheadAnnotationBytes))
		Expect(vmi.Status.ActivePods).To(HaveKeyWithValue(pod.UID, "node-1"))
		Expect(vmi.Status.LauncherContainerImageVersion).To(Equal("registry.example/virt-launcher:v1"))
		Expect(vmi.Status.RuntimeUser).To(BeEquivalentTo(launcherpod.QEMUUser))
		Expect(vmi.Status.MigrationTransport).To(Equal(v1.MigrationTransportUnix))
		Expect(vmi.Status.QOSClass).To(HaveValue(Equal(corev1.PodQOSBurstable)))
		Expect(vmi).To(HaveCondition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, v1.GuestNotRunningReason, ""))
		var stamps []v1.VirtualMachineInstancePhase
		for _, stamp := range vmi.Status.PhaseTransitionTimestamps {
			stamps = append(stamps, stamp.Phase)
		}
		Expect(stamps).To(Equal([]v1.VirtualMachineInstancePhase{v1.Pending, v1.Scheduling, v1.Scheduled}))
		w.expectQuiet(vmi)

		ReportAsAgent(vmi, Running)
		w.expectQuiet(vmi)

		By("copying the label of an outdated launcher to the Pod, and removing it")
		ExpectExists(vmi).Labels[v1.OutdatedLauncherImageLabel] = ""
		Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
		w.Step(vmi)
		Expect(ExpectExists(pod).Labels).To(HaveKey(v1.OutdatedLauncherImageLabel))
		w.expectQuiet(vmi)
		delete(ExpectExists(vmi).Labels, v1.OutdatedLauncherImageLabel)
		Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
		w.Step(vmi)
		Expect(ExpectExists(pod).Labels).NotTo(HaveKey(v1.OutdatedLauncherImageLabel))
		w.expectQuiet(vmi)
	})

	It("writes the Pod once when it is assigned, also with a stale cache", func() {
		vmi := w.create(builder.MakeVMI("vm"))
		w.Step(vmi)
		stale := SetLauncherStatus(vmi, "node-1", builder.MakePodStatus().Running())
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Scheduled))
		assigned := ExpectExists(PodOf(vmi)).ResourceVersion
		w.Writes.Stale = stale
		expectUnwritten := func() {
			GinkgoHelper()
			w.advance(time.Second)
			Expect(w.Step(vmi)).NotTo(BeZero(), "a conflict")
			Expect(ExpectExists(PodOf(vmi)).ResourceVersion).To(Equal(assigned))
		}
		By("reading the VMI as Scheduled, and its Pod as it was before")
		expectUnwritten()

		By("reading the VMI with its label only, and its Pod as it was before")
		ExpectExists(vmi).Status = v1.VirtualMachineInstanceStatus{Phase: v1.Pending}
		ExpectStatus(vmi)
		expectUnwritten()
	})

	It("adds the finalizer to a VMI without it", func() {
		vmi := builder.MakeVMI("vm").Namespace(w.ns).Obj()
		ExpectCreated(vmi)
		// The finalizer is first: without it the VMI could be gone while its Pod runs.
		w.ExpectOrder(vmi, "patch VirtualMachineInstance", "create Pod")
		Expect(ExpectExists(vmi).Finalizers).To(ConsistOf(v1.VirtualMachineInstanceFinalizer))
		ExpectExists(PodOf(vmi))
	})

	It("reports a Pod that starts slowly", func() {
		vmi := w.create(builder.MakeVMI("vm"))
		w.Step(vmi)
		w.clock.SetTime(w.clock.Now().Add(10 * time.Second))
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Scheduling))
		w.events.Take()
		w.expectQuiet(vmi)
	})

	It("copies the scheduler's message to the VMI, and removes it when the Pod runs", func() {
		vmi := w.create(builder.MakeVMI("vm").Guest("1Ti"))
		w.Step(vmi)
		w.events.Take()
		SetLauncherStatus(vmi, "", builder.MakePodStatus().Unschedulable("0/2 nodes are available: 2 Insufficient memory."))
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Scheduling))
		Expect(vmi).To(HaveCondition(v1.VirtualMachineInstancePodScheduled, corev1.ConditionFalse,
			corev1.PodReasonUnschedulable, "Insufficient memory"))
		Expect(vmi).To(HaveNoCondition(v1.VirtualMachineInstanceSynchronized))
		w.expectQuiet(vmi)

		w.assign(vmi, "node-1")
		Expect(vmi).To(HaveNoCondition(v1.VirtualMachineInstancePodScheduled))
	})

	It("copies the error of an image pull to the VMI, and removes it when the Pod runs", func() {
		vmi := w.create(builder.MakeVMI("vm").ContainerDisk("root", "nowhere"))
		w.Step(vmi)
		w.events.Take()
		SetLauncherStatus(vmi, "node-1", builder.MakePodStatus().Waiting("ErrImagePull", "no such host"))
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"ErrImagePull", "no such host"))
		Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning ErrImagePull: ")))
		w.expectQuiet(vmi)

		w.assign(vmi, "")
		Expect(vmi).To(HaveNoCondition(v1.VirtualMachineInstanceSynchronized))
	})

	It("waits for a claim, with the reason, and describes the claim in the status when the Pod is assigned", func() {
		vmi := w.create(builder.MakeVMI("vm").PVC("root", "claim"))
		w.Step(vmi)
		ExpectExists(vmi)
		Expect(vmi.Status.Phase).To(Equal(v1.Pending))
		Expect(vmi).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"FailedPvcNotFound", "PVC "+w.ns+"/claim does not exist, waiting for it to appear")) // KubeVirt's text
		Expect(vmi).To(HaveCondition(v1.VirtualMachineInstancePodScheduled, corev1.ConditionFalse,
			corev1.PodReasonUnschedulable, w.ns+"/claim"))
		Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning FailedPvcNotFound: ")))
		w.expectQuiet(vmi)
		ExpectGone(PodOf(vmi))

		pvc := builder.MakePVC("claim").Namespace(w.ns).Block().Obj()
		pvc.Annotations = map[string]string{"cdi.kubevirt.io/storage.preallocation": "true"}
		ExpectCreated(pvc)
		w.Step(vmi)
		Expect(ExpectExists(PodOf(vmi)).Spec.Containers[0].VolumeDevices).To(HaveLen(1))
		Expect(ExpectExists(vmi)).To(HaveNoCondition(v1.VirtualMachineInstanceSynchronized))
		Expect(vmi).To(HaveNoCondition(v1.VirtualMachineInstancePodScheduled))

		pvc.Status = builder.MakePVC("claim").Bound("2Gi").Obj().Status
		ExpectStatus(pvc)
		w.assign(vmi, "node-1")
		Expect(vmi.Status.VolumeStatus).To(HaveLen(1))
		info := vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo
		Expect(vmi.Status.VolumeStatus[0].Name).To(Equal("root"))
		Expect(info.ClaimName).To(Equal("claim"))
		Expect(info.VolumeMode).To(HaveValue(Equal(corev1.PersistentVolumeBlock)))
		Expect(info.Capacity[corev1.ResourceStorage]).To(Equal(resource.MustParse("2Gi")))
		Expect(info.FilesystemOverhead).To(HaveValue(BeEquivalentTo("0")))
		Expect(info.Preallocated).To(BeTrue())

		By("following the claim's new capacity")
		ReportAsAgent(vmi, func(status *v1.VirtualMachineInstanceStatus) {
			Running(status)
			status.VolumeStatus[0].Target = "vda"
		})
		w.events.Take()
		w.expectQuiet(vmi)
		ExpectExists(pvc)
		pvc.Status.Capacity = builder.MakePVC("claim").Bound("3Gi").Obj().Status.Capacity
		ExpectStatus(pvc)
		w.Step(vmi)
		volume := ExpectExists(vmi).Status.VolumeStatus[0]
		Expect(volume.PersistentVolumeClaimInfo.Capacity[corev1.ResourceStorage]).To(Equal(resource.MustParse("3Gi")))
		Expect(volume.Target).To(Equal("vda"))
		w.expectQuiet(vmi)
	})

	DescribeTable("reports why the Pod cannot be created, and retries", func(refusal error, message string) {
		vmi := w.create(builder.MakeVMI("vm"))
		w.Writes.Fail = func(request string) error {
			if request == "create Pod" {
				return refusal
			}
			return nil
		}
		_, err := w.Try(vmi)
		Expect(err).To(MatchError(ContainSubstring(message)))
		Expect(err).NotTo(MatchError(reconcile.TerminalError(nil)), "nothing else triggers a retry")
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"FailedCreate", message))
		Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning FailedCreate: ")))
		reported := vmi.ResourceVersion
		_, err = w.Try(vmi)
		Expect(err).To(HaveOccurred())
		Expect(ExpectExists(vmi).ResourceVersion).To(Equal(reported), "the same failure is written once")
		Expect(w.events.Take()).To(BeEmpty())

		w.Writes.Fail = nil
		w.Step(vmi)
		ExpectExists(PodOf(vmi))
		Expect(ExpectExists(vmi)).To(HaveNoCondition(v1.VirtualMachineInstanceSynchronized))
	},
		Entry("because of a quota", apierrors.NewForbidden(corev1.Resource("pods"), "x", errors.New("exceeded quota")), "exceeded quota"),
		Entry("because of a LimitRange",
			apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "x", field.ErrorList{
				field.Invalid(field.NewPath("spec", "containers"), "16Mi", "must be less than or equal to memory limit of 8Mi"),
			}), "must be less than or equal to memory limit"),
	)

	It("does not create a second Pod with a stale cache", func() {
		vmi := w.create(builder.MakeVMI("vm"))
		w.Step(vmi)
		w.events.Take()
		created := ExpectExists(PodOf(vmi)).UID
		w.Writes.Blind = func(_ client.ObjectKey, o client.Object) bool { _, pod := o.(*corev1.Pod); return pod }
		w.Step(vmi)
		Expect(w.events.Take()).To(BeEmpty())
		Expect(ExpectExists(PodOf(vmi)).UID).To(Equal(created))
		pods := &corev1.PodList{}
		Expect(K8sClient.List(ctx, pods, client.InNamespace(w.ns))).To(Succeed())
		Expect(pods.Items).To(HaveLen(1))
	})

	It("does not fail a VMI with a stale cache", func() {
		vmi := w.assigned(builder.MakeVMI("vm"))
		w.Writes.Blind = func(_ client.ObjectKey, o client.Object) bool { _, pod := o.(*corev1.Pod); return pod }
		w.expectQuiet(vmi)
	})

	It("does not assign a VMI twice with a stale cache", func() {
		vmi := w.create(builder.MakeVMI("vm"))
		w.Step(vmi)
		w.Writes.Stale = ExpectExists(vmi).DeepCopy()
		w.assign(vmi, "node-1")
		ReportAsAgent(vmi, Running)
		w.events.Take()

		result := w.Step(vmi) // the API server refuses its write
		Expect(result).NotTo(BeZero())
		Expect(w.events.Take()).To(BeEmpty())
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
		w.Writes.Stale = nil
		w.expectQuiet(vmi)
	})

	It("does not touch a Pod of its name that belongs to another object", func() {
		vmi := w.create(builder.MakeVMI("vm"))
		pod, err := podspec.Build(vmi, podspec.Config{LauncherImage: "x"})
		Expect(err).NotTo(HaveOccurred())
		pod.OwnerReferences, pod.Labels = nil, nil
		ExpectCreated(pod)
		_, err = w.Try(vmi)
		Expect(err).To(MatchError(ContainSubstring("belongs to another owner")))
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"FailedCreate", pod.Name))
	})

	It("does not touch a Pod that another client created to look like its own", func() {
		for name, forge := range map[string]func(*corev1.Pod, *metav1.OwnerReference){
			"kind":  func(_ *corev1.Pod, owner *metav1.OwnerReference) { owner.Kind, owner.APIVersion = "ConfigMap", "v1" },
			"group": func(_ *corev1.Pod, owner *metav1.OwnerReference) { owner.APIVersion = "team.example/v1" },
			"name":  func(_ *corev1.Pod, owner *metav1.OwnerReference) { owner.Name = "other" },
			"label": func(pod *corev1.Pod, _ *metav1.OwnerReference) {
				pod.OwnerReferences, pod.Labels = nil, map[string]string{v1.CreatedByLabel: pod.Labels[v1.CreatedByLabel]}
			},
		} {
			vmi := w.create(builder.MakeVMI("forged-" + name))
			pod, err := podspec.Build(vmi, podspec.Config{LauncherImage: "x"})
			Expect(err).NotTo(HaveOccurred())
			forge(pod, &pod.OwnerReferences[0])
			ExpectCreated(pod)
			SetLauncherStatus(vmi, "node-1", builder.MakePodStatus().Running())
			_, err = w.Try(vmi)
			Expect(err).To(MatchError(ContainSubstring("belongs to another owner")), name)
			Expect(ExpectExists(vmi).Status.NodeName).To(BeEmpty(), name)

			By("ending without it")
			Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
			w.Step(vmi)
			w.advance(ShownFor)
			w.Step(vmi)
			ExpectGone(vmi)
			Expect(ExpectExists(pod).DeletionTimestamp).To(BeNil(), name)
		}
	})

	It("creates no second Pod while it controls one of another name", func() {
		for name, change := range map[string]func(*corev1.Pod){
			"owned":  func(*corev1.Pod) {},
			"orphan": func(pod *corev1.Pod) { pod.OwnerReferences = nil },
		} {
			vmi := w.create(builder.MakeVMI("second-" + name))
			pod, err := podspec.Build(vmi, podspec.Config{LauncherImage: "x"})
			Expect(err).NotTo(HaveOccurred())
			pod.Name = "virt-launcher-" + vmi.Name + "-restored"
			change(pod)
			ExpectCreated(pod)
			_, err = w.Try(vmi)
			Expect(err).To(MatchError(ContainSubstring(pod.Name+" already is a launcher")), name)
			ExpectGone(PodOf(vmi))
			Expect(ExpectExists(vmi)).To(
				HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "FailedCreate", pod.Name))

			By("continuing when that has finished")
			pod.Status.Phase = corev1.PodFailed
			Expect(K8sClient.Status().Update(ctx, pod)).To(Succeed())
			w.Step(vmi)
			ExpectExists(PodOf(vmi))
			Expect(ExpectExists(vmi)).To(HaveNoCondition(v1.VirtualMachineInstanceSynchronized))
		}
	})

	It("waits, when it is deleted, for a Pod of any name that lost its owner reference", func() {
		vmi := w.create(builder.MakeVMI("vm"))
		pod, err := podspec.Build(vmi, podspec.Config{LauncherImage: "x"})
		Expect(err).NotTo(HaveOccurred())
		pod.Name, pod.OwnerReferences, pod.Spec.NodeName = "virt-launcher-vm-restored", nil, "node-1"
		ExpectCreated(pod)
		Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
		// Adopted before it is deleted: only changes of Pods with an owner trigger a reconciliation.
		w.ExpectOrder(vmi, "patch VirtualMachineInstance/status", "patch Pod", "delete Pod")
		Expect(ExpectExists(pod).DeletionTimestamp).NotTo(BeNil())
		Expect(metav1.IsControlledBy(pod, vmi)).To(BeTrue(),
			"without a controller reference its deletion triggers no reconciliation")
		w.ExpectSteady(vmi)
		ExpectExists(vmi)

		Expect(K8sClient.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(Succeed()) // as the kubelet would
		w.advance(ShownFor)
		w.Step(vmi)
		ExpectGone(vmi)
	})

	It("adopts its own Pod that lost its owner reference", func() {
		vmi := w.create(builder.MakeVMI("vm"))
		pod, err := podspec.Build(vmi, podspec.Config{LauncherImage: "x"})
		Expect(err).NotTo(HaveOccurred())
		pod.OwnerReferences = nil
		ExpectCreated(pod)
		w.Step(vmi)
		Expect(metav1.IsControlledBy(ExpectExists(pod), vmi)).To(BeTrue())
	})

	It("reconciles again after a conflict", func() {
		vmi := w.create(builder.MakeVMI("vm"))
		w.Step(vmi)
		SetLauncherStatus(vmi, "node-1", builder.MakePodStatus().Running())
		w.Writes.Fail = func(request string) error {
			if request == "patch VirtualMachineInstance/status" {
				return apierrors.NewConflict(v1.GroupVersion.WithResource("vmis").GroupResource(), "vm", ErrInjected)
			}
			return nil
		}
		result := w.Step(vmi)
		Expect(result).NotTo(BeZero())
		Expect(w.events.Take()).NotTo(ContainElement(ContainSubstring("SuccessfulHandOver")))
		w.Writes.Fail = nil
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Scheduled))
		Expect(w.events.Take()).To(ConsistOf(HavePrefix("Normal SuccessfulHandOver: ")))
	})

	It("closes the Pod's readiness gate while the guest is paused", func() {
		vmi := w.assigned(builder.MakeVMI("vm"))
		pause := func(status corev1.ConditionStatus) {
			ReportAsAgent(vmi, func(s *v1.VirtualMachineInstanceStatus) {
				vmistatus.SetCondition(s, v1.VirtualMachineInstanceCondition{
					Type: v1.VirtualMachineInstancePaused, Status: status,
				}, metav1.Now())
			})
		}
		gate := func() corev1.ConditionStatus {
			for _, c := range ExpectExists(PodOf(vmi)).Status.Conditions {
				if c.Type == v1.VirtualMachineUnpaused {
					return c.Status
				}
			}
			return ""
		}
		Expect(gate()).To(Equal(corev1.ConditionTrue))
		ReportAsAgent(vmi, Running)
		pause(corev1.ConditionTrue)
		w.Step(vmi)
		Expect(gate()).To(Equal(corev1.ConditionFalse))
		w.expectQuiet(vmi)
		pause(corev1.ConditionFalse)
		w.Step(vmi)
		Expect(gate()).To(Equal(corev1.ConditionTrue))
	})

	It("does not retry a VMI for which no Pod can be rendered, until it changes", func() {
		vmi := w.create(builder.MakeVMI("vm").Volume("answers", v1.VolumeSource{}))
		_, err := w.Try(vmi)
		Expect(err).To(MatchError(ContainSubstring("terminal error")))
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"FailedCreate", "volume answers"))
	})

	It("creates a Pod for volumes that have the names of the Pod's own volumes", func() {
		vmi := w.create(builder.MakeVMI("vm").ContainerDisk(launcherpod.SocketsVolume, "image").CloudInitSecret("init", "u",
			"n").
			ContainerDisk(launcherpod.UserDataVolume("init"), "image"))
		w.Step(vmi)
		ExpectExists(PodOf(vmi))
	})

	It("requests neither KVM nor vhost-net with emulation", func() {
		config := w.Config.(FixedConfig)
		config.UseEmulation = true
		w.Config = config
		vmi := w.create(builder.MakeVMI("vm").Masquerade())
		w.Step(vmi)
		for name := range ExpectExists(PodOf(vmi)).Spec.Containers[0].Resources.Limits {
			Expect(strings.HasSuffix(string(name), "kvm") || strings.HasSuffix(string(name), "vhost-net")).To(BeFalse())
		}
	})

	It("creates a Pod that Pod Security admits at level restricted", func() {
		ns := &corev1.Namespace{}
		Expect(K8sClient.Get(ctx, client.ObjectKey{Name: w.ns}, ns)).To(Succeed())
		metav1.SetMetaDataLabel(&ns.ObjectMeta, "pod-security.kubernetes.io/enforce", "restricted")
		Expect(K8sClient.Update(ctx, ns)).To(Succeed())
		vmi := w.create(builder.MakeVMI("vm").ContainerDisk("root", "image").CloudInitSecret("init", "u", "n").
			KernelBoot("kernel").Masquerade().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0)
		}))
		w.Step(vmi)
		ExpectExists(PodOf(vmi))

		// The level is enforced.
		host := w.create(builder.MakeVMI("host").HostDisk("root", "/data/disk.img"))
		_, err := w.Try(host)
		Expect(err).To(MatchError(ContainSubstring("violates PodSecurity")))
	})
})
