// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// One guest, which counts on its console and on a disk that moves with it.
var _ = Describe("A guest that moves to another node", Ordered, Serial, func() {
	const name = "nomad"
	var (
		namespace string
		instance  *v1.VirtualMachineInstance
		consoles  *everyConsole
		stop      context.CancelFunc
	)

	BeforeAll(func(ctx context.Context) {
		if len(nodes(ctx)) < 2 {
			Skip("a guest needs two nodes to move between")
		}
		namespace = newNamespace(ctx)
		create(ctx, makeVM(namespace, name, withEvictionStrategy(v1.EvictionStrategyLiveMigrate),
			withDisk("data", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("64Mi")}}),
			withUserData("#!/bin/sh\n"+worker)))
		instance = expectReady(ctx, namespace, name)
		var following context.Context
		following, stop = context.WithCancel(context.Background())
		consoles = &everyConsole{seen: map[types.UID]func() string{}}
		go consoles.follow(following, instance)
		Eventually(consoles.counted).WithContext(ctx).WithTimeout(bootTimeout).ShouldNot(BeEmpty())
	}, NodeTimeout(8*time.Minute))
	AfterAll(func() {
		if stop != nil {
			stop()
		}
	})
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, namespace) }, NodeTimeout(time.Minute))

	latest := func() int {
		all := consoles.counted()
		return all[len(all)-1]
	}
	expectCountsOn := func(ctx context.Context) {
		GinkgoHelper()
		before := latest()
		Eventually(latest).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(BeNumerically(">", before+1))
	}
	moves := 0
	// expectCounts: every number was counted to. A line that the guest began in one Pod and ended in another is in neither as a whole.
	expectCounts := func() {
		GinkgoHelper()
		all := consoles.counted()
		Expect(len(all)).To(BeNumerically(">=", all[len(all)-1]-all[0]+1-moves), "numbers are missing after %d moves: %v", moves, all)
	}
	// expectMoves asks for a migration by a command and waits until the guest runs elsewhere.
	expectMoves := func(ctx context.Context, ask func()) {
		GinkgoHelper()
		from := vmi(ctx, namespace, name)
		ask()
		Eventually(func(g Gomega) {
			now := vmi(ctx, namespace, name)
			g.Expect(now.UID).To(Equal(from.UID))
			g.Expect(now.Status.NodeName).NotTo(Equal(from.Status.NodeName), "%+v", now.Status.MigrationState)
			g.Expect(now.Status.MigrationState.Completed).To(BeTrue())
			g.Expect(now.Status.MigrationState.Failed).To(BeFalse())
			g.Expect(now.Labels).To(HaveKeyWithValue(v1.NodeNameLabel, now.Status.NodeName))
			g.Expect(condition(now, v1.VirtualMachineInstanceReady)).To(HaveField("Status", corev1.ConditionTrue))
		}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
		moves++
		Expect(vmi(ctx, namespace, name).Status.Phase).To(Equal(v1.Running))
		expectOneLauncher(ctx, instance)
		expectCountsOn(ctx)
	}
	migrate := func(ctx context.Context) func() {
		return func() { expectVirtctl(ctx, "migrate", "-n", namespace, name) }
	}

	It("goes there and back, and loses no count", func(ctx context.Context) {
		for range 2 {
			expectMoves(ctx, migrate(ctx))
		}
		expectCounts()
		all := consoles.counted()
		By("having the same on its disk")
		console := openConsole(ctx, namespace, name)
		console.press("echo DISK-$(cat /mnt/data/count).\n")
		expectSays(ctx, console.Out, `DISK-(\d+)\.`)
		onDisk := diskCount(string(console.Out.Contents()))
		Expect(onDisk).To(BeNumerically(">=", all[len(all)-1]))
		Expect(onDisk).To(BeNumerically("<=", latest()+2))
		console.press("\x1d")
		By("answering at its new address")
		address, _ := forward(ctx, namespace, name, ":80")
		expectHello(ctx, address)
		expectAgent(ctx, namespace, name, shortTimeout)
	}, SpecTimeout(8*time.Minute))

	It("stays when the migration is aborted", func(ctx context.Context) {
		By("having a policy that makes it slow")
		policy := fmt.Sprintf(`{"apiVersion":"migrations.kubevirt.io/v1alpha1","kind":"MigrationPolicy","metadata":{"name":%q},
			"spec":{"bandwidthPerMigration":"1Mi","selectors":{"virtualMachineInstanceSelector":{"vm":%q}}}}`, namespace, name)
		kubectl(ctx, policy, "apply", "-f", "-")
		DeferCleanup(func(ctx context.Context) { kubectl(ctx, "", "delete", "migrationpolicy", namespace) }, NodeTimeout(time.Minute))
		from := vmi(ctx, namespace, name)
		migrate(ctx)()
		state := func() *v1.VirtualMachineInstanceMigrationState {
			return vmi(ctx, namespace, name).Status.MigrationState
		}
		Eventually(func(g Gomega) {
			now := state()
			g.Expect(now.MigrationUID).NotTo(Equal(from.Status.MigrationState.MigrationUID))
			g.Expect(now.StartTimestamp).NotTo(BeNil())
		}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
		expectVirtctl(ctx, "migrate-cancel", "-n", namespace, name)
		Eventually(state).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(
			And(HaveField("Failed", true), HaveField("AbortStatus", v1.MigrationAbortSucceeded)))
		Expect(vmi(ctx, namespace, name).Status.NodeName).To(Equal(from.Status.NodeName))
		expectOneLauncher(ctx, instance)
		expectCountsOn(ctx)
	}, SpecTimeout(6*time.Minute))

	It("leaves a node that is drained", func(ctx context.Context) {
		node := vmi(ctx, namespace, name).Status.NodeName
		DeferCleanup(func(ctx context.Context) { kubectl(ctx, "", "uncordon", node) }, NodeTimeout(time.Minute))
		expectMoves(ctx, func() {
			// Only guests: what else runs on the node is none of this test's concern.
			kubectl(ctx, "", "drain", node, "--pod-selector="+v1.CreatedByLabel, "--delete-emptydir-data", "--ignore-daemonsets", "--force", "--timeout=4m")
		})
		expectCounts()
	}, SpecTimeout(8*time.Minute))
})

