// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
)

var _ = Describe("an eviction", func() {
	const node = "evicted-node"
	ctx := context.Background()

	// launch creates a VMI whose guest runs in a launcher Pod on a node.
	launch := func(name string, strategy *v1.EvictionStrategy, migratable bool) (*v1.VirtualMachineInstance, *corev1.Pod) {
		GinkgoHelper()
		vmi := newVMI(name, func(spec *v1.VirtualMachineInstanceSpec) { spec.EvictionStrategy = strategy })
		Expect(k8s.Create(ctx, vmi)).To(Succeed())
		DeferCleanup(expectGone, ctx, vmi)
		pod := launcherPod(vmi, podspec.PodName(vmi), node)
		Expect(k8s.Create(ctx, pod)).To(Succeed())
		DeferCleanup(expectGone, ctx, pod)
		vmi.Status.Phase, vmi.Status.NodeName = v1.Running, node
		vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{
			Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionFalse,
			Reason: "DisksNotLiveMigratable", Message: "cannot migrate VMI: a reason in words",
		}}
		if migratable {
			vmi.Status.Conditions[0] = v1.VirtualMachineInstanceCondition{Type: v1.VirtualMachineInstanceIsMigratable,
				Status: corev1.ConditionTrue}
		}
		Expect(k8s.Status().Update(ctx, vmi)).To(Succeed())
		return vmi, pod
	}
	evict := func(pod *corev1.Pod, options ...client.SubResourceCreateOption) error {
		return k8s.SubResource("eviction").Create(ctx, pod.DeepCopy(), &policyv1.Eviction{}, options...)
	}
	get := func(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
		GinkgoHelper()
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(vmi), vmi)).To(Succeed())
		return vmi
	}
	expectDenied := func(err error, message string) {
		GinkgoHelper()
		Expect(apierrors.IsTooManyRequests(err)).To(BeTrue(), "want 429, got: %v", err)
		Expect(err).To(MatchError(`admission webhook "virt-launcher-eviction-interceptor.kubevirt.io" denied the request: ` + message))
		_, wait := apierrors.SuggestsClientDelay(err)
		Expect(wait).To(BeFalse(), "clients would try again in silence")
	}
	expectStays := func(pod *corev1.Pod) *corev1.Pod {
		GinkgoHelper()
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		Expect(pod.DeletionTimestamp).To(BeNil())
		return pod
	}
	expectLeaves := func(pod *corev1.Pod) {
		GinkgoHelper()
		err := k8s.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		Expect(err != nil && apierrors.IsNotFound(err) || pod.DeletionTimestamp != nil).To(BeTrue(), "it is there: %v", err)
	}
	expectNode := func(unschedulable bool) {
		GinkgoHelper()
		host := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.NodeSpec{Unschedulable: unschedulable}}
		Expect(k8s.Create(ctx, host)).To(Succeed())
		DeferCleanup(expectGone, ctx, host)
	}

	It("marks the VMI of a migratable guest, with KubeVirt's code and message", func() {
		vmi, pod := launch("moves", ptr.To(v1.EvictionStrategyLiveMigrate), true)
		expectDenied(evict(pod), `Eviction triggered evacuation of VMI "default/moves"`)
		Expect(get(vmi).Status.EvacuationNodeName).To(Equal(node))
		since := eviction.MarkedAt(vmi)
		Expect(since.IsZero()).To(BeFalse())
		version := vmi.ResourceVersion

		for range 3 {
			expectDenied(evict(pod), `Evacuation in progress: Eviction triggered evacuation of VMI "default/moves"`)
		}
		Expect(get(vmi).ResourceVersion).To(Equal(version), "repeated evictions change nothing")
		Expect(expectStays(pod).Annotations).To(HaveKeyWithValue(eviction.InProgressAnnotation, "kubevirt"))
		Expect(eviction.ByDrain(&pod.ObjectMeta)).To(BeFalse(), "its node accepts Pods, or that is not known")
	})

	DescribeTable("keeps an attachment Pod as long as its launcher runs, with KubeVirt's message", func(change func(*corev1.Pod)) {
		vmi, launcher := launch("plugged", nil, false)
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}}
		volume := &v1.Volume{Name: "data"}
		launcher.Spec.NodeName = node
		pod := podspec.BuildAttachment(vmi, podspec.Config{LauncherImage: "launcher"},
			podspec.Attachment{Volume: volume, Claim: claim, Launcher: launcher})
		change(pod)
		Expect(k8s.Create(ctx, pod)).To(Succeed())
		DeferCleanup(expectGone, ctx, pod)
		expectDenied(evict(pod),
			"cannot evict hotplug pod: "+pod.Name+" associated with running vmi: plugged in namespace default")
		expectStays(pod)

		launcher.Status.Phase = corev1.PodSucceeded
		Expect(k8s.Status().Update(ctx, launcher)).To(Succeed())
		Expect(evict(pod)).To(Succeed())
		expectLeaves(pod)
	},
		Entry("of this installation", func(*corev1.Pod) {}),
		Entry("of KubeVirt", func(pod *corev1.Pod) { pod.Name, pod.Annotations = "hp-volume-x7k2p", nil }))

	// post sends an admission review of the eviction of a Pod to the webhook, as any Pod can, or as the API server does.
	post := func(path, pod string) (*http.Response, string) {
		GinkgoHelper()
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		DeferCleanup(transport.CloseIdleConnections)
		response, err := (&http.Client{Transport: transport}).Post("https://"+webhookAddress+path, "application/json",
			strings.NewReader(
				`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1","name":"`+pod+`","namespace":"default",
				"operation":"CREATE","object":{"apiVersion":"policy/v1","kind":"Eviction"}}}`))
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		Expect(err).NotTo(HaveOccurred())
		return response, string(body)
	}

	It("closes the connection after the response, so that no later request uses it", func() {
		response, body := post(paths.Path(evictionHook), "virt-launcher-gone")
		Expect(body).To(ContainSubstring(`"allowed":true`))
		Expect(response.Close).To(BeTrue(), "the connection is kept")
	})

	It("that the API server did not send has no response but 404, and no effect", func() {
		vmi, pod := launch("forged", ptr.To(v1.EvictionStrategyLiveMigrate), true)
		others := strings.TrimSuffix(paths.Path("virtualmachine-validator.kubevirt.io"),
			"virtualmachine-validator.kubevirt.io")
		for _, path := range []string{"/", "/" + evictionHook, "/launcher-eviction-validate",
			"/00112233445566778899aabbccddeeff/" + evictionHook, others + evictionHook} {
			response, body := post(path, pod.Name)
			Expect(response.StatusCode).To(Equal(http.StatusNotFound), path)
			Expect(body).To(Equal("Not Found\n"), path)
			Expect(response.Close).To(BeTrue(), path)
		}
		Expect(get(vmi).Status.EvacuationNodeName).To(BeEmpty())
		Expect(expectStays(pod).Annotations).NotTo(HaveKey(eviction.InProgressAnnotation))

		_, body := post(paths.Path(evictionHook), pod.Name)
		Expect(body).To(ContainSubstring("Eviction triggered evacuation of VMI"))
		Expect(get(vmi).Status.EvacuationNodeName).To(Equal(node))
	})

	It("by the descheduler is recorded on the VMI until another client evicts it", func() {
		vmi, pod := launch("descheduled", ptr.To(v1.EvictionStrategyLiveMigrate), true)
		byDescheduler := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			"requested-by": "sigs.k8s.io/descheduler", "reason": "triggered by profile/LowNodeUtilization: ",
		}}}
		const denied = `Eviction triggered evacuation of VMI "default/descheduled"`
		expectDenied(k8s.SubResource("eviction").Create(ctx, pod.DeepCopy(), byDescheduler.DeepCopy(), client.DryRunAll),
			denied)
		Expect(get(vmi).Annotations).NotTo(HaveKey(v1.EvictionSourceAnnotation))
		expectDenied(k8s.SubResource("eviction").Create(ctx, pod.DeepCopy(), byDescheduler.DeepCopy()), denied)
		Expect(get(vmi).Annotations).To(HaveKeyWithValue(v1.EvictionSourceAnnotation, "descheduler"))
		Expect(eviction.IsMarked(vmi)).To(BeTrue())

		vmi.Status.EvacuationNodeName = ""
		Expect(k8s.Status().Update(ctx, vmi)).To(Succeed())
		expectDenied(evict(pod), denied)
		Expect(get(vmi).Annotations).NotTo(HaveKey(v1.EvictionSourceAnnotation))
		Expect(eviction.IsMarked(vmi)).To(BeTrue())
	})

	It("records that the node is being drained", func() {
		expectNode(true)
		_, pod := launch("drained", ptr.To(v1.EvictionStrategyLiveMigrate), true)
		expectDenied(evict(pod), `Eviction triggered evacuation of VMI "default/drained"`)
		Expect(eviction.ByDrain(&expectStays(pod).ObjectMeta)).To(BeTrue())
	})

	It("has the same response in a dry run, by the request or by the Eviction, and changes nothing", func() {
		vmi, pod := launch("dry", ptr.To(v1.EvictionStrategyLiveMigrate), true)
		expectDenied(evict(pod, client.DryRunAll), `Eviction triggered evacuation of VMI "default/dry"`)
		expectDenied(k8s.SubResource("eviction").Create(ctx, pod.DeepCopy(), &policyv1.Eviction{
			DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
		}), `Eviction triggered evacuation of VMI "default/dry"`)
		Expect(get(vmi).Status.EvacuationNodeName).To(BeEmpty())
		Expect(expectStays(pod).Annotations).NotTo(HaveKey(eviction.InProgressAnnotation))
	})

	It("is denied with the reason for a guest that must be migrated and cannot be", func() {
		vmi, pod := launch("stuck", ptr.To(v1.EvictionStrategyLiveMigrate), false)
		expectDenied(evict(pod), "VMI stuck is configured with an eviction strategy but is not live-migratable: "+
			"cannot migrate VMI: a reason in words. Nothing is done until it can migrate or is stopped")
		Expect(get(vmi).Status.EvacuationNodeName).To(BeEmpty())
		expectStays(pod)
	})

	It("is allowed for a guest that cannot be migrated, with the strategy LiveMigrateIfPossible", func() {
		vmi, pod := launch("tried", ptr.To(v1.EvictionStrategyLiveMigrateIfPossible), false)
		Expect(evict(pod)).To(Succeed())
		expectLeaves(pod)
		Expect(get(vmi).Status.EvacuationNodeName).To(BeEmpty())
	})

	It("marks the VMI of a guest with the strategy External", func() {
		vmi, pod := launch("external", ptr.To(v1.EvictionStrategyExternal), false)
		expectDenied(evict(pod), `Eviction triggered evacuation of VMI "default/external"`)
		Expect(get(vmi).Status.EvacuationNodeName).To(Equal(node))
		expectStays(pod)
	})

	It("follows the cluster's strategy, which by default allows the eviction", func() {
		_, pod := launch("as-the-cluster", nil, true)
		Expect(evict(pod)).To(Succeed())
		expectLeaves(pod)

		Expect(suiteConfig.Set(&v1.KubeVirt{Spec: v1.KubeVirtSpec{Configuration: v1.KubeVirtConfiguration{
			EvictionStrategy: ptr.To(v1.EvictionStrategyLiveMigrate),
		}}})).To(Succeed())
		DeferCleanup(func() { Expect(suiteConfig.Set(&v1.KubeVirt{})).To(Succeed()) })
		_, pod = launch("as-the-cluster-now", nil, true)
		expectDenied(evict(pod), `Eviction triggered evacuation of VMI "default/as-the-cluster-now"`)
	})

	It("of a target Pod is denied until the migration has finished", func() {
		vmi, _ := launch("arriving", ptr.To(v1.EvictionStrategyLiveMigrate), true)
		target := launcherPod(vmi, podspec.TargetPodName(vmi, "migration"), "another-node")
		Expect(k8s.Create(ctx, target)).To(Succeed())
		DeferCleanup(expectGone, ctx, target)
		expectDenied(evict(target), "Eviction request for target Pod")
		Expect(get(vmi).Status.EvacuationNodeName).To(BeEmpty())
	})

	It("marks a VMI once and for one node if there are concurrent evictions and writes", func() {
		vmi, pod := launch("busy", ptr.To(v1.EvictionStrategyLiveMigrate), true)
		stop, writing := make(chan struct{}), sync.WaitGroup{}
		writing.Go(func() {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"machine":{"type":"q35"}}}`))
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					_ = controller.Status().Patch(ctx, vmi.DeepCopy(), patch)
				}
			}
		})
		results := make([]error, 5)
		evictions := sync.WaitGroup{}
		for i := range results {
			evictions.Go(func() { results[i] = evict(pod) })
		}
		evictions.Wait()
		close(stop)
		writing.Wait()
		for _, err := range results {
			Expect(apierrors.IsTooManyRequests(err)).To(BeTrue(), "%v", err)
		}
		Expect(get(vmi).Status.EvacuationNodeName).To(Equal(node))
		expectStays(pod)
	})

	It("of another Pod is allowed, without a call of the webhook unless its name has the prefix of launcher Pods", func() {
		vmi, _ := launch("bystander", ptr.To(v1.EvictionStrategyLiveMigrate), true)
		foreign := launcherPod(vmi, "bystander", node) // the labels of a launcher Pod, and none of its names
		named := launcherPod(vmi, "virt-launcher-of-somebody", node)
		named.Labels, named.Annotations = nil, nil
		for _, pod := range []*corev1.Pod{foreign, named} {
			Expect(k8s.Create(ctx, pod)).To(Succeed())
			DeferCleanup(expectGone, ctx, pod)
			Expect(evict(pod)).To(Succeed())
			expectLeaves(pod)
		}
		Expect(get(vmi).Status.EvacuationNodeName).To(BeEmpty())
	})
})

// launcherPod returns a launcher Pod with the fields that an eviction reads.
func launcherPod(vmi *v1.VirtualMachineInstance, name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, Name: name, Annotations: map[string]string{v1.DomainAnnotation: vmi.Name},
			Labels: map[string]string{v1.AppLabel: launcherpod.AppLabelValue, v1.CreatedByLabel: string(vmi.UID)},
		},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers: []corev1.Container{{Name: "compute", Image: "example.org/launcher:1"}},
		},
	}
}
