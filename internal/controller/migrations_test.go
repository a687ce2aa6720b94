// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller_test

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/recorder"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/migration/evacuation"
	"github.com/vireo-project/vireo/internal/controller/migration/virtualmachineinstancemigration"
	"github.com/vireo-project/vireo/internal/controller/migration/workloadupdate"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// slowDeletions is a client whose deletions of claims wait for a lock.
type slowDeletions struct {
	client.Client
	ofClaims sync.RWMutex
}

func (s *slowDeletions) Delete(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	if _, claim := object.(*corev1.PersistentVolumeClaim); claim {
		s.ofClaims.RLock()
		defer s.ofClaims.RUnlock()
	}
	return s.Client.Delete(ctx, object, options...)
}

// What triggers the reconcilers of migrations, of evacuations and of workload updates: these specs write what users,
// Kubernetes' components and the agents write, and never call Reconcile. The manager sees only the namespaces of these
// specs, because the limits of migrations apply to all namespaces together.
var _ = Describe("Manager of migrations", Ordered, func() {
	var (
		ns       string
		store    *clusterconfig.Store
		kubeVirt *v1.KubeVirt
		vmis     *slowDeletions
	)
	BeforeAll(func() {
		ns = NewNamespace()
		kubeVirt = &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: NewInstallNamespace(), Name: "kubevirt"}}
		kubeVirt.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{UseEmulation: true}
		methods := []v1.WorkloadUpdateMethod{v1.WorkloadUpdateMethodLiveMigrate}
		kubeVirt.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods = methods
		ExpectCreated(kubeVirt)
		installed := map[string]cache.Config{kubeVirt.Namespace: {}}
		mgr, err := ctrl.NewManager(ControllerConfig, ctrl.Options{
			Scheme: scheme.Scheme, Metrics: server.Options{BindAddress: "0"},
			// The other manager of this suite has reconcilers of the same names.
			Controller: config.Controller{SkipNameValidation: ptr.To(true)},
			Cache: cache.Options{
				DefaultNamespaces: map[string]cache.Config{ns: {}, kubeVirt.Namespace: {}},
				ByObject:          map[client.Object]cache.ByObject{&corev1.Secret{}: {Namespaces: installed}},
			},
		})
		Expect(err).NotTo(HaveOccurred())
		store = clusterconfig.NewStore(clusterconfig.WithImages(clusterconfig.Images{
			Launcher: "registry.example/virt-launcher:v1", Handler: "registry.example/virt-handler:v1",
		}))
		Expect(store.Set(kubeVirt)).To(Succeed())
		imports := datavolume.NewStore(mgr.GetConfig(), mgr.GetHTTPClient(), mgr.GetScheme())
		Expect(mgr.Add(imports)).To(Succeed())
		recorded, err := recorder.Add(mgr, corev1.EventSource{Component: "virt-controller"})
		Expect(err).NotTo(HaveOccurred())
		vmis = &slowDeletions{Client: mgr.GetClient()}
		Expect((&virtualmachineinstance.Reconciler{
			Client: vmis, APIReader: mgr.GetAPIReader(), Recorder: recorded, Config: store, Namespace: kubeVirt.Namespace,
			DataVolumes:   imports,
			AgentRecorder: func(string) events.EventRecorder { return recorded },
		}).SetupWithManager(mgr)).To(Succeed())
		Expect((&virtualmachineinstancemigration.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: recorded, Config: store,
		}).SetupWithManager(mgr)).To(Succeed())
		Expect((&evacuation.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: recorded, Config: store,
		}).SetupWithManager(mgr)).To(Succeed())
		Expect((&workloadupdate.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: recorded, Config: store,
			Namespace:    kubeVirt.Namespace,
			DeploymentID: func(*v1.KubeVirt) (string, error) { return "deployment", nil },
		}).SetupWithManager(mgr)).To(Succeed())
		running, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- mgr.Start(running) }()
		DeferCleanup(func() {
			stop()
			Eventually(done).Should(Receive(Succeed()))
		})
	})
	// Guests of an earlier spec would use slots.
	AfterEach(func() {
		noFinalizers := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		Eventually(func(g Gomega) {
			left := &v1.VirtualMachineInstanceList{}
			g.Expect(K8sClient.List(ctx, left, client.InNamespace(ns))).To(Succeed())
			for i := range left.Items {
				g.Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, &left.Items[i]))).To(Succeed())
				g.Expect(client.IgnoreNotFound(K8sClient.Patch(ctx, &left.Items[i], noFinalizers))).To(Succeed())
			}
			g.Expect(left.Items).To(BeEmpty())
		}).Should(Succeed())
		Expect(K8sClient.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(ns), client.GracePeriodSeconds(0))).To(Succeed())
		Expect(store.Set(kubeVirt)).To(Succeed())
	})

	configure := func(change func(*v1.KubeVirt)) {
		GinkgoHelper()
		changed := kubeVirt.DeepCopy()
		change(changed)
		Expect(store.Set(changed)).To(Succeed())
	}
	migrations := func(change func(*v1.MigrationConfiguration)) func(*v1.KubeVirt) {
		return func(kv *v1.KubeVirt) {
			kv.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{}
			change(kv.Spec.Configuration.MigrationConfiguration)
		}
	}
	limit := func(n uint32) func(*v1.KubeVirt) {
		return migrations(func(m *v1.MigrationConfiguration) { m.ParallelMigrationsPerCluster = ptr.To(n) })
	}
	// host creates a node to which the guests of the specs can migrate.
	host := func() *corev1.Node {
		GinkgoHelper()
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-", Labels: map[string]string{
			v1.NodeSchedulable: "true", corev1.LabelArchStable: "amd64", v1.SupportedMachineTypeLabel + "q35": "true",
		}}}
		ExpectCreated(node)
		node.Spec.Taints = nil // The API server taints new nodes as not ready, and no kubelet makes them ready.
		Expect(K8sClient.Update(ctx, node)).To(Succeed())
		DeferCleanup(func() { Expect(K8sClient.Delete(ctx, node)).To(Succeed()) })
		return node
	}
	edit := func(node *corev1.Node, change func(*corev1.Node)) {
		GinkgoHelper()
		change(ExpectExists(node))
		Expect(K8sClient.Update(ctx, node)).To(Succeed())
	}
	taint := func(key string) func(*corev1.Node) {
		return func(node *corev1.Node) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
	}
	migratable := func(can corev1.ConditionStatus) func(*v1.VirtualMachineInstanceStatus) {
		return WithCondition(v1.VirtualMachineInstanceIsMigratable, can, "", "")
	}
	// running returns a VMI whose guest runs on a node.
	running := func(node *corev1.Node, b *builder.VMI) *v1.VirtualMachineInstance {
		GinkgoHelper()
		vmi := b.Namespace(ns).Obj()
		ExpectCreated(vmi)
		launcher := PodOf(vmi)
		Eventually(func() error { return K8sClient.Get(ctx, client.ObjectKeyFromObject(launcher), launcher) }).
			Should(Succeed())
		SetLauncherStatus(vmi, node.Name, builder.MakePodStatus().Running())
		Eventually(func() v1.VirtualMachineInstancePhase { return ExpectExists(vmi).Status.Phase }).
			Should(Equal(v1.Scheduled))
		ReportAsAgent(vmi, func(status *v1.VirtualMachineInstanceStatus) {
			Running(status)
			migratable(corev1.ConditionTrue)(status)
		})
		return ExpectExists(vmi)
	}
	request := func(name string, vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstanceMigration {
		GinkgoHelper()
		m := builder.MakeMigration(name, vmi.Name).Namespace(ns).Obj()
		ExpectCreated(m)
		return m
	}
	reaches := func(m *v1.VirtualMachineInstanceMigration, phase v1.VirtualMachineInstanceMigrationPhase) {
		GinkgoHelper()
		Eventually(func() v1.VirtualMachineInstanceMigrationPhase { return ExpectExists(m).Status.Phase }).
			Should(Equal(phase))
	}
	// unfinished returns the names of the VMIs of the migrations that have not ended.
	unfinished := func() map[types.UID]string {
		GinkgoHelper()
		found := map[types.UID]string{}
		list := &v1.VirtualMachineInstanceMigrationList{}
		Expect(K8sClient.List(ctx, list, client.InNamespace(ns))).To(Succeed())
		for i := range list.Items {
			if m := &list.Items[i]; !m.IsFinal() && m.DeletionTimestamp == nil {
				found[m.UID] = m.Spec.VMIName
			}
		}
		return found
	}
	// one waits until a single migration has not ended, and returns its UID: the name of a deleted migration is free
	// again.
	one := func() types.UID {
		GinkgoHelper()
		var uids []types.UID
		Eventually(func() []types.UID {
			uids = slices.Collect(maps.Keys(unfinished()))
			return uids
		}).Should(HaveLen(1))
		return uids[0]
	}
	// cancel deletes all migrations, as a user does, and expects that the guest gets another one.
	cancel := func(canceled types.UID) {
		GinkgoHelper()
		Expect(K8sClient.DeleteAllOf(ctx, &v1.VirtualMachineInstanceMigration{}, client.InNamespace(ns))).To(Succeed())
		Eventually(unfinished).Should(And(Not(BeEmpty()), Not(HaveKey(canceled))))
	}
	target := func(vmi *v1.VirtualMachineInstance, m *v1.VirtualMachineInstanceMigration) *corev1.Pod {
		GinkgoHelper()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: podspec.TargetPodName(vmi, m.UID)}}
		return ExpectExists(pod)
	}
	// runTarget runs the target's Pod on a node, as scheduler and kubelet do.
	runTarget := func(pod *corev1.Pod, node *corev1.Node) {
		GinkgoHelper()
		Expect(K8sClient.SubResource("binding").Create(ctx, pod, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pod.Name},
			Target:     corev1.ObjectReference{Kind: "Node", Name: node.Name},
		})).To(Succeed())
		class := pod.Status.QOSClass
		pod.Status = builder.MakePodStatus().Running().Obj()
		pod.Status.QOSClass = class
		ExpectStatus(pod)
	}
	// failTarget ends the target's Pod, as the kubelet does.
	failTarget := func(pod *corev1.Pod) {
		GinkgoHelper()
		class := pod.Status.QOSClass
		pod.Status = builder.MakePodStatus().Terminated(1, "Error", "").Obj()
		pod.Status.QOSClass = class
		ExpectStatus(pod)
	}
	type state = v1.VirtualMachineInstanceMigrationState
	// report changes the state of a VMI's migration, as the agents of source and target do.
	report := func(vmi *v1.VirtualMachineInstance, as vmistatus.Writer, change func(*state)) {
		GinkgoHelper()
		Eventually(func() error { // An agent tries again when virt-controller has written meanwhile.
			before := ExpectExists(vmi).DeepCopy()
			change(vmi.Status.MigrationState)
			_, err := vmistatus.Patch(ctx, K8sClient, as, before, vmi)
			return err
		}).Should(Succeed())
	}
	// exhausted creates a quota that is used up, as the quota controller reports it.
	exhausted := func(hard corev1.ResourceList) *corev1.ResourceQuota {
		GinkgoHelper()
		quota := &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "full"}, Spec: corev1.ResourceQuotaSpec{Hard: hard},
		}
		ExpectCreated(quota)
		quota.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: hard}
		ExpectStatus(quota)
		return quota
	}
	failed := func(s *state) {
		s.Failed, s.Completed, s.EndTimestamp, s.FailureReason = true, true, ptr.To(metav1.Now()), "the copy ended early"
	}

	It("follows a migration's Pod, and what the agents report", func() {
		vmi := running(host(), builder.MakeVMI("vm"))
		m := request("go", vmi)
		reaches(m, v1.MigrationScheduling)
		runTarget(target(vmi, m), host())
		reaches(m, v1.MigrationPreparingTarget)
		report(vmi, vmistatus.MigrationTarget, func(s *state) {
			s.TargetNodeAddress, s.TargetDirectMigrationNodePorts = "10.0.0.2", map[string]int{"49152": 0, "49153": 49153}
		})
		reaches(m, v1.MigrationTargetReady)
		report(vmi, vmistatus.MigrationSource, func(s *state) { s.StartTimestamp = ptr.To(metav1.Now()) })
		reaches(m, v1.MigrationRunning)
		report(vmi, vmistatus.MigrationSource, failed)
		reaches(m, v1.MigrationFailed)
	})

	It("gives a slot to the next migration when one ends, when a source is lost and when the limit is raised", func() {
		configure(limit(1))
		lost := host()
		a, b := running(host(), builder.MakeVMI("a")), running(lost, builder.MakeVMI("b"))
		c, d := running(host(), builder.MakeVMI("c")), running(host(), builder.MakeVMI("d"))
		first := request("first", a)
		reaches(first, v1.MigrationScheduling)
		second := request("second", b)
		reaches(second, v1.MigrationPending)
		failTarget(target(a, first))
		reaches(second, v1.MigrationScheduling)

		third := request("third", c)
		reaches(third, v1.MigrationPending)
		MakeUnresponsive(lost.Name, corev1.ConditionUnknown)
		reaches(third, v1.MigrationScheduling)

		fourth := request("fourth", d)
		reaches(fourth, v1.MigrationPending)
		configure(limit(2))
		reaches(fourth, v1.MigrationScheduling)
	})

	It("starts a migration that a quota had rejected when the quota changes", func() {
		vmi := running(host(), builder.MakeVMI("vm"))
		pods := func(n string) corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourcePods: resource.MustParse(n)}
		}
		quota := exhausted(pods("1"))
		DeferCleanup(func() { Expect(K8sClient.Delete(ctx, quota)).To(Succeed()) })
		Eventually(func() bool {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "probe"}}
			pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
			return apierrors.IsForbidden(K8sClient.Create(ctx, pod, client.DryRunAll))
		}).Should(BeTrue(), "until the API server's own cache has the quota")
		m := request("go", vmi)
		rejected := v1.VirtualMachineInstanceMigrationRejectedByResourceQuota
		Eventually(func() bool { return conditions.IsTrue(ExpectExists(m).Status.Conditions, rejected) }).Should(BeTrue())
		// The usage changes until the API server's own cache has the quota.
		used := 0
		Eventually(func(g Gomega) {
			used++
			ExpectExists(quota).Status = corev1.ResourceQuotaStatus{Hard: pods("10000"), Used: pods(strconv.Itoa(used))}
			g.Expect(K8sClient.Status().Update(ctx, quota)).To(Succeed())
			g.Expect(ExpectExists(m).Status.Phase).To(Equal(v1.MigrationScheduling))
		}).WithPolling(100 * time.Millisecond).Should(Succeed())
	})

	It("starts the next migration of a guest with persistent state when the claim of the last one is deleted", func() {
		NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		vmi := running(host(), PersistentVMI())
		first := request("first", vmi)
		reaches(first, v1.MigrationScheduling)
		pod := target(vmi, first)
		runTarget(pod, host())
		reaches(first, v1.MigrationPreparingTarget)
		vmis.ofClaims.Lock()
		unlock := sync.OnceFunc(vmis.ofClaims.Unlock)
		defer unlock()
		report(vmi, vmistatus.MigrationSource, failed)
		reaches(first, v1.MigrationFailed)
		Expect(K8sClient.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		next := request("next", vmi)
		reaches(next, v1.MigrationPending)
		Consistently(func() v1.VirtualMachineInstanceMigrationPhase { return ExpectExists(next).Status.Phase }, "500ms").
			Should(Equal(v1.MigrationPending))
		unlock()
		reaches(next, v1.MigrationScheduling)
	})

	It("evacuates a guest again when its migration is canceled", func() {
		node := host()
		edit(node, func(node *corev1.Node) { node.Spec.Unschedulable = true })
		vmi := running(node, builder.MakeVMI("vm").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrate)
		}))
		Eventually(func() error { // as the webhook does
			eviction.Mark(&ExpectExists(vmi).Status, metav1.Now())
			return K8sClient.Status().Update(ctx, vmi)
		}).Should(Succeed())
		cancel(one())
	})

	It("evacuates a node when it is tainted, and when the taint is configured", func() {
		strategy := func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrate)
		}
		first, second := host(), host()
		running(first, builder.MakeVMI("first").With(strategy))
		running(second, builder.MakeVMI("second").With(strategy))
		edit(second, taint("example.com/drain"))
		edit(first, taint("kubevirt.io/drain"))
		Eventually(unfinished).Should(ConsistOf("first"))
		configure(migrations(func(m *v1.MigrationConfiguration) { m.NodeDrainTaintKey = ptr.To("example.com/drain") }))
		Eventually(unfinished).Should(ContainElement("second"))
	})

	It("updates guests, and reports those that cannot be updated", func() {
		vmi, other := running(host(), builder.MakeVMI("vm")), host()
		// Changes of guests, nodes and migrations have an effect a second later: none of them may be due. Those of quotas
		// have it 15 seconds later.
		const settled, later = 1200 * time.Millisecond, 30 * time.Second
		condition := func() string {
			c := conditions.Find(ExpectExists(kubeVirt).Status.Conditions, v1.KubeVirtConditionWorkloadsMigratable)
			if c == nil {
				return ""
			}
			return string(c.Status) + " " + c.Message
		}
		can := HavePrefix("True")
		cannot := func(why string) OmegaMatcher { return And(HavePrefix("False"), ContainSubstring(why)) }
		stays := func(state func() string, matcher OmegaMatcher) {
			GinkgoHelper()
			Eventually(state, later).Should(matcher)
			Consistently(state, settled).Should(matcher)
		}
		stays(condition, can)
		By("a change of a guest")
		ReportAsAgent(vmi, migratable(corev1.ConditionFalse))
		stays(condition, cannot("vm"))
		ReportAsAgent(vmi, migratable(corev1.ConditionTrue))
		stays(condition, can)
		By("a change of a node")
		edit(other, func(node *corev1.Node) { node.Spec.Unschedulable = true })
		stays(condition, cannot("NoOtherNode"))
		edit(other, func(node *corev1.Node) { node.Spec.Unschedulable = false })
		stays(condition, can)
		By("a change of a quota, later")
		quota := exhausted(corev1.ResourceList{corev1.ResourceRequestsMemory: resource.MustParse("1Mi")})
		stays(condition, cannot("ResourceQuota"))
		Expect(K8sClient.Delete(ctx, quota)).To(Succeed())

		By("a change of the configuration")
		configure(func(kv *v1.KubeVirt) { kv.Spec.ImageTag = "v2" })
		outdated := func() string {
			_, labeled := ExpectExists(vmi).Labels[v1.OutdatedLauncherImageLabel]
			return map[bool]string{true: "outdated"}[labeled]
		}
		stays(outdated, Equal("outdated"))
		Expect(unfinished()).To(BeEmpty(), "the agents are not updated yet")
		By("the end of the rollout")
		status := &ExpectExists(kubeVirt).Status
		status.Phase, status.ObservedGeneration = v1.KubeVirtPhaseDeployed, ptr.To(kubeVirt.Generation)
		status.TargetDeploymentID, status.ObservedDeploymentID = "deployment", "deployment"
		ExpectStatus(kubeVirt)
		Eventually(unfinished).Should(HaveLen(1))
		Consistently(unfinished, settled).Should(HaveLen(1))
		By("a canceled migration")
		cancel(one())
	})
})
