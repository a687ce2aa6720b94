// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/node"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachineInstance that waits for other objects", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("waits for a KubeVirt object, with the reason", func() {
		installed := w.Config
		config := clusterconfig.Default()
		config.Images.Launcher = "registry.example/virt-launcher:v1"
		w.Config = FixedConfig{Config: config}
		vmi := w.create(builder.MakeVMI("vm").PVC("root", "missing"))
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"KubeVirtNotFound", "no KubeVirt object in namespace kubevirt"))
		Expect(vmi).To(HaveCondition(v1.VirtualMachineInstancePodScheduled, corev1.ConditionFalse,
			corev1.PodReasonUnschedulable, "no KubeVirt object"))
		Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning KubeVirtNotFound: ")))
		w.expectQuiet(vmi)
		ExpectGone(PodOf(vmi))

		ExpectCreated(builder.MakePVC("missing").Namespace(w.ns).Obj())
		w.Config = installed
		w.Step(vmi)
		ExpectExists(PodOf(vmi))
		Expect(ExpectExists(vmi)).To(HaveNoCondition(v1.VirtualMachineInstanceSynchronized))
		Expect(vmi).To(HaveNoCondition(v1.VirtualMachineInstancePodScheduled))
	})

	It("creates its Pod with the limits that a quota of its namespace requires, also if the quota is created later",
		func() {
			vmi, other := w.create(builder.MakeVMI("vm").CPU(1, 2, 1)), w.create(builder.MakeVMI("other"))
			w.Step(other)
			Expect(ExpectExists(PodOf(other)).Spec.Containers[0].Resources.Limits).
				NotTo(Or(HaveKey(corev1.ResourceCPU), HaveKey(corev1.ResourceMemory)))

			// The API server refuses Pods according to the status of a quota, which the cluster's quota controller writes.
			hard := corev1.ResourceList{corev1.ResourceLimitsMemory: resource.MustParse("64Gi"),
				corev1.ResourceLimitsCPU: resource.MustParse("64")}
			quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "quota"},
				Spec: corev1.ResourceQuotaSpec{Hard: hard}}
			ExpectCreated(quota)
			quota.Status.Hard, quota.Status.Used = hard, corev1.ResourceList{
				corev1.ResourceLimitsMemory: resource.MustParse("0"), corev1.ResourceLimitsCPU: resource.MustParse("0"),
			}
			Expect(K8sClient.Status().Update(ctx, quota)).To(Succeed())
			Expect(virtualmachineinstance.QuotaChanges.Create(event.CreateEvent{Object: quota})).To(BeTrue())
			Expect(w.UnderQuota(ctx, quota)).To(ContainElement(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(vmi)}))

			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}
			label := fmt.Sprintf(`{"metadata":{"labels":{%q:"1.5"}}}`, v1.AutoMemoryLimitsRatioLabel)
			Expect(K8sClient.Patch(ctx, namespace, client.RawPatch(types.MergePatchType, []byte(label)))).To(Succeed())
			Eventually(func(g Gomega) { // until the API server's own cache has the quota
				_, err := w.Try(vmi)
				g.Expect(err).NotTo(HaveOccurred())
			}).Should(Succeed())
			pod := ExpectExists(PodOf(vmi))
			compute := pod.Spec.Containers[0].Resources
			Expect(compute.Limits).To(HaveKeyWithValue(corev1.ResourceCPU, resource.MustParse("2")))
			Expect(compute.Limits.Memory().Value()).To(Equal(compute.Requests.Memory().Value() * 3 / 2))
			for _, container := range pod.Spec.Containers {
				Expect(container.Resources.Limits).To(And(HaveKey(corev1.ResourceCPU), HaveKey(corev1.ResourceMemory)),
					container.Name)
			}
		})

	It("is enqueued when a quota's hard limits change, and not when its usage changes", func() {
		quota := func(version, hard, used string) *corev1.ResourceQuota {
			return &corev1.ResourceQuota{
				ObjectMeta: metav1.ObjectMeta{ResourceVersion: version},
				Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceLimitsMemory: resource.MustParse(
					hard)}},
				Status: corev1.ResourceQuotaStatus{Used: corev1.ResourceList{corev1.ResourceLimitsMemory: resource.MustParse(
					used)}},
			}
		}
		for want, after := range map[bool]*corev1.ResourceQuota{true: quota("2", "2Gi", "0"),
			false: quota("3", "1Gi", "1Gi")} {
			Expect(virtualmachineinstance.QuotaChanges.Update(
				event.UpdateEvent{ObjectOld: quota("1", "1Gi", "0"), ObjectNew: after})).To(Equal(want))
		}
	})

	It("creates its Pod with a CPU limit if the configuration selects its namespace", func() {
		config := w.Config.Current()
		for name, expected := range map[string]bool{w.ns: true, "another": false} {
			config.AutoCPULimitNamespaces = labels.SelectorFromSet(labels.Set{corev1.LabelMetadataName: name})
			w.Config = FixedConfig{Config: config}
			vmi := w.create(builder.MakeVMI("in-" + strconv.FormatBool(expected)))
			w.Step(vmi)
			_, limited := ExpectExists(PodOf(vmi)).Spec.Containers[0].Resources.Limits[corev1.ResourceCPU]
			Expect(limited).To(Equal(expected))
		}
	})

	It("creates no Pod with fields that are not implemented, and reports them", func() {
		vmi := w.create(builder.MakeVMI("vm").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.GPUs = []v1.GPU{{Name: "gpu", DeviceName: "vendor.example/gpu"}}
		}))
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"FieldNotImplemented", "spec.domain.devices.gpus: Forbidden"))
		Expect(vmi.Status.Phase).To(Equal(v1.Pending))
		Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning FieldNotImplemented: ")))
		w.expectQuiet(vmi)
		ExpectGone(PodOf(vmi))
	})

	Context("with a network of Multus", func() {
		attached := func() *v1.VirtualMachineInstance {
			GinkgoHelper()
			return w.create(builder.MakeVMI("vm").Multus("blue", "blue-net"))
		}
		readsNetworks := func() {
			config := w.Config.Current()
			config.FeatureGates = clusterconfig.NewFeatureGates(nil, []string{"ExternalNetResourceInjection"})
			w.Config = FixedConfig{Config: config}
		}

		It("creates its Pod without the network's resources by default", func() {
			vmi := attached()
			w.Step(vmi)
			Expect(ExpectExists(PodOf(vmi)).Annotations).To(
				HaveKeyWithValue("k8s.v1.cni.cncf.io/networks", ContainSubstring("blue-net")))
		})

		It("reports that Multus or the NetworkAttachmentDefinition is missing, and creates its Pod with the network's resource", func() {
			readsNetworks()
			vmi := attached()
			result := w.Step(vmi)
			Expect(result).NotTo(BeZero())
			Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
				"NetworkAttachmentDefinitionNotFound", "the cluster has no such kind: install Multus"))
			Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning NetworkAttachmentDefinitionNotFound: ")))
			w.expectQuiet(vmi)
			ExpectGone(PodOf(vmi))

			installMultus()
			w.Step(vmi)
			Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
				"NetworkAttachmentDefinitionNotFound",
				"NetworkAttachmentDefinition "+w.ns+"/blue-net of network blue does not exist"))
			w.events.Take()

			ExpectCreated(attachmentDefinition(w.ns, "blue-net", "example.com/blue"))
			w.Step(vmi)
			Expect(ExpectExists(vmi)).To(HaveNoCondition(v1.VirtualMachineInstanceSynchronized))
			resources := ExpectExists(PodOf(vmi)).Spec.Containers[0].Resources
			Expect(resources.Requests).To(HaveKeyWithValue(corev1.ResourceName("example.com/blue"), resource.MustParse("1")))
			Expect(resources.Limits).To(HaveKeyWithValue(corev1.ResourceName("example.com/blue"), resource.MustParse("1")))
		})
	})

	It("creates no Pod with impossible values, and reports them", func() {
		vmi := w.create(builder.MakeVMI("vm").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Watchdog = &v1.Watchdog{Name: "dog", WatchdogDevice: v1.WatchdogDevice{
				I6300ESB: &v1.I6300ESBWatchdog{Action: "bark"}}}
		}))
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"ImpossibleSpec", "spec.domain.devices.watchdog.i6300esb.action: Invalid value"))
		Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning ImpossibleSpec: ")))
		w.expectQuiet(vmi)
		ExpectGone(PodOf(vmi))
	})

	It("creates no Pod with an annotation that is not implemented", func() {
		vmi := w.create(builder.MakeVMI("vm").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Annotations = map[string]string{v1.IgnitionAnnotation: "{}"}
		}))
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
			"FieldNotImplemented", "metadata.annotations[kubevirt.io/ignitiondata]: Forbidden"))
		w.events.Take()
		ExpectGone(PodOf(vmi))
	})

	It("assigns a unique VSOCK CID to every guest", func() {
		guest := func(name string) *builder.VMI {
			return builder.MakeVMI(name).With(
				func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Devices.AutoattachVSOCK = ptr.To(true) })
		}
		w.Client = indexed{w.Client}
		first := w.assigned(guest("first"))
		Expect(first.Status.VSOCKCID).To(HaveValue(BeNumerically(">=", 3)))
		second := w.create(guest("second"))
		w.Step(second)
		SetLauncherStatus(second, "node-1", builder.MakePodStatus().Running())
		// Another VMI already has the CID that this one would get.
		first = ExpectExists(first)
		first.Status.VSOCKCID = ptr.To(virtualmachineinstance.CIDOf(second.UID))
		Expect(K8sClient.Status().Update(ctx, first)).To(Succeed())
		w.Step(second)
		Expect(ExpectExists(second).Status.VSOCKCID).To(HaveValue(Equal(*first.Status.VSOCKCID + 1)))
	})

	It("does not need the KubeVirt object once its Pod exists", func() {
		vmi := w.create(builder.MakeVMI("vm"))
		w.Step(vmi)
		w.events.Take()
		config := w.Config.Current()
		config.KubeVirt = ""
		w.Config = FixedConfig{Config: config}
		w.expectQuiet(vmi)
	})

	Context("when the kubelet cannot create the Pod's sandbox", func() {
		const noSecret = `MountVolume.SetUp failed for volume "init-udata" : secret "nowhere" not found`
		creating := func() *builder.PodStatus { return builder.MakePodStatus().Waiting("ContainerCreating", "") }
		preparing := func() *v1.VirtualMachineInstance {
			GinkgoHelper()
			vmi := w.create(builder.MakeVMI("vm").CloudInitSecret("init", "nowhere", ""))
			w.Step(vmi)
			SetLauncherStatus(vmi, "node-1", creating())
			w.events.Take()
			return vmi
		}

		It("copies the kubelet's message, and removes it when the sandbox exists", func() {
			vmi := preparing()
			CreatePodEvent(vmi, w.clock.Now(), "FailedMount", noSecret)
			Expect(w.ExpectSteady(vmi).RequeueAfter).To(BeNumerically(">", 0), "the next attempt may succeed")
			w.advance(10 * time.Second)
			w.Step(vmi)
			Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse,
				"FailedMount", `secret "nowhere" not found`))
			Expect(vmi).To(HaveNoCondition(v1.VirtualMachineInstancePodScheduled))
			Expect(vmi.Status.Phase).To(Equal(v1.Scheduling))
			Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning FailedMount: ")))
			w.expectQuiet(vmi)

			status := creating().Obj()
			status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
			pod := ExpectExists(PodOf(vmi))
			pod.Status = status
			Expect(K8sClient.Status().Update(ctx, pod)).To(Succeed())
			w.Step(vmi)
			Expect(ExpectExists(vmi)).To(HaveNoCondition(v1.VirtualMachineInstanceSynchronized))
			w.expectQuiet(vmi)

			w.assign(vmi, "")
		})

		It("writes the message once for attempts within some minutes, and at once for another reason", func() {
			vmi := preparing()
			w.advance(10 * time.Second)
			shown := func() string {
				GinkgoHelper()
				return vmistatus.FindCondition(&ExpectExists(vmi).Status, v1.VirtualMachineInstanceSynchronized).Message
			}
			CreatePodEvent(vmi, w.clock.Now(), "FailedCreatePodSandBox", `failed to setup network for sandbox "1a"`)
			w.Step(vmi)
			w.events.Take()
			w.advance(time.Minute)
			CreatePodEvent(vmi, w.clock.Now(), "FailedCreatePodSandBox", `failed to setup network for sandbox "2b"`)
			w.expectQuiet(vmi)
			Expect(shown()).To(ContainSubstring("1a"))
			w.advance(5 * time.Minute)
			CreatePodEvent(vmi, w.clock.Now(), "FailedCreatePodSandBox", `failed to setup network for sandbox "3c"`)
			w.Step(vmi)
			Expect(shown()).To(ContainSubstring("3c"))
			w.events.Take()

			w.advance(time.Second)
			CreatePodEvent(vmi, w.clock.Now(), "FailedMount", noSecret)
			w.Step(vmi)
			Expect(shown()).To(ContainSubstring("nowhere"))
			Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning FailedMount: ")))
			w.expectQuiet(vmi)
		})

		It("ignores other events", func() {
			vmi := preparing()
			CreatePodEvent(vmi, w.clock.Now(), "Unhealthy", "unrelated")
			pod := ExpectExists(PodOf(vmi))
			ExpectCreated(&corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Namespace: w.ns, Name: "earlier"},
				InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: w.ns, Name: pod.Name, UID: "earlier"},
				Type:           corev1.EventTypeWarning, Reason: "FailedMount", Message: noSecret,
			})
			w.advance(10 * time.Second)
			w.Step(vmi)
			Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Scheduling), "it starts slowly")
			Expect(vmi).To(HaveNoCondition(v1.VirtualMachineInstanceSynchronized))
		})
	})

	Context("when its node's agent does not respond", func() {
		var host *corev1.Node
		BeforeEach(func() {
			host = &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}}
			Expect(K8sClient.Create(ctx, host)).To(Succeed())
		})
		heartbeat := func(schedulable string, ago time.Duration) {
			GinkgoHelper()
			metav1.SetMetaDataLabel(&host.ObjectMeta, v1.NodeSchedulable, schedulable)
			metav1.SetMetaDataAnnotation(&host.ObjectMeta, node.HeartbeatAnnotation,
				w.clock.Now().Add(-ago).Format(time.RFC3339))
			Expect(K8sClient.Update(ctx, host)).To(Succeed())
		}

		It("reports it while it lasts, and does not change the phase", func() {
			vmi := w.assignedTo(host.Name, builder.MakeVMI("vm"))
			ReportAsAgent(vmi, Running)
			heartbeat("true", time.Hour)
			w.expectQuiet(vmi)
			heartbeat("false", node.Timeout-time.Minute)
			Expect(w.ExpectSteady(vmi).RequeueAfter).To(BeNumerically("~", time.Minute, time.Second))

			heartbeat("false", node.Timeout)
			w.Step(vmi)
			Expect(ExpectExists(vmi).Status.Reason).To(Equal(node.ReasonNodeUnresponsive))
			Expect(vmi.Status.Phase).To(Equal(v1.Running))
			Expect(w.events.Take()).To(
				ConsistOf(HavePrefix("Warning NodeUnresponsive: Node " + host.Name + " does not respond")))
			w.expectQuiet(vmi)

			heartbeat("true", 0)
			w.Step(vmi)
			Expect(ExpectExists(vmi).Status.Reason).To(BeEmpty())
			w.expectQuiet(vmi)
		})

		It("fails with that reason when its Pod is gone as well", func() {
			vmi := w.assignedTo(host.Name, builder.MakeVMI("vm"))
			ReportAsAgent(vmi, Running)
			heartbeat("false", node.Timeout)
			Expect(K8sClient.Delete(ctx, PodOf(vmi), client.GracePeriodSeconds(0))).To(Succeed())
			w.Step(vmi)
			Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Failed))
			Expect(vmi.Status.Reason).To(Equal(node.ReasonNodeUnresponsive))
			Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning Stopped: ")))
			w.expectQuiet(vmi)
		})
	})
})

// indexed lists VMIs by their VSOCK CID, as the manager's cache does: the API server has no such index.
type indexed struct{ client.Client }

// List implements client.Reader.
func (c indexed) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	requested := (&client.ListOptions{}).ApplyOptions(options)
	vmis, ok := list.(*v1.VirtualMachineInstanceList)
	if !ok || requested.FieldSelector == nil {
		return c.Client.List(ctx, list, options...)
	}
	cid, ok := requested.FieldSelector.RequiresExactMatch(virtualmachineinstance.VSOCKIndex)
	if !ok {
		return c.Client.List(ctx, list, options...)
	}
	if err := c.Client.List(ctx, vmis); err != nil {
		return err
	}
	vmis.Items = slices.DeleteFunc(vmis.Items, func(vmi v1.VirtualMachineInstance) bool {
		return !slices.Contains(virtualmachineinstance.VSOCKAddress(&vmi), cid)
	})
	return nil
}
