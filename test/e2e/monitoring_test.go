// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	migrationsv1alpha1 "github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/prometheus"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/rules"
	"github.com/vireo-project/vireo/test/builder"
	dashboards "github.com/vireo-project/vireo/test/prometheus"
)

const (
	// operatorKinds contains the CustomResourceDefinitions of the Prometheus operator, which itself does not run.
	operatorKinds = "../prometheusoperator"
	// monitorAccount is the service account of Prometheus.
	monitorAccount = "scraper"
	// alertDelay replaces the durations for which alerts have to be true before they fire, which are minutes to a day. It
	// is longer than a failing scrape takes.
	alertDelay = "4s"
	// heldFinalizer keeps a deleted VM.
	heldFinalizer = "e2e.vireo/held"
)

// busyScript makes a guest use its disks and fill them to 100 % and to about 90 %. Then a hundred processes wait for a
// frozen file system, and the guest agent reconnects, because it is queried for the load after that.
const busyScript = `#!/bin/sh
. /etc/init.d/lib
touch /run/ignore-power-button
dd if=/dev/zero of=/mnt/full/fill bs=64k 2>/dev/null
i=0
while [ $(df /mnt/nearly | awk 'NR == 2 { print int($5) }') -lt 88 ]; do
	dd if=/dev/zero of=/mnt/nearly/$i bs=64k count=16 2>/dev/null
	i=$((i + 1))
done
while sleep 1; do
	dd if=/dev/urandom of=/mnt/nearly/0 bs=4k count=1 conv=notrunc,fsync
	echo 3 >/proc/sys/vm/drop_caches
	dd if=/dev/vda of=/dev/null bs=64k count=4
done >/dev/null 2>&1 &
fsfreeze --freeze /mnt/frozen
for i in $(seq 100); do echo >/mnt/frozen/$i & done
until [ $(cut -d. -f1 /proc/loadavg) -ge 25 ]; do sleep 1; done
killall qemu-ga
while pidof qemu-ga; do sleep 1; done
agent
`

// lowScript leaves a guest 2 % of its memory.
const lowScript = `#!/bin/sh
mkdir /run/fill
mount -t tmpfs -o size=100% fill /run/fill
i=0
while [ $(awk '/MemAvailable/ { print $2 }' /proc/meminfo) -gt 2000 ]; do
	dd if=/dev/zero of=/run/fill/$i bs=64k count=4 2>/dev/null
	i=$((i + 1))
done
`

// monitored is a Prometheus that scrapes the components, with the installed rules, and the VMs about which it alerts.
type monitored struct {
	prometheusServer
	namespace string
	rules     rules.File
}

var _ = Describe("Prometheus", Ordered, Serial, extended(3), func() {
	m := &monitored{}
	BeforeAll(needLocalNodes)
	BeforeAll(func(ctx context.Context) {
		if len(nodes(ctx)) < 2 {
			Skip("one of the guests migrates")
		}
		m.start(ctx)
	}, nodeTimeout(6*time.Minute))
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, m.namespace) }, nodeTimeout(time.Minute))

	It("has a value for each recording rule", func(ctx context.Context) {
		migration := m.migrateSlowly(ctx)
		expectRecorded(ctx, m.prometheusServer, m.rules.Recordings())
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(migration), migration)).To(Succeed())
			g.Expect(migration.Status.Phase).To(Equal(v1.MigrationSucceeded))
		}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
	}, specTimeout(4*time.Minute))

	It("has data for each query of the dashboards", func(ctx context.Context) {
		Eventually(func(g Gomega) { m.expectDashboards(ctx, g) }).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(
			time.Second).Should(Succeed())
	}, specTimeout(3*time.Minute))

	It("fires and resolves each alert that can be provoked, and no other", func(ctx context.Context) {
		expectAllAlertsCovered(ctx, m.prometheusServer, m.rules.Alerts())
		m.expectFiring(ctx, ConsistOf(guestAlerts))

		By("stopping the processes of all components")
		resume := m.stopComponents(ctx)
		m.expectFiring(ctx, ContainElements(componentAlerts))
		resume()
		m.expectFiring(ctx, ConsistOf(guestAlerts))

		By("stopping the guests, of which one does not shut down")
		for _, name := range []string{"busy", "low"} {
			setRunStrategy(ctx, m.namespace, name, v1.RunStrategyHalted)
		}
		release(ctx, m.namespace)
		m.expectFiring(ctx, ContainElement(stopAlert))
		m.expectFiring(ctx, BeEmpty())
	}, specTimeout(6*time.Minute))
})

