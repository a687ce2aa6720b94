// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/vireo-project/vireo/api/backup"
	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/api/cdi"
	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/api/csi"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	poolapi "github.com/vireo-project/vireo/api/pool"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	"github.com/vireo-project/vireo/api/snapshot"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/recorder"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/fleet/virtualmachineinstancereplicaset"
	"github.com/vireo-project/vireo/internal/controller/fleet/virtualmachinepool"
	"github.com/vireo-project/vireo/internal/controller/install/node"
	"github.com/vireo-project/vireo/internal/controller/migration/evacuation"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinebackup"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachineclone"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachineexport"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinerestore"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinesnapshot"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinesnapshotcontent"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/internal/controller/virtualmachine"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/decide/backup/plan"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// What triggers the reconcilers: these specs use a manager with its caches and watches, and never call Reconcile.
var _ = Describe("Manager", Ordered, func() {
	var store *clusterconfig.Store
	BeforeAll(func() {
		InstallVolumeSnapshots()
		mgr, err := ctrl.NewManager(ControllerConfig, ctrl.Options{
			Scheme: scheme.Scheme, Metrics: server.Options{BindAddress: "0"},
			Cache: cache.Options{
				ByObject: map[client.Object]cache.ByObject{
					&corev1.Secret{}: {Namespaces: map[string]cache.Config{"kubevirt": {}}}}},
		})
		Expect(err).NotTo(HaveOccurred())
		store = clusterconfig.NewStore(clusterconfig.WithImages(clusterconfig.Images{
			Launcher: "registry.example/virt-launcher:v1", Handler: "registry.example/virt-handler:v1",
		}))
		imports := datavolume.NewStore(mgr.GetConfig(), mgr.GetHTTPClient(), mgr.GetScheme())
		Expect(mgr.Add(imports)).To(Succeed())
		snapshots := volumesnapshot.NewStore(mgr.GetConfig(), mgr.GetHTTPClient(), mgr.GetScheme())
		Expect(snapshots.AddTo(mgr)).To(Succeed())
		recorded, err := recorder.Add(mgr, corev1.EventSource{Component: "virt-controller"})
		Expect(err).NotTo(HaveOccurred())
		Expect((&virtualmachineinstance.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: recorded,
			Config: store, Namespace: "kubevirt", DataVolumes: imports,
			AgentRecorder: func(node string) events.EventRecorder {
				return recorded.WithSource(corev1.EventSource{Component: "virt-handler", Host: node})
			},
		}).SetupWithManager(mgr)).To(Succeed())
		Expect((&virtualmachine.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: recorded, Config: store,
			DataVolumes: imports, VolumeSnapshots: snapshots,
		}).SetupWithManager(mgr)).To(Succeed())
		Expect((&virtualmachinesnapshot.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: recorded, VolumeSnapshots: snapshots,
			DataVolumes: imports,
		}).SetupWithManager(mgr)).To(Succeed())
		Expect((&virtualmachinesnapshotcontent.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: recorded, VolumeSnapshots: snapshots,
		}).SetupWithManager(mgr)).To(Succeed())
		Expect((&virtualmachineinstancereplicaset.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: recorded,
		}).SetupWithManager(mgr)).To(Succeed())
		Expect((&virtualmachinepool.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: recorded,
		}).SetupWithManager(mgr)).To(Succeed())
		Expect((&virtualmachinerestore.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: recorded, DataVolumes: imports,
			VolumeSnapshots: snapshots,
		}).SetupWithManager(mgr)).To(Succeed())
		Expect((&virtualmachineclone.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: recorded,
		}).SetupWithManager(mgr)).To(Succeed())
		exporters, err := virtualmachineexport.NewPodCache(mgr)
		Expect(err).NotTo(HaveOccurred())
		Expect((&virtualmachinebackup.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Pods: exporters, Recorder: recorded,
		}).SetupWithManager(mgr)).To(Succeed())
		Expect((&virtualmachineexport.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Pods: exporters, Recorder: recorded, DataVolumes: imports,
			VolumeSnapshots: snapshots, Config: store, Namespace: "kubevirt",
		}).SetupWithManager(mgr)).To(Succeed())
		Expect((&evacuation.Reconciler{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: recorded, Config: store,
		}).SetupWithManager(mgr)).To(Succeed())
		// That of the reconciler of migrations, which is not here.
		byVMI := func(o client.Object) []string { return []string{o.(*v1.VirtualMachineInstanceMigration).Spec.VMIName} }
		Expect(mgr.GetFieldIndexer().IndexField(ctx, &v1.VirtualMachineInstanceMigration{}, "spec.vmiName", byVMI)).
			To(Succeed())
		running, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- mgr.Start(running) }()
		DeferCleanup(func() {
			stop()
			Eventually(done, 30*time.Second).Should(Receive(Succeed()))
		})
	})

	kubeVirt := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}}
	BeforeEach(func() { Expect(store.Set(kubeVirt)).To(Succeed()) })

	It("does not start a VM, and reports the reason, until a KubeVirt object exists", func() {
		Expect(store.Set(nil)).To(Succeed())
		vm := builder.MakeVM("vm").Namespace(NewNamespace()).Template(builder.MakeVMI("vm")).Obj()
		ExpectCreated(vm)
		Eventually(func(g Gomega) {
			ExpectExists(vm)
			g.Expect(vm.Status.PrintableStatus).To(Equal(v1.VirtualMachineStatusUnschedulable))
			var reasons []string
			for _, condition := range vm.Status.Conditions {
				reasons = append(reasons, condition.Reason)
			}
			g.Expect(reasons).To(ContainElement("KubeVirtNotFound"))
		}, time.Minute).Should(Succeed())
		ExpectGone(PodOf(InstanceOf(vm)))

		Expect(store.Set(kubeVirt)).To(Succeed())
		Eventually(func() v1.VirtualMachinePrintableStatus { return ExpectExists(vm).Status.PrintableStatus }, time.Minute).
			Should(Equal(v1.VirtualMachineStatusStarting))
		ExpectExists(PodOf(InstanceOf(vm)))
	})

	It("serves an export of a claim as soon as the claim exists, and its Pod is ready", func() {
		ns := NewNamespace()
		of := &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "export"}}
		of.Spec.Source = corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "data"}
		ExpectCreated(of)
		Eventually(func(g Gomega) {
			ExpectExists(of)
			g.Expect(of.Status).NotTo(BeNil())
			g.Expect(DescribeExport(of)).To(HavePrefix("Pending; Ready=False Initializing; PVCReady=False PVCNotFound"))
		}, time.Minute).Should(Succeed())
		ExpectCreated(builder.MakePVC("data").Namespace(ns).Bound("1Gi").Obj())
		Eventually(func(g Gomega) {
			g.Expect(DescribeExport(of)).To(HavePrefix("Pending; Ready=False PodPending; PVCReady=True PVCBound"))
		}, time.Minute).Should(Succeed())
	})

	It("creates a claim of the default storage class for the state of a VMI with a TPM", func() {
		class := NewStorageClass(storagev1.VolumeBindingWaitForFirstConsumer, AsDefault)
		vmi := PersistentVMI().Namespace(NewNamespace()).Obj()
		ExpectCreated(vmi)
		Eventually(func(g Gomega) {
			claims := &corev1.PersistentVolumeClaimList{}
			g.Expect(K8sClient.List(ctx, claims, client.InNamespace(vmi.Namespace))).To(Succeed())
			g.Expect(claims.Items).To(HaveLen(1))
			g.Expect(claims.Items[0].Spec.StorageClassName).To(HaveValue(Equal(class.Name)))
		}, time.Minute).Should(Succeed())
	})

	It("takes a VM from a missing claim to Running, and deletes it", func() {
		ns := NewNamespace()
		vm := builder.MakeVM("vm").Namespace(ns).Template(builder.MakeVMI("vm").PVC("root", "claim")).Obj()
		tracker := TrackerOf(vm)
		tracker.Status = &backupv1alpha1.VirtualMachineBackupTrackerStatus{LatestCheckpoint: &backupv1alpha1.BackupCheckpoint{
			Name: "of-an-earlier-guest", CreationTime: ptr.To(metav1.NewTime(time.Now().Add(-time.Hour))),
		}}
		status := tracker.Status.DeepCopy()
		ExpectCreated(vm, tracker)
		tracker.Status = status
		ExpectStatus(tracker)
		shown := func() v1.VirtualMachinePrintableStatus { return ExpectExists(vm).Status.PrintableStatus }
		Eventually(shown, time.Minute).Should(Equal(v1.VirtualMachineStatusPvcNotFound))

		claim := builder.MakePVC("claim").Namespace(ns).Obj()
		ExpectCreated(claim)
		Eventually(shown, time.Minute).Should(Equal(v1.VirtualMachineStatusWaitingForVolumeBinding))
		claim.Status.Phase = corev1.ClaimBound
		ExpectStatus(claim)
		vmi := InstanceOf(vm)
		Eventually(func() error {
			return K8sClient.Get(ctx, client.ObjectKeyFromObject(PodOf(vmi)), PodOf(vmi))
		}, time.Minute).Should(Succeed())
		Eventually(shown, time.Minute).Should(Equal(v1.VirtualMachineStatusStarting))

		SetLauncherStatus(vmi, "node-1", builder.MakePodStatus().Running())
		Eventually(func() v1.VirtualMachineInstancePhase { return InstanceOf(vm).Status.Phase }, time.Minute).
			Should(Equal(v1.Scheduled))
		Expect(ExpectExists(tracker).Status.LatestCheckpoint).NotTo(BeNil())
		ReportAsAgent(vmi, Running)
		Eventually(shown, time.Minute).Should(Equal(v1.VirtualMachineStatusRunning))
		Eventually(func() *backupv1alpha1.BackupCheckpoint { return ExpectExists(tracker).Status.LatestCheckpoint },
			time.Minute).Should(BeNil())

		Expect(K8sClient.Delete(ctx, vm)).To(Succeed())
		pod := PodOf(vmi)
		Eventually(func() bool { return ExpectExists(pod).DeletionTimestamp != nil }, time.Minute).Should(BeTrue())
		SetLauncherStatus(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", ""))
		Eventually(func() v1.VirtualMachineInstancePhase { return ExpectExists(vmi).Status.Phase }, time.Minute).
			Should(Equal(v1.Succeeded))
		Expect(K8sClient.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(Succeed()) // as the kubelet does
		for _, object := range []client.Object{vmi, vm} {
			Eventually(func() bool {
				err := K8sClient.Get(ctx, client.ObjectKeyFromObject(object), object)
				return err != nil && client.IgnoreNotFound(err) == nil
			}, time.Minute).Should(BeTrue())
		}

		var reasons []string
		Eventually(func() []string {
			events := &corev1.EventList{}
			Expect(K8sClient.List(ctx, events, client.InNamespace(ns))).To(Succeed())
			reasons = nil
			for i := range events.Items {
				reasons = append(reasons, events.Items[i].Reason)
			}
			return reasons
		}, time.Minute).Should(
			ContainElements("CheckpointRedefinitionFailed", "FailedPvcNotFound", "SuccessfulCreate", "SuccessfulHandOver",
				"Stopped", "Deleted"))
	})

	It("takes a snapshot of a VM and restores it, while VolumeSnapshots, claims and DataVolumes change", func() {
		r := NewRestorable(func(vm *v1.VirtualMachine) { vm.Spec.Instancetype = nil })
		ExpectCreated(&csi.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: r.NS}, Driver: r.Class.Provisioner})
		Eventually(func() []v1.VolumeSnapshotStatus { return ExpectExists(r.VM).Status.VolumeSnapshotStatuses }, time.Minute).
			Should(HaveEach(HaveField("Enabled", true)), "the cache knows the class")
		r.Request()
		Eventually(func() string {
			r.Store()
			return DescribeSnapshot(r.Snapshot)
		}, time.Minute).Should(Equal(SnapshotReady))
		of := r.Restore()
		Eventually(func() bool {
			r.Provision()
			return IsRestoreComplete(of)
		}, time.Minute).Should(BeTrue())
		Expect(r.LockedBy()).To(BeEmpty())
		Expect(ExpectExists(r.VM).Spec.DataVolumeTemplates[0].Name).To(HavePrefix("restore-"))
	})

	It("clones VMs and snapshots while VolumeSnapshots and claims change, and deletes a clone with its target", func() {
		c := NewRestorable(func(vm *v1.VirtualMachine) { vm.Spec.Instancetype = nil })
		ExpectCreated(&csi.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: c.NS}, Driver: c.Class.Provisioner})
		finished := func(of *clonev1beta1.VirtualMachineClone) {
			GinkgoHelper()
			Eventually(func() string {
				c.Store()
				c.Provision()
				return DescribeClone(of)
			}, time.Minute).Should(Equal(CloneSucceeded))
			Eventually(func() *string { return ExpectExists(of).Status.RestoreName }, time.Minute).Should(BeNil())
		}
		By("a VM")
		finished(RequestClone(c.NS, "c", func(spec *clonev1beta1.VirtualMachineCloneSpec) { spec.Target.Name = "first" }))
		By("a snapshot that does not exist yet, and then is not ready")
		of := RequestClone(c.NS, "second", FromSnapshot)
		state := func() string { return DescribeClone(of) }
		Eventually(state, time.Minute).Should(ContainSubstring("Source doesnt exist"))
		c.Request()
		Eventually(state, time.Minute).Should(HavePrefix("SnapshotInProgress"))
		finished(of)
		By("without the target")
		Expect(K8sClient.Delete(ctx, ExpectExists(builder.MakeVM("copy").Namespace(c.NS).Obj()))).To(Succeed())
		Eventually(func() bool { return apierrors.IsNotFound(K8sClient.Get(ctx, client.ObjectKeyFromObject(of), of)) },
			time.Minute).Should(BeTrue())
	})

	It("keeps a replica set's number of VMIs when VMIs are deleted, lose their label or are adopted", func() {
		ns := NewNamespace()
		set := builder.MakeReplicaSet("web").Namespace(ns).Replicas(3).Obj()
		ExpectCreated(set)
		// A name is not enough to identify a replica: that of a deleted one is free again.
		owned := func() map[types.UID]string {
			list := &v1.VirtualMachineInstanceList{}
			Expect(K8sClient.List(ctx, list, client.InNamespace(ns))).To(Succeed())
			names := map[types.UID]string{}
			for i := range list.Items {
				if vmi := &list.Items[i]; vmi.DeletionTimestamp == nil && metav1.IsControlledBy(vmi, set) {
					names[vmi.UID] = vmi.Name
				}
			}
			return names
		}
		oneOf := func(owned map[types.UID]string) *v1.VirtualMachineInstance {
			GinkgoHelper()
			for uid, name := range owned {
				return &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: uid}}
			}
			Fail("the set has no VMI")
			return nil
		}
		counted := func() int32 { return ExpectExists(set).Status.Replicas }
		Eventually(counted, time.Minute).Should(BeEquivalentTo(3))
		Expect(owned()).To(HaveLen(3))

		gone := oneOf(owned())
		deleted := gone.UID
		Expect(K8sClient.Delete(ctx, gone, client.Preconditions{UID: &deleted})).To(Succeed())
		Eventually(owned, time.Minute).Should(And(HaveLen(3), Not(HaveKey(deleted))))

		freed := oneOf(owned())
		Eventually(func() error {
			return K8sClient.Patch(ctx, freed, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"set":null}}}`)))
		}).Should(Succeed())
		Eventually(owned, time.Minute).Should(And(HaveLen(3), Not(HaveKey(freed.UID))))
		Eventually(func() []metav1.OwnerReference { return ExpectExists(freed).OwnerReferences }, time.Minute).
			Should(BeEmpty())

		// A matching VMI that another client created is counted, so one of the four is deleted.
		orphan := builder.MakeVMI("orphan").Namespace(ns).Label(builder.SetLabel, "web").Obj()
		ExpectCreated(orphan)
		Eventually(func() bool {
			err := K8sClient.Get(ctx, client.ObjectKeyFromObject(orphan), orphan)
			return err != nil || len(orphan.OwnerReferences) > 0
		}, time.Minute).Should(BeTrue())
		Eventually(owned, time.Minute).Should(HaveLen(3))
		Consistently(owned, 2*time.Second).Should(HaveLen(3))
	})

	It("keeps a pool's number of VMs when VMs are deleted or detached, and releases them when the pool is deleted",
		func() {
			ns := NewNamespace()
			vm := func(name string) *v1.VirtualMachine {
				GinkgoHelper()
				return ExpectExists(builder.MakeVM(name).Namespace(ns).Obj())
			}
			names := func() (names []string) {
				list := &v1.VirtualMachineList{}
				Expect(K8sClient.List(ctx, list, client.InNamespace(ns))).To(Succeed())
				for i := range list.Items {
					names = append(names, list.Items[i].Name)
				}
				return names
			}
			pool := builder.MakePool("web").Namespace(ns).Replicas(2).With(func(s *poolSpec) {
				s.VirtualMachineTemplate.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted)
			}).Obj()
			ExpectCreated(pool)
			Eventually(names, time.Minute).Should(Equal([]string{"web-0", "web-1"}))
			Expect(K8sClient.Delete(ctx, vm("web-0"))).To(Succeed())
			Eventually(func(g Gomega) {
				vm := builder.MakeVM("web-0").Namespace(ns).Obj()
				g.Expect(K8sClient.Get(ctx, client.ObjectKeyFromObject(vm), vm)).To(Succeed())
				g.Expect(vm.DeletionTimestamp).To(BeNil())
			}, time.Minute).Should(Succeed())

			Eventually(func() error {
				detached := vm("web-1")
				detached.OwnerReferences = nil
				return K8sClient.Update(ctx, detached)
			}, time.Minute).Should(Succeed())
			Eventually(names, time.Minute).Should(Equal([]string{"web-0", "web-1", "web-2"}))
			Eventually(func() []string { return vm("web-1").Finalizers }, time.Minute).ShouldNot(ContainElement(poolFinalizer))

			Expect(K8sClient.Delete(ctx, pool)).To(Succeed())
			for _, name := range []string{"web-0", "web-2"} { // in place of the garbage collector
				Expect(K8sClient.Delete(ctx, vm(name))).To(Succeed())
			}
			Eventually(names, time.Minute).Should(Equal([]string{"web-1"}))
		})

	It("starts a VM when its DataVolume has succeeded", func() {
		ns := NewNamespace()
		vm := builder.MakeVM("vm").Namespace(ns).Template(builder.MakeVMI("vm").
			Volume("root", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}})).
			With(func(vm *v1.VirtualMachine) {
				vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "root"}}}
			}).Obj()
		ExpectCreated(vm)
		shown := func() v1.VirtualMachinePrintableStatus { return ExpectExists(vm).Status.PrintableStatus }
		Eventually(shown, time.Minute).Should(Equal(v1.VirtualMachineStatusProvisioning))
		dv := ExpectExists(DataVolume(ns, "root"))
		FillDataVolume(dv, cdi.DataVolumeFailed)
		Eventually(shown, time.Minute).Should(Equal(v1.VirtualMachineStatusDataVolumeError))
		FillDataVolume(dv, cdi.DataVolumeWaitForFirstConsumer)
		ProvideClaim(dv, false)
		Eventually(shown, time.Minute).Should(Equal(v1.VirtualMachineStatusWaitingForVolumeBinding))
		FillDataVolume(dv, cdi.DataVolumeSucceeded)
		Eventually(func() error {
			return K8sClient.Get(ctx, client.ObjectKeyFromObject(PodOf(InstanceOf(vm))), &corev1.Pod{})
		}, time.Minute).Should(Succeed())
	})

	It("removes from a VMI what backups have there that do not exist", func() {
		vmi := builder.MakeVMI("vmi").Namespace(NewNamespace()).PVC("root", "missing").Obj()
		of := &backupv1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace,
			Name: "of-another"}}
		of.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine",
			Name: "another"}
		of.Spec.PvcName = ptr.To("backups")
		ExpectCreated(vmi, of)
		names := func() (names []string) {
			for _, volume := range ExpectExists(vmi).Spec.UtilityVolumes {
				names = append(names, volume.Name)
			}
			return names
		}
		patch := client.MergeFrom(ExpectExists(vmi).DeepCopy())
		for _, name := range []string{"backup-of-nothing", plan.VolumeName(of)} {
			volume := v1.UtilityVolume{Name: name, Type: ptr.To(v1.Backup)}
			volume.ClaimName = "backups"
			vmi.Spec.UtilityVolumes = append(vmi.Spec.UtilityVolumes, volume)
		}
		Expect(K8sClient.Patch(ctx, vmi, patch)).To(Succeed())
		Eventually(names, time.Minute).Should(ConsistOf(plan.VolumeName(of)))
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		Eventually(names, time.Minute).Should(BeEmpty())
	})

	It("takes a snapshot when its VM and its claim are there, and the storage has taken it", func() {
		ns := NewSnapshotStorage()
		of := RequestSnapshot(ns, "snap")
		phase := func() string { return DescribeSnapshot(of) }
		Eventually(phase, time.Minute).Should(ContainSubstring("Source does not exist"))
		vm := VMWithSnapshots(ns, func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted) })
		Eventually(func() error {
			return K8sClient.Get(ctx, client.ObjectKeyFromObject(VolumeSnapshotOf(of, "root")), VolumeSnapshotOf(of, "root"))
		},
			time.Minute).Should(Succeed())
		Expect(IsLockedForSnapshot(vm)).To(BeTrue())
		ReportSnapshot(of, "root", false, time.Now())
		Eventually(phase, time.Minute).Should(Equal(SnapshotTaken))
		ReportSnapshot(of, "root", true, time.Now())
		Eventually(phase, time.Minute).Should(Equal(SnapshotReady))
		Eventually(func() []v1.VolumeSnapshotStatus { return ExpectExists(vm).Status.VolumeSnapshotStatuses }, time.Minute).
			Should(ConsistOf(v1.VolumeSnapshotStatus{Name: "root", Enabled: true}))
		Expect(K8sClient.Delete(ctx, of)).To(Succeed())
		Eventually(func() error { return K8sClient.Get(ctx, client.ObjectKeyFromObject(ContentOf(of)), ContentOf(of)) },
			time.Minute).
			ShouldNot(Succeed())
	})

	It("starts a VM when its instance type and its preference are created", func() {
		ns := NewNamespace()
		vm := builder.MakeVM("vm").Namespace(ns).With(WithPreference("linux")).With(func(vm *v1.VirtualMachine) {
			WithInstancetype("small-of-" + ns)(vm)
			vm.Spec.Instancetype.Kind = ""
		}).Obj()
		ExpectCreated(vm)
		failed := func(reason string) {
			GinkgoHelper()
			Eventually(func() *v1.VirtualMachine { return ExpectExists(vm) }, time.Minute).
				Should(HaveVMCondition(v1.VirtualMachineFailure, corev1.ConditionTrue, reason, "not found"))
		}
		failed("FailedFindInstancetype")
		ExpectCreated(&v1beta1.VirtualMachineClusterInstancetype{
			ObjectMeta: metav1.ObjectMeta{Name: "small-of-" + ns}, Spec: NewInstancetype("", "", 2).Spec,
		})
		failed("FailedFindPreference")
		ExpectCreated(NewPreference(ns, "linux"))
		Eventually(func() error { return K8sClient.Get(ctx, client.ObjectKeyFromObject(vm), InstanceKey(vm)) }, time.Minute).
			Should(Succeed())
		Expect(InstanceOf(vm).Annotations).To(HaveKeyWithValue(v1.ClusterInstancetypeAnnotation, "small-of-"+ns))
	})

	It("expands VMs when the configuration says so", func() {
		ns := NewNamespace()
		ExpectCreated(NewInstancetype(ns, "small", 2))
		vm := builder.MakeVM("vm").Namespace(ns).Strategy(v1.RunStrategyHalted).With(WithInstancetype("small")).Obj()
		ExpectCreated(vm)
		Eventually(func() *v1.InstancetypeStatusRef { return ExpectExists(vm).Status.InstancetypeRef }, time.Minute).
			ShouldNot(BeNil())

		expanding := kubeVirt.DeepCopy()
		expanding.Spec.Configuration.Instancetype = &v1.InstancetypeConfiguration{ReferencePolicy: ptr.To(v1.ExpandAll)}
		Expect(store.Set(expanding)).To(Succeed())
		Eventually(func() *v1.InstancetypeMatcher { return ExpectExists(vm).Spec.Instancetype }, time.Minute).Should(BeNil())
		Expect(vm.Spec.Template.Spec.Domain.CPU.Sockets).To(BeEquivalentTo(2))
	})

	Describe("finalizers go with their reason, whichever object goes first", func() {
		type pair struct {
			// protected has the finalizer, because of reason.
			protected, reason client.Object
			finalizer         string
		}
		ofPool := func() pair {
			ns := NewNamespace()
			pool := builder.MakePool("web").Namespace(ns).Replicas(1).With(func(s *poolSpec) {
				s.VirtualMachineTemplate.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted)
			}).Obj()
			ExpectCreated(pool)
			return pair{builder.MakeVM("web-0").Namespace(ns).Obj(), pool, poolFinalizer}
		}
		ofSnapshot := func() pair {
			ns := NewSnapshotStorage()
			vm := VMWithSnapshots(ns, func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted) })
			return pair{vm, RequestSnapshot(ns, "snap"), snapshot.SourceFinalizer} // It waits for its storage.
		}
		ofVM := func() pair {
			vm := builder.MakeVM("vm").Namespace(NewNamespace()).Template(builder.MakeVMI("vm")).Obj()
			ExpectCreated(vm)
			return pair{InstanceKey(vm), vm, v1.VirtualMachineInstanceFinalizer}
		}
		ofRestore := func() pair {
			vm := builder.MakeVM("vm").Namespace(NewNamespace()).Strategy(v1.RunStrategyHalted).Obj()
			of := &snapshotv1beta1.VirtualMachineRestore{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: "back"}}
			of.Spec.Target = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine",
				Name: vm.Name}
			of.Spec.VirtualMachineSnapshotName = "missing"
			ExpectCreated(vm, of)
			return pair{of, vm, snapshot.VirtualMachineRestoreFinalizer}
		}
		ofSnapshotsVM := func() pair {
			p := ofSnapshot()
			return pair{p.reason, p.protected, snapshot.VirtualMachineSnapshotFinalizer}
		}
		ofContent := func() pair {
			snap, isSnapshot := ofSnapshot().reason.(*snapshotv1beta1.VirtualMachineSnapshot)
			Expect(isSnapshot).To(BeTrue())
			content := &snapshotv1beta1.VirtualMachineSnapshotContent{}
			content.Namespace, content.Name = snap.Namespace, capture.ContentName(snap)
			return pair{content, snap, snapshot.VirtualMachineSnapshotContentFinalizer}
		}
		ofBackup := func() pair {
			vm := builder.MakeVM("vm").Namespace(NewNamespace()).Strategy(v1.RunStrategyHalted).Obj()
			of := &backupv1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: "backup"}}
			of.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine",
				Name: vm.Name}
			of.Spec.PvcName = ptr.To("backups")
			ExpectCreated(vm, of)
			return pair{of, vm, backup.VirtualMachineBackupFinalizer}
		}
		remove := func(o client.Object) { Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, o))).To(Succeed()) }
		detach := func(o client.Object) {
			Eventually(func() error {
				ExpectExists(o).SetOwnerReferences(nil)
				return K8sClient.Update(ctx, o)
			}).Should(Succeed())
		}
		DescribeTable("as here", func(of func() pair, leave func(client.Object), reasonFirst bool) {
			p := of()
			protects := func() bool {
				err := K8sClient.Get(ctx, client.ObjectKeyFromObject(p.protected), p.protected)
				return err == nil && controllerutil.ContainsFinalizer(p.protected, p.finalizer)
			}
			Eventually(protects, time.Minute).Should(BeTrue())
			if reasonFirst {
				remove(p.reason)
				leave(p.protected)
			} else {
				leave(p.protected)
				remove(p.reason)
			}
			Eventually(func() bool {
				return apierrors.IsNotFound(K8sClient.Get(ctx, client.ObjectKeyFromObject(p.reason), p.reason))
			}, time.Minute).Should(BeTrue())
			Eventually(protects, time.Minute).Should(BeFalse())
			Consistently(protects, time.Second).Should(BeFalse())
		},
			Entry("a VM of a pool, the pool first", ofPool, remove, true),
			Entry("a VM of a pool, the VM first", ofPool, remove, false),
			Entry("a VM that is taken out of a pool, the pool first", ofPool, detach, true),
			Entry("a VM that is taken out of a pool, the VM first", ofPool, detach, false),
			Entry("the VM of a snapshot, the snapshot first", ofSnapshot, remove, true),
			Entry("the VM of a snapshot, the VM first", ofSnapshot, remove, false),
			Entry("the VMI of a VM, the VM first", ofVM, remove, true),
			Entry("the VMI of a VM, the VMI first", ofVM, remove, false),
			Entry("a restore, its target first", ofRestore, remove, true),
			Entry("a restore, the restore first", ofRestore, remove, false),
			Entry("a snapshot, its VM first", ofSnapshotsVM, remove, true),
			Entry("a snapshot, the snapshot first", ofSnapshotsVM, remove, false),
			Entry("the content of a snapshot, the snapshot first", ofContent, remove, true),
			Entry("the content of a snapshot, the content first", ofContent, remove, false),
			Entry("a backup, its VM first", ofBackup, remove, true),
			Entry("a backup, the backup first", ofBackup, remove, false),
		)
	})

	It("reconciles VMs when a setting changes that they depend on", func() {
		rollout := func(strategy v1.VMRolloutStrategy) {
			GinkgoHelper()
			changed := kubeVirt.DeepCopy()
			changed.Spec.Configuration.VMRolloutStrategy = &strategy
			Expect(store.Set(changed)).To(Succeed())
		}
		rollout(v1.VMRolloutStrategyStage)
		vm := builder.MakeVM("vm").Namespace(NewNamespace()).Template(builder.MakeVMI("vm")).Obj()
		ExpectCreated(vm)
		Eventually(func() error { return K8sClient.Get(ctx, client.ObjectKeyFromObject(vm), InstanceKey(vm)) }, time.Minute).
			Should(Succeed())
		Eventually(func() error {
			ExpectExists(vm).Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"}
			return K8sClient.Update(ctx, vm)
		}).Should(Succeed())
		restart := func() bool {
			return conditions.IsTrue(ExpectExists(vm).Status.Conditions, v1.VirtualMachineRestartRequired)
		}
		Eventually(restart, time.Minute).Should(BeTrue())
		rollout(v1.VMRolloutStrategyLiveUpdate)
		Eventually(restart, time.Minute).Should(BeFalse())
	})

	It("follows the labels of namespaces that select VMs for the tracking of changed blocks", func() {
		selecting := kubeVirt.DeepCopy()
		selecting.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{
			FeatureGates: []string{clusterconfig.GateIncrementalBackup}}
		selecting.Spec.Configuration.ChangedBlockTrackingLabelSelectors = &v1.ChangedBlockTrackingSelectors{
			NamespaceLabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"backup": "yes"}},
		}
		Expect(store.Set(selecting)).To(Succeed())
		vm := builder.MakeVM("vm").Namespace(NewNamespace()).Strategy(v1.RunStrategyHalted).Obj()
		ExpectCreated(vm)
		Eventually(func() v1.VirtualMachinePrintableStatus { return ExpectExists(vm).Status.PrintableStatus }, time.Minute).
			Should(Equal(v1.VirtualMachineStatusStopped))
		Expect(vm.Status.ChangedBlockTracking).To(BeNil())
		LabelNamespace(vm.Namespace)
		Eventually(func() *v1.ChangedBlockTrackingStatus { return ExpectExists(vm).Status.ChangedBlockTracking },
			time.Minute).
			Should(HaveValue(HaveField("State", v1.ChangedBlockTrackingInitializing)))
	})

	It("reconciles the VMIs of a Node whose agent stops renewing its Lease and resumes", func() {
		ns := NewNamespace()
		host := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-",
			Labels: map[string]string{v1.NodeSchedulable: "true"}}}
		ExpectCreated(host)
		vmi := builder.MakeVMI("vm").Namespace(ns).Obj()
		ExpectCreated(vmi)
		Eventually(func() error { return K8sClient.Get(ctx, client.ObjectKeyFromObject(PodOf(vmi)), PodOf(vmi)) },
			time.Minute).
			Should(Succeed())
		SetLauncherStatus(vmi, host.Name, builder.MakePodStatus().Running())
		Eventually(func() v1.VirtualMachineInstancePhase { return ExpectExists(vmi).Status.Phase }, time.Minute).
			Should(Equal(v1.Scheduled))
		ReportAsAgent(vmi, Running)

		// Only the Node changes: nothing else can trigger the reconciliation.
		mark := func(schedulable string, heartbeat time.Time) {
			GinkgoHelper()
			metav1.SetMetaDataLabel(&host.ObjectMeta, v1.NodeSchedulable, schedulable)
			metav1.SetMetaDataAnnotation(&host.ObjectMeta, node.HeartbeatAnnotation, heartbeat.Format(time.RFC3339))
			Expect(K8sClient.Update(ctx, host)).To(Succeed())
		}
		reason := func() string { return ExpectExists(vmi).Status.Reason }
		mark("false", time.Now().Add(-node.Timeout))
		Eventually(reason, time.Minute).Should(Equal(node.ReasonNodeUnresponsive))
		mark("false", time.Now()) // the agent renews its Lease again, and the node is not schedulable yet
		Eventually(reason, time.Minute).Should(BeEmpty())
	})

	It("creates a migration for an evicted guest, and deletes it when the node is uncordoned", func() {
		ns := NewNamespace()
		host := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}, Spec: corev1.NodeSpec{Unschedulable: true}}
		ExpectCreated(host)
		vmi := builder.MakeVMI("vm").Namespace(ns).With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrate)
		}).Obj()
		ExpectCreated(vmi)
		Eventually(func() error { return K8sClient.Get(ctx, client.ObjectKeyFromObject(PodOf(vmi)), PodOf(vmi)) }).
			Should(Succeed())
		SetLauncherStatus(vmi, host.Name, builder.MakePodStatus().Running())
		Eventually(func() v1.VirtualMachineInstancePhase { return ExpectExists(vmi).Status.Phase }).
			Should(Equal(v1.Scheduled))
		ReportAsAgent(vmi, func(status *v1.VirtualMachineInstanceStatus) {
			Running(status)
			vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
				Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue,
			}, metav1.Now())
		})

		// As the webhook does.
		Eventually(func() error {
			eviction.Mark(&ExpectExists(vmi).Status, metav1.Now())
			return K8sClient.Status().Update(ctx, vmi)
		}).Should(Succeed())
		before := ExpectExists(PodOf(vmi))
		pod := before.DeepCopy()
		eviction.Annotate(&pod.ObjectMeta, true)
		Expect(K8sClient.Patch(ctx, pod, client.MergeFrom(before))).To(Succeed())
		migrations := func() []v1.VirtualMachineInstanceMigration {
			list := &v1.VirtualMachineInstanceMigrationList{}
			Expect(K8sClient.List(ctx, list, client.InNamespace(ns))).To(Succeed())
			return list.Items
		}
		Eventually(migrations).Should(HaveLen(1))

		Expect(K8sClient.Patch(ctx, host, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"unschedulable":null}}`)))).To(Succeed())
		Eventually(migrations).Should(BeEmpty())
		Eventually(func() *v1.VirtualMachineInstance { return ExpectExists(vmi) }).
			Should(HaveNoCondition(v1.VirtualMachineInstanceEvictionRequested))
		Expect(vmi.Status.EvacuationNodeName).To(BeEmpty())
		Eventually(func() bool { return eviction.IsAnnotated(&ExpectExists(PodOf(vmi)).ObjectMeta) }).Should(BeFalse())
	})

	It("reports a missing Secret from the kubelet's event", func() {
		ns := NewNamespace()
		vmi := builder.MakeVMI("vm").Namespace(ns).CloudInitSecret("init", "nowhere", "").Obj()
		ExpectCreated(vmi)
		Eventually(func() v1.VirtualMachineInstancePhase {
			pod := PodOf(vmi)
			if K8sClient.Get(ctx, client.ObjectKeyFromObject(pod), pod) == nil && pod.Spec.NodeName == "" {
				SetLauncherStatus(vmi, "node-1", builder.MakePodStatus().Waiting("ContainerCreating", ""))
			}
			return ExpectExists(vmi).Status.Phase
		}, time.Minute).Should(Equal(v1.Scheduling),
			"the VMI reports that the Pod starts slowly: only the event can trigger the next reconciliation")
		CreatePodEvent(vmi, time.Now(), "FailedMount", `secret "nowhere" not found`)
		Eventually(func() *v1.VirtualMachineInstance { return ExpectExists(vmi) }, time.Minute).
			Should(HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "FailedMount", `secret "nowhere"`))
	})
})

var _ = Describe("Events", func() {
	It("are counted when they are repeated", func() {
		api, err := typedcorev1.NewForConfig(ControllerConfig)
		Expect(err).NotTo(HaveOccurred())
		events := recorder.New(api.Events(""), scheme.Scheme, corev1.EventSource{Component: "virt-controller"})
		running, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- events.Start(running) }()
		DeferCleanup(func() {
			stop()
			Eventually(done).Should(Receive(Succeed()))
		})
		vmi := builder.MakeVMI("vmi").Namespace(NewNamespace()).Obj()
		ExpectCreated(vmi)
		for range 2 {
			events.Eventf(vmi, nil, corev1.EventTypeWarning, "Again", "Again", "the same")
		}
		Eventually(func(g Gomega) {
			list := &corev1.EventList{}
			g.Expect(K8sClient.List(ctx, list, client.InNamespace(vmi.Namespace))).To(Succeed())
			g.Expect(list.Items).To(HaveLen(1))
			g.Expect(list.Items[0].Count).To(BeEquivalentTo(2))
		}).Should(Succeed())
	})
})

const poolFinalizer = poolapi.VirtualMachinePoolControllerFinalizer

type poolSpec = poolv1.VirtualMachinePoolSpec