func withEvictionStrategy(strategy v1.EvictionStrategy) option {
	return func(vm *v1.VirtualMachine) { spec(vm).EvictionStrategy = ptr.To(strategy) }
}

// diskCount is the number after DISK- in what a console showed.
func diskCount(screen string) int {
	_, rest, _ := strings.Cut(screen, "\nDISK-")
	digits, _, _ := strings.Cut(rest, ".")
	n, _ := strconv.Atoi(digits)
	return n
}

// expectOneLauncher waits until one launcher Pod of a VMI is left that has not ended.
func expectOneLauncher(ctx context.Context, instance *v1.VirtualMachineInstance) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		pods := &corev1.PodList{}
		g.Expect(k8s.List(ctx, pods, client.InNamespace(instance.Namespace), client.MatchingLabels{v1.CreatedByLabel: string(instance.UID)})).To(Succeed())
		alive := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
			return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		})
		g.Expect(alive).To(HaveLen(1))
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
}

// everyConsole is what the guest wrote in all the Pods that it has been in.
type everyConsole struct {
	mu   sync.Mutex
	seen map[types.UID]func() string
}

// follow follows each launcher Pod of a VMI from the moment in which it runs.
func (e *everyConsole) follow(ctx context.Context, instance *v1.VirtualMachineInstance) {
	defer GinkgoRecover()
	for ctx.Err() == nil {
		pods := &corev1.PodList{}
		if err := k8s.List(ctx, pods, client.InNamespace(instance.Namespace), client.MatchingLabels{v1.CreatedByLabel: string(instance.UID)}); err == nil {
			for i := range pods.Items {
				e.add(ctx, &pods.Items[i])
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (e *everyConsole) add(ctx context.Context, pod *corev1.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen[pod.UID] != nil || pod.Status.Phase != corev1.PodRunning {
		return
	}
	if read, err := followPod(ctx, pod); err == nil {
		e.seen[pod.UID] = read
	}
}

// counted are the numbers that the guest has counted to, each once.
func (e *everyConsole) counted() []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []int
	for _, read := range e.seen {
		for _, found := range worked.FindAllStringSubmatch(read(), -1) {
			if n, err := strconv.Atoi(found[1]); err == nil {
				all = append(all, n)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