// start creates the VMs, and starts Prometheus.
func (m *monitored) start(ctx context.Context) {
	GinkgoHelper()
	m.namespace = newNamespace(ctx)
	small := v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("32Mi")}}
	create(ctx, makeVM(m.namespace, "busy", withBridge, withEvictionStrategy(v1.EvictionStrategyLiveMigrate),
		withGracePeriod(25),
		withUserData(busyScript), withDisk("full", small), withDisk("nearly", small), withDisk("frozen", small)))

	monitor := m.install(ctx)
	m.prometheusServer = startPrometheus(ctx, scrapeConfig(monitor, accountKubeconfig(ctx, m.namespace, monitorAccount)),
		&m.rules)
	Eventually(func(g Gomega) {
		g.Expect(m.scraped(ctx, g)).To(ConsistOf(podNames(components(ctx))))
		good, errors := m.evaluated(ctx, g)
		g.Expect(errors).To(BeEmpty())
		g.Expect(good).To(Equal(len(m.rules.Recordings()) + len(m.rules.Alerts())))
		// The metric of the time that VMIs take to start has a rate only if another VMI starts later.
		g.Expect(m.query(ctx, g, "kubevirt_vmi_info{name='busy', phase='running'}")).NotTo(BeEmpty())
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(time.Second).Should(Succeed())

	held := makeVM(m.namespace, "held", withRunStrategy(v1.RunStrategyHalted))
	held.Finalizers = []string{heldFinalizer}
	create(ctx, makeVM(m.namespace, "low", withUserData(lowScript)), held)
	DeferCleanup(func(ctx context.Context) { release(ctx, m.namespace) }, nodeTimeout(time.Minute))
	Expect(k8s.Delete(ctx, held)).To(Succeed())
	for _, name := range []string{"busy", "low"} {
		expectReady(ctx, m.namespace, name)
	}
}

// install lets virt-controller install its objects for Prometheus. It copies the rules, with other durations, and
// returns the ServiceMonitor.
func (m *monitored) install(ctx context.Context) *monitorSpec {
	GinkgoHelper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: prometheus.RoleName}}
	DeferCleanup(func(ctx context.Context) {
		kubectl(ctx, "", "delete", "--ignore-not-found", "-f", operatorKinds)
		expectGone(ctx, role)
		setMonitor(ctx, nil, nil)
	}, nodeTimeout(2*time.Minute))
	setMonitor(ctx, m.namespace, monitorAccount)
	kubectl(ctx, "", "apply", "--server-side", "-f", operatorKinds)

	monitor := &monitorSpec{}
	Eventually(func(g Gomega) {
		specOf(ctx, g, "ServiceMonitor", m.namespace, monitor)
		specOf(ctx, g, "PrometheusRule", "kubevirt", &m.rules)
		binding := &rbacv1.RoleBinding{}
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(role), binding)).To(Succeed())
		g.Expect(binding.Subjects).To(
			ConsistOf(rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: m.namespace, Name: monitorAccount}))
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
	Expect(m.rules.Groups).To(HaveLen(2))
	for _, group := range m.rules.Groups {
		for i := range group.Rules {
			if group.Rules[i].For != "" {
				group.Rules[i].For = alertDelay
			}
		}
	}
	return monitor
}

// setMonitor sets the namespace and the account of Prometheus in the KubeVirt object; nil removes them.
func setMonitor(ctx context.Context, namespace, account any) {
	GinkgoHelper()
	patch, err := json.Marshal(
		map[string]any{"spec": map[string]any{"monitorNamespace": namespace, "monitorAccount": account}})
	Expect(err).NotTo(HaveOccurred())
	Expect(k8s.Patch(ctx, kubeVirt(ctx), client.RawPatch(types.MergePatchType, patch))).To(Succeed())
}

// specOf decodes the spec of an object of the Prometheus operator.
func specOf(ctx context.Context, g Gomega, kind, namespace string, into any) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: kind})
	g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: prometheus.Name}, object)).To(Succeed())
	text, err := yaml.Marshal(object.Object["spec"])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(yaml.UnmarshalStrict(text, into)).To(Succeed())
}

