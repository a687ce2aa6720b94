// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	poolapi "github.com/vireo-project/vireo/api/pool"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// fleet is the pool of testdata/pool.yaml.
type fleet struct{ namespace string }

func (f fleet) instances(ctx context.Context) []v1.VirtualMachineInstance {
	GinkgoHelper()
	list := &v1.VirtualMachineInstanceList{}
	Expect(k8s.List(ctx, list, client.InNamespace(f.namespace))).To(Succeed())
	return list.Items
}

// claim returns the claim with the disk of a VM of the pool.
func (f fleet) claim(ctx context.Context, number int) *corev1.PersistentVolumeClaim {
	GinkgoHelper()
	claim := &corev1.PersistentVolumeClaim{}
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: f.namespace, Name: "data-" + strconv.Itoa(number)}, claim)).
		To(Succeed())
	return claim
}

// expectReady waits until the pool has n VMs, and all of them are ready.
func (f fleet) expectReady(ctx context.Context, n int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		pool := &poolv1.VirtualMachinePool{}
		g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: f.namespace, Name: "web"}, pool)).To(Succeed())
		g.Expect(pool.Spec.Replicas).To(HaveValue(BeEquivalentTo(n)))
		g.Expect(pool.Status).To(
			And(HaveField("Replicas", BeEquivalentTo(n)), HaveField("ReadyReplicas", BeEquivalentTo(n)),
				HaveField("Conditions", BeEmpty())))
		list := &v1.VirtualMachineList{}
		g.Expect(k8s.List(ctx, list, client.InNamespace(f.namespace))).To(Succeed())
		g.Expect(list.Items).To(HaveLen(n))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}

// ready reports whether a guest runs and is not being stopped.
func ready(instance *v1.VirtualMachineInstance) bool {
	ready := condition(instance, v1.VirtualMachineInstanceReady)
	return instance.DeletionTimestamp == nil && instance.Status.Phase == v1.Running && ready != nil &&
		ready.Status == corev1.ConditionTrue
}

// expectUpdated waits until all guests have another amount of memory, and checks that no two are restarted at a time.
func (f fleet) expectUpdated(ctx context.Context, memory string) {
	GinkgoHelper()
	n := len(f.instances(ctx))
	Eventually(func(g Gomega) {
		up, updated := 0, 0
		for _, instance := range f.instances(ctx) {
			if ready(&instance) {
				up++
				if instance.Spec.Domain.Memory.Guest.String() == memory {
					updated++
				}
			}
		}
		if up < n-1 {
			StopTrying("more guests are down than maxUnavailable allows").Attach("ready", up).Now()
		}
		g.Expect(updated).To(Equal(n))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(200 * time.Millisecond).Should(Succeed())
}

// expectReplaced makes each start of a VM fail until the VM was replaced.
func (f fleet) expectReplaced(ctx context.Context, name string) {
	GinkgoHelper()
	before := readVM(ctx, f.namespace, name)
	Eventually(func(g Gomega) types.UID {
		vm := &v1.VirtualMachine{}
		err := k8s.Get(ctx, client.ObjectKeyFromObject(before), vm)
		if apierrors.IsNotFound(err) {
			return before.UID
		}
		g.Expect(err).NotTo(HaveOccurred())
		// A VMI whose Pod is deleted while the VMI is Pending gets another Pod, and does not fail.
		if instance := vmi(ctx, f.namespace, name); vm.UID == before.UID && instance != nil &&
			instance.Status.Phase != v1.Pending {
			g.Expect(client.IgnoreNotFound(k8s.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(f.namespace),
				client.MatchingLabels{v1.CreatedByLabel: string(instance.UID)}, client.GracePeriodSeconds(0)))).To(Succeed())
		}
		return vm.UID
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(100 * time.Millisecond).ShouldNot(Equal(before.UID))
}

var _ = Describe("A pool", extended(2), func() {
	It("is scaled to 6 VMs and back by its autoscaler, keeps disks, is updated guest by guest, and replaces a VM in a crash loop", func(ctx context.Context) {
		f := fleet{newNamespace(ctx)}
		startImporter(ctx, f.namespace)
		kubectl(ctx, testdata("pool.yaml"), "apply", "-n", f.namespace, "-f", "-")
		load := serveMetrics(ctx, f.namespace, "metrics.k8s.io")
		f.expectReady(ctx, 1)

		By("scaling out")
		load(6)
		scaler := autoscaler(f.namespace, autoscalingv2.CrossVersionObjectReference{
			APIVersion: poolv1.GroupVersion.String(), Kind: poolapi.VirtualMachinePoolKind, Name: "web",
		}, podLoad)
		create(ctx, scaler)
		f.expectReady(ctx, 6)
		kept := f.claim(ctx, 5)

		By("scaling in")
		load(4)
		f.expectReady(ctx, 4)
		Expect(f.claim(ctx, 5).UID).To(Equal(kept.UID))
		Expect(k8s.Delete(ctx, scaler)).To(Succeed())
		expectGone(ctx, scaler)

		By("scaling out again, to the disks that were kept")
		kubectl(ctx, "", "scale", "-n", f.namespace, "vmpool", "web", "--replicas=6")
		f.expectReady(ctx, 6)
		Expect(f.claim(ctx, 5).UID).To(Equal(kept.UID))
		dv := &cdi.DataVolume{}
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(kept), dv)).To(Succeed())
		Expect(dv.OwnerReferences).To(ContainElement(HaveField("UID", readVM(ctx, f.namespace, "web-5").UID)))

		By("updating it")
		kubectl(ctx, "", "patch", "-n", f.namespace, "vmpool", "web", "--type=json", "--patch",
			`[{"op":"replace","path":"/spec/virtualMachineTemplate/spec/template/spec/domain/memory/guest","value":"80Mi"}]`)
		f.expectUpdated(ctx, "80Mi")

		By("making a VM fail to start")
		failing := f.claim(ctx, 2)
		killed := vmi(ctx, f.namespace, "web-2")
		f.expectReplaced(ctx, "web-2")
		// The replacement has a VMI of the same name.
		Eventually(func() bool {
			now := vmi(ctx, f.namespace, killed.Name)
			return now == nil || now.UID != killed.UID
		}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
			Should(BeTrue(), "the VMI of the replaced VM stays")
		f.expectReady(ctx, 6)
		Expect(f.claim(ctx, 2).UID).NotTo(Equal(failing.UID), "a replacement gets a new disk")
	}, specTimeout(12*time.Minute))
})
