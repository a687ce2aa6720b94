// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Versions with which the present images are tagged on all nodes. The agent of the broken version is an image without
// that program. The version with which hack/test-upgrade.sh tags the present images is older than the broken one.
const (
	newerVersion  = "v900.0.1"
	olderVersion  = "v900.0.0"
	brokenVersion = "v900.0.2"
)

// rolloutTimeout limits the replacement of all components, and another one of the agents if their manifests have
// changed.
const rolloutTimeout = 7 * time.Minute

// The images of all versions are the same, so that the cluster is unchanged afterwards. Their tags differ, so that all
// Pods are replaced.
var _ = Describe("An update by the KubeVirt object", Serial, extended(3), func() {
	It("replaces all components without touching a guest, stops at a broken agent, and is taken back",
		func(ctx context.Context) {
			needLocalNodes()
			tagVersions(ctx, newerVersion, olderVersion, brokenVersion)
			namespace := newNamespace(ctx)
			create(ctx, makeVM(namespace, "guest"))
			guest := expectReady(ctx, namespace, "guest")
			launcher := expectOneLauncher(ctx, guest)
			DeferCleanup(func(ctx context.Context) {
				setVersion(ctx, "")
				expectRolledOut(ctx, imageTag)
			}, nodeTimeout(rolloutTimeout+time.Minute))
			calls := callRepeatedly(ctx, namespace)

			for _, step := range []struct{ what, version string }{
				{"to a newer version", newerVersion}, {"back to an older one", olderVersion},
			} {
				By("updating " + step.what)
				start := time.Now()
				setVersion(ctx, step.version)
				expectRolledOut(ctx, step.version)
				reportTime("all components were replaced, "+step.what, start)
			}

			By("updating to a version whose agent does not start")
			setVersion(ctx, brokenVersion)
			expectStopsAtAgent(ctx, olderVersion)

			By("taking it back")
			setVersion(ctx, olderVersion)
			expectRolledOut(ctx, olderVersion)

			expectSameLauncher(ctx, guest, launcher.UID)
			Expect(calls()).To(BeEmpty(), "a call and its retry a second later failed")
		}, specTimeout(20*time.Minute))
})

// expectSameLauncher checks that a guest runs in the same Pod as before, and that nothing in it was restarted.
func expectSameLauncher(ctx context.Context, guest *v1.VirtualMachineInstance, pod types.UID) {
	GinkgoHelper()
	expectSameGuest(ctx, guest)
	now := expectOneLauncher(ctx, guest)
	Expect(now.UID).To(Equal(pod))
	Expect(slices.Concat(now.Status.InitContainerStatuses, now.Status.ContainerStatuses)).
		To(HaveEach(HaveField("RestartCount", BeZero())))
}

// expectStopsAtAgent waits until an update has stopped because an agent does not start, and checks that everything else
// has the former version.
func expectStopsAtAgent(ctx context.Context, before string) {
	GinkgoHelper()
	Eventually(kubeVirt).WithContext(ctx).WithTimeout(scaled(rolloutTimeout)).WithPolling(pollInterval).
		Should(haveCondition(v1.KubeVirtConditionDegraded, And(
			HaveField("Reason", "DeploymentFailed"), HaveField("Message", And(ContainSubstring(`Pod "virt-handler-`), ContainSubstring(`container virt-handler`))))))
	Expect(kubectl(ctx, "", "get", "events", "-n", "kubevirt", "--field-selector", "reason=FailedUpdate")).
		To(ContainSubstring("virt-handler-"))
	Expect(imagesOf(ctx, "virt-api")).To(HaveEach(HaveSuffix(":" + before)))
	Expect(imagesOf(ctx, "virt-controller")).To(HaveEach(HaveSuffix(":" + before)))
	expectLater(ctx, "virt-exportproxy", before)
	if agents := imagesOf(ctx, "virt-handler"); len(agents) > 1 {
		Expect(agents).To(ContainElement(HaveSuffix(":"+before)), "the update has stopped at one agent")
	}
}

// tagVersions tags the images of all components with the versions on each node.
func tagVersions(ctx context.Context, versions ...string) {
	GinkgoHelper()
	for _, node := range nodes(ctx) {
		for _, version := range versions {
			for _, component := range []string{"virt-controller", "virt-api", "virt-handler", "virt-broker", "virt-launcher",
				"virt-exportproxy", "virt-exportserver"} {
				from := image(component)
				if component == "virt-handler" && version == brokenVersion {
					from = image("guest-small")
				}
				tagImage(ctx, node, from, registry+"/"+component+":"+version)
			}
		}
	}
}