// components returns the Pods of all components that are not being deleted.
func components(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	var all []corev1.Pod
	for _, component := range []string{"virt-api", "virt-controller", "virt-handler", "virt-exportproxy"} {
		pods := &corev1.PodList{}
		Expect(k8s.List(ctx, pods, client.InNamespace("kubevirt"), client.MatchingLabels{v1.AppLabel: component})).
			To(Succeed())
		all = append(all, pods.Items...)
	}
	return slices.DeleteFunc(all, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}

func podNames(pods []corev1.Pod) []string {
	names := make([]string, 0, len(pods))
	for i := range pods {
		names = append(names, pods[i].Name)
	}
	return names
}

// stopComponents stops the processes of all components, as if they hung, for a shorter time than the kubelet takes to
// restart their Pods. The returned function continues them, and waits until their Pods are ready.
func (m *monitored) stopComponents(ctx context.Context) (resume func()) {
	GinkgoHelper()
	var stopped []int
	signal := func(signal syscall.Signal) {
		for _, pid := range stopped {
			_ = syscall.Kill(pid, signal)
		}
	}
	pods := components(ctx)
	for i := range pods {
		processes := podProcesses(&pods[i], pods[i].Labels[v1.AppLabel])
		Expect(processes).NotTo(BeEmpty(), pods[i].Name)
		for _, process := range processes {
			stopped = append(stopped, process.PID)
		}
	}
	DeferCleanup(signal, syscall.SIGCONT)
	signal(syscall.SIGSTOP)
	return func() {
		GinkgoHelper()
		signal(syscall.SIGCONT)
		Eventually(func() []corev1.Pod { return components(ctx) }).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(
			pollInterval).Should(
			HaveEach(HaveField("Status.Conditions", ContainElement(And(
				HaveField("Type", corev1.PodReady), HaveField("Status", corev1.ConditionTrue))))))
	}
}

// migrateSlowly starts a migration of the guest low that takes so long that the transfer is scraped.
func (m *monitored) migrateSlowly(ctx context.Context) *v1.VirtualMachineInstanceMigration {
	GinkgoHelper()
	policy := &migrationsv1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: m.namespace}}
	policy.Spec.Selectors = &migrationsv1alpha1.Selectors{VirtualMachineInstanceSelector: map[string]string{"vm": "low"}}
	policy.Spec.BandwidthPerMigration = ptr.To(resource.MustParse("4Mi"))
	migration := builder.MakeMigration("slow", "low").Namespace(m.namespace).Obj()
	create(ctx, policy, migration)
	DeferCleanup(func(ctx context.Context) error { return k8s.Delete(ctx, policy) }, nodeTimeout(time.Minute))
	return migration
}

// expectDashboards checks that each query of the dashboards has data, for the guest busy, and that this guest uses
// disks and network.
func (m *monitored) expectDashboards(ctx context.Context, g Gomega) {
	m.visit(ctx, g)
	var empty []string
	for _, file := range []string{"fleet.json", "vm.json"} {
		queries, err := dashboards.Queries(filepath.Join("..", "..", "config", "grafana", file),
			map[string]string{"namespace": m.namespace, "name": "busy"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(queries).NotTo(BeEmpty())
		for _, q := range queries {
			samples := m.query(ctx, g, q.Expr)
			if inUse := slices.Contains([]string{"Traffic", "Operations", "Packets"}, q.Panel); inUse {
				samples = m.query(ctx, g, "("+q.Expr+") > 0")
			}
			if len(samples) == 0 {
				empty = append(empty, fmt.Sprintf("%s, panel %q: %s", file, q.Panel, q.Expr))
			}
		}
	}
	g.Expect(empty).To(BeEmpty(), "queries without data")
}

// visit requests the web page of the guest busy.
func (m *monitored) visit(ctx context.Context, g Gomega) {
	guest := vmi(ctx, m.namespace, "busy")
	g.Expect(guest.Status.Interfaces).NotTo(BeEmpty())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+guest.Status.Interfaces[0].IP+"/", nil)
	g.Expect(err).NotTo(HaveOccurred())
	response, err := (&http.Client{Timeout: 10 * time.Second}).Do(request)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	g.Expect(err).NotTo(HaveOccurred())
}

// expectFiring waits until the alerts that fire match.
func (m *monitored) expectFiring(ctx context.Context, matcher gomegatypes.GomegaMatcher) {
	GinkgoHelper()
	start := time.Now()
	Eventually(func(g Gomega) { g.Expect(m.firing(ctx, g)).To(matcher) }).
		WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(pollInterval).Should(Succeed())
	reportTime("the expected alerts fired", start)
}

// release removes the finalizer of the VM held, if it still exists.
func release(ctx context.Context, namespace string) {
	GinkgoHelper()
	held := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "held"}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	Expect(client.IgnoreNotFound(k8s.Patch(ctx, held, patch))).To(Succeed())
}
