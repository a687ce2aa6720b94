// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration_test

import (
	"context"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/otlp"
	"github.com/vireo-project/vireo/internal/controller/observe/tracing"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
	"github.com/vireo-project/vireo/test/otlpcollector"
)

// trace exports traces as a virt-controller that just became the leader, until the returned function is called.
func trace() (stop func()) {
	GinkgoHelper()
	exporter, err := otlp.New(ctx, "virt-controller", "v1", GinkgoLogr)
	Expect(err).NotTo(HaveOccurred())
	Expect(exporter).NotTo(BeNil())
	objects, err := cache.New(ControllerConfig, cache.Options{Scheme: scheme.Scheme})
	Expect(err).NotTo(HaveOccurred())
	for _, object := range []client.Object{
		&corev1.Pod{}, &v1.VirtualMachine{}, &v1.VirtualMachineInstance{}, &v1.VirtualMachineInstanceMigration{},
	} {
		_, err := objects.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		Expect(err).NotTo(HaveOccurred())
	}
	running, cancel := context.WithCancel(ctx)
	done := make(chan error, 2)
	go func() { done <- objects.Start(running) }()
	Expect(objects.WaitForCacheSync(running)).To(BeTrue())
	go func() {
		done <- (&tracing.Watcher{Cache: objects, Exporter: exporter, Clock: clock.RealClock{}}).Start(running)
	}()
	// Stamps have a precision of a second, and what ended before is not exported.
	second := time.Now().Truncate(time.Second)
	Eventually(time.Now).Should(BeTemporally(">=", second.Add(time.Second)))
	return func() {
		cancel()
		for range 2 {
			Eventually(done).Should(Receive(Succeed()))
		}
	}
}

var _ = Describe("Traces", func() {
	It("are exported once for each start and each migration, also if virt-controller restarts", func() {
		collector, err := otlpcollector.Start(ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(collector.Close()).To(Succeed()) })
		GinkgoT().Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.Endpoint())
		GinkgoT().Setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
		m := newMigrations()
		received := func() []string {
			tree, err := otlpcollector.Tree(collector.Spans())
			if err != nil {
				return []string{err.Error()}
			}
			// The reconcilers' clock is behind that of the API server, by which a Pod may be scheduled too late for its phase.
			return slices.DeleteFunc(tree, func(line string) bool { return strings.HasSuffix(line, "PodScheduled") })
		}

		stop := trace()
		vmi := m.running("a", "vm")
		started := []string{"VirtualMachineInstance start", "  Pending", "  Scheduling", "  Scheduled"}
		Eventually(received).Should(ConsistOf(started))

		m.clock.SetTime(time.Now())
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		a.complete()
		a.act()
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationSucceeded))
		both := append(started, "VirtualMachineInstance migration", "  Pending", "  Scheduling", "  Scheduled",
			"  PreparingTarget",
			"  TargetReady", "  Running", "  Transfer")
		Eventually(received).Should(ConsistOf(both))
		for _, s := range collector.Spans() {
			switch s.Name {
			case "VirtualMachineInstance start":
				Expect(s.Attributes).To(
					And(HaveKeyWithValue("kubevirt.vmi.uid", string(vmi.UID)), HaveKeyWithValue("k8s.pod.name", PodOf(vmi).Name)))
				Expect(s.Start).To(BeTemporally("==", vmi.CreationTimestamp.Time))
			case "VirtualMachineInstance migration":
				Expect(s.Attributes).To(And(HaveKeyWithValue("kubevirt.migration.source.node", m.node("a")),
					HaveKeyWithValue("kubevirt.migration.target.node", m.node("b"))))
				Expect(s.Start).To(BeTemporally("==", vmim.CreationTimestamp.Time))
			}
		}

		// The next leader exports what it observes, and nothing that ended before.
		stop()
		DeferCleanup(trace())
		for _, object := range []client.Object{ExpectExists(vmi), ExpectExists(vmim)} {
			object.SetAnnotations(map[string]string{"touched": "true"})
			Expect(K8sClient.Update(ctx, object)).To(Succeed())
		}
		m.running("a", "other")
		Eventually(received).Should(ConsistOf(append(both, started...)))
		Consistently(received, time.Second).Should(HaveLen(len(both) + len(started)))
	})
})