func setVersion(ctx context.Context, version string) {
	GinkgoHelper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"imageTag": version}})
	Expect(err).NotTo(HaveOccurred())
	// The webhook's Pods are also replaced, so the request is retried, as a user's client does.
	Eventually(func() error {
		return k8s.Patch(ctx, kubeVirt(ctx), client.RawPatch(types.MergePatchType, patch))
	}).WithContext(ctx).WithTimeout(5 * time.Second).WithPolling(time.Second).Should(Succeed())
}

// expectRolledOut waits until all Pods of all components have the images of a version, and the KubeVirt object reports
// it.
func expectRolledOut(ctx context.Context, version string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		kv := kubeVirt(ctx)
		g.Expect(kv.Status.ObservedGeneration).To(HaveValue(Equal(kv.Generation)))
		g.Expect(kv.Status.ObservedKubeVirtVersion).To(Equal(version))
		g.Expect(kv).To(haveCondition(v1.KubeVirtConditionProgressing, HaveField("Status", corev1.ConditionFalse)))
	}).WithContext(ctx).WithTimeout(scaled(rolloutTimeout)).WithPolling(pollInterval).Should(Succeed())
	for _, component := range []string{"virt-controller", "virt-api", "virt-handler"} {
		Expect(imagesOf(ctx, component)).To(And(Not(BeEmpty()), HaveEach(HaveSuffix(":"+version))), component)
	}
	expectLater(ctx, "virt-broker", version)
	expectLater(ctx, "virt-exportproxy", version)
}

// expectLater checks that a component that earlier releases do not have has a version.
func expectLater(ctx context.Context, component, version string) {
	GinkgoHelper()
	if images := imagesOf(ctx, component); len(images) > 0 {
		Expect(images).To(HaveEach(HaveSuffix(":"+version)), component)
	}
}

// imagesOf returns the image of each Pod of a component that is not being deleted.
func imagesOf(ctx context.Context, component string) []string {
	GinkgoHelper()
	pods := &corev1.PodList{}
	Expect(k8s.List(ctx, pods, client.InNamespace("kubevirt"), client.MatchingLabels{v1.AppLabel: component})).
		To(Succeed())
	var images []string
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp == nil {
			images = append(images, pods.Items[i].Spec.Containers[0].Image)
		}
	}
	return images
}

func haveCondition(kind v1.KubeVirtConditionType, matcher gomegatypes.GomegaMatcher) gomegatypes.GomegaMatcher {
	return HaveField("Status.Conditions", ContainElement(And(HaveField("Type", kind), matcher)))
}

// callRepeatedly calls virt-api and a webhook twice a second until the returned function is called. It returns the
// calls that failed twice in a row, a second apart, as kubectl's users would notice.
func callRepeatedly(ctx context.Context, namespace string) func() []string {
	background, stop := context.WithCancel(ctx)
	DeferCleanup(stop)
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		failed  []string
	)
	for what, call := range map[string]func(context.Context) error{
		"virt-api": func(ctx context.Context) error {
			return clientset.Discovery().RESTClient().Get().AbsPath("/apis/subresources.kubevirt.io/v1/namespaces", namespace,
				"virtualmachines/guest/expand-spec").Do(ctx).Error()
		},
		"webhook": func(ctx context.Context) error {
			return k8s.Create(ctx, makeVM(namespace, "unborn"), client.DryRunAll)
		},
	} {
		running.Go(func() {
			for background.Err() == nil {
				err := call(background)
				if err != nil && background.Err() == nil {
					sleep(background, time.Second)
					if again := call(background); again != nil && background.Err() == nil {
						mu.Lock()
						failed = append(failed,
							fmt.Sprintf("%s at %s: %v; again: %v", what, time.Now().Format(time.TimeOnly), err, again))
						mu.Unlock()
					}
				}
				sleep(background, 500*time.Millisecond)
			}
		})
	}
	return func() []string {
		stop()
		running.Wait()
		return failed
	}
}

// sleep returns after a duration, or earlier when the context ends.
func sleep(ctx context.Context, duration time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(duration):
	}
}
