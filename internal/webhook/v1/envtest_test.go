// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// expectInvalid expects the error "Invalid" with causes for these fields.
func expectInvalid(err error, fields ...string) {
	GinkgoHelper()
	Expect(apierrors.IsInvalid(err)).To(BeTrue(), "want Invalid, got: %v", err)
	var status *apierrors.StatusError
	Expect(errors.As(err, &status)).To(BeTrue())
	var named []string
	for _, cause := range status.ErrStatus.Details.Causes {
		named = append(named, cause.Field)
	}
	Expect(named).To(ContainElements(fields))
}

// read returns everything that a command printed.
func read(r io.Reader) string {
	GinkgoHelper()
	b, err := io.ReadAll(r)
	Expect(err).NotTo(HaveOccurred())
	return string(b)
}

// expectGone deletes an object and removes its finalizers.
func expectGone(ctx context.Context, object client.Object) {
	GinkgoHelper()
	Expect(client.IgnoreNotFound(k8s.Delete(ctx, object))).To(Succeed())
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	Expect(client.IgnoreNotFound(k8s.Patch(ctx, object, patch))).To(Succeed())
}

var _ = Describe("a new VMI", func() {
	ctx := context.Background()

	create := func(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
		GinkgoHelper()
		Expect(k8s.Create(ctx, vmi)).To(Succeed())
		DeferCleanup(expectGone, ctx, vmi)
		return vmi
	}

	It("reads Pending without a write, also from the API server and by the selectable field", func() {
		vmi := create(newVMI("pending"))
		Expect(vmi.Status.Phase).To(Equal(v1.Pending))

		got := &v1.VirtualMachineInstance{}
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(vmi), got)).To(Succeed())
		Expect(got.Status.Phase).To(Equal(v1.Pending))
		Expect(got.Generation).To(Equal(int64(1)))
		Expect(got.ResourceVersion).To(Equal(vmi.ResourceVersion))

		list := &v1.VirtualMachineInstanceList{}
		Expect(k8s.List(ctx, list, client.InNamespace("default"), client.MatchingFields{"status.phase": "Pending"})).
			To(Succeed())
		Expect(list.Items).To(HaveLen(1))
	})

	It("keeps its status through a merge patch that leaves the status out, and through an update of metadata", func() {
		vmi := create(newVMI("patched"))
		patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Scheduled","nodeName":"node01"}}`))
		Expect(controller.Status().Patch(ctx, vmi, patch)).To(Succeed())
		Expect(vmi.Status.NodeName).To(Equal("node01"))

		patch = client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))
		Expect(k8s.Patch(ctx, vmi, patch)).To(Succeed())
		Expect(vmi.Status.Phase).To(Equal(v1.Scheduled))

		vmi.Status = v1.VirtualMachineInstanceStatus{}
		vmi.Labels["a"] = "c"
		Expect(k8s.Update(ctx, vmi)).To(Succeed())
		Expect(vmi.Status.Phase).To(Equal(v1.Scheduled))
		Expect(vmi.Status.NodeName).To(Equal("node01"))
		Expect(vmi.Generation).To(Equal(int64(1)), "a status write must not count as a change of the spec")

		list := &v1.VirtualMachineInstanceList{}
		Expect(k8s.List(ctx, list, client.MatchingFields{"status.nodeName": "node01"})).To(Succeed())
		Expect(list.Items).To(HaveLen(1))
	})

	It("prints its phase in the columns of KubeVirt", func() {
		create(newVMI("printed"))
		out, _, err := kubectl("get", "vmi", "-n", "default", "printed", "-o", "wide")
		Expect(err).NotTo(HaveOccurred())
		lines := strings.Split(strings.TrimSpace(read(out)), "\n")
		Expect(strings.Fields(lines[0])).To(Equal(
			[]string{"NAME", "AGE", "PHASE", "IP", "NODENAME", "READY", "LIVE-MIGRATABLE", "PAUSED"}))
		Expect(strings.Fields(lines[1])).To(ContainElement("Pending"))
	})

	It("gets its defaults and its finalizer", func() {
		vmi := create(newVMI("defaults", withVolume("root", *containerDisk())))
		Expect(vmi.Finalizers).To(ConsistOf(v1.VirtualMachineInstanceFinalizer))
		Expect(vmi.Spec.Domain.Machine.Type).To(Equal("q35"))
		Expect(vmi.Spec.Domain.Devices.Disks).To(HaveLen(1))
		Expect(vmi.Spec.Networks).To(HaveLen(1))
		Expect(vmi.Spec.Domain.Firmware.UUID).NotTo(BeEmpty())
	})

	It("is refused with the field of each error", func() {
		vmi := newVMI("faulty", withDisk(v1.Disk{
			Name: "root", Serial: "a b", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: "ide"}},
		}, containerDisk()))
		expectInvalid(k8s.Create(ctx, vmi), "spec.domain.devices.disks[0].disk.bus", "spec.domain.devices.disks[0].serial")
	})

	It("has a spec that only our controllers can change", func() {
		vmi := create(newVMI("immutable"))
		changed := vmi.DeepCopy()
		changed.Spec.TerminationGracePeriodSeconds = ptr.To(int64(1))
		err := k8s.Update(ctx, changed)
		expectInvalid(err, "spec")
		Expect(err).To(MatchError(ContainSubstring("update of VMI object is restricted")))
		Expect(controller.Patch(ctx, changed, client.MergeFrom(vmi))).To(Succeed())
	})

	It("has disks and volumes of which our controllers can change only what can be plugged", func() {
		vmi := create(newVMI("plugs",
			withDisk(v1.Disk{Name: "root", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}},
				containerDisk())))
		changed := vmi.DeepCopy()
		changed.Spec.Volumes, changed.Spec.Domain.Devices.Disks = nil, nil
		Expect(controller.Patch(ctx, changed, client.MergeFrom(vmi))).
			To(MatchError(ContainSubstring("Number of permanent volumes has changed")))
		plugged := vmi.DeepCopy()
		plugged.Spec.Volumes = append(plugged.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
			DataVolume: &v1.DataVolumeSource{Name: "data", Hotpluggable: true},
		}})
		plugged.Spec.Domain.Devices.Disks = append(plugged.Spec.Domain.Devices.Disks, v1.Disk{
			Name: "data", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}},
		})
		expectInvalid(k8s.Patch(ctx, plugged.DeepCopy(), client.MergeFrom(vmi)), "spec")
		Expect(controller.Patch(ctx, plugged, client.MergeFrom(vmi))).To(Succeed())
	})

	It("has reserved labels that only our controllers can set", func() {
		vmi := newVMI("tagged")
		vmi.Labels = map[string]string{v1.NodeNameLabel: "node01"}
		expectInvalid(k8s.Create(ctx, vmi), "metadata.labels[kubevirt.io/nodeName]")

		vmi = create(newVMI("later"))
		label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"kubevirt.io/nodeName":"node01"}}}`))
		expectInvalid(k8s.Patch(ctx, vmi, label), "metadata.labels[kubevirt.io/nodeName]")
		Expect(controller.Patch(ctx, vmi, label)).To(Succeed())
	})
})

var _ = Describe("a VM", func() {
	ctx := context.Background()

	It("gets a finalizer, and its spec is not changed", func() {
		vm := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
			"metadata": map[string]any{"name": "untouched", "namespace": "default"},
			"spec": map[string]any{
				"runStrategy": "Halted",
				"template": map[string]any{
					"metadata": map[string]any{"labels": map[string]any{"app": "web"}},
					"spec": map[string]any{"domain": map[string]any{
						"memory": map[string]any{"guest": "131072Ki"}, "devices": map[string]any{},
					}},
				},
			},
		}}
		written := vm.DeepCopy().Object["spec"]
		Expect(k8s.Create(ctx, vm)).To(Succeed())
		DeferCleanup(expectGone, ctx, vm)
		Expect(vm.Object["spec"]).To(Equal(written))
		Expect(vm.GetFinalizers()).To(ConsistOf(v1.VirtualMachineControllerFinalizer))
	})

	It("and its VMI can be updated with another notation of the same quantity", func() {
		vmi := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
			"metadata": map[string]any{"name": "sized", "namespace": "default"},
			"spec": map[string]any{"domain": map[string]any{
				"memory": map[string]any{"guest": "131072Ki"}, "devices": map[string]any{},
			}},
		}}
		Expect(k8s.Create(ctx, vmi)).To(Succeed())
		DeferCleanup(expectGone, ctx, vmi)
		path := []string{"spec", "domain", "memory", "guest"}
		guest, _, err := unstructured.NestedString(vmi.Object, path...)
		Expect(err).NotTo(HaveOccurred())
		Expect(guest).To(Equal("128Mi"), "a VMI has its quantities in the canonical form")
		Expect(unstructured.SetNestedField(vmi.Object, "131072Ki", path...)).To(Succeed())
		Expect(k8s.Update(ctx, vmi)).To(Succeed(), "which changes nothing of what runs")
	})

	It("keeps other finalizers", func() {
		vm := newVM("finalized")
		vm.Finalizers = []string{"example.org/other"}
		Expect(k8s.Create(ctx, vm)).To(Succeed())
		DeferCleanup(expectGone, ctx, vm)
		Expect(vm.Finalizers).To(ConsistOf("example.org/other", v1.VirtualMachineControllerFinalizer))
	})

	It("must have one of running and runStrategy", func() {
		vm := newVM("none")
		vm.Spec.RunStrategy = nil
		err := k8s.Create(ctx, vm)
		expectInvalid(err, "spec")
		Expect(err).To(MatchError(ContainSubstring("One of Running or RunStrategy must be specified")))
		vm = newVM("both")
		vm.Spec.Running = ptr.To(true)
		Expect(k8s.Create(ctx, vm)).To(MatchError(ContainSubstring("mutually exclusive")))
		vm = newVM("unknown")
		vm.Spec.RunStrategy = ptr.To(v1.VirtualMachineRunStrategy("Sometimes"))
		expectInvalid(k8s.Create(ctx, vm), "spec.runStrategy")
	})

	It("is refused with the path of an error in its template, at creation and at update", func() {
		vm := newVM("faulty", withDisk(v1.Disk{Name: "root"}, nil))
		expectInvalid(k8s.Create(ctx, vm), "spec.template.spec.domain.devices.disks[0].name")

		vm = newVM("good")
		Expect(k8s.Create(ctx, vm)).To(Succeed())
		DeferCleanup(expectGone, ctx, vm)
		vm.Spec.Template.Spec.Hostname = "Not A Label"
		expectInvalid(k8s.Update(ctx, vm), "spec.template.spec.hostname")
	})

	It("keeps the fields of a DataVolume template", func() {
		vm := newVM("templated", withVolume("root", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "dv"}}))
		vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{
			ObjectMeta: metav1.ObjectMeta{Name: "dv"},
			Spec: cdiv1beta1.DataVolumeSpec{
				Source:  &cdiv1beta1.DataVolumeSource{HTTP: &cdiv1beta1.DataVolumeSourceHTTP{URL: "http://example.org"}},
				Storage: &cdiv1beta1.StorageSpec{},
			},
		}}
		Expect(k8s.Create(ctx, vm)).To(Succeed())
		DeferCleanup(expectGone, ctx, vm)
		got := &v1.VirtualMachine{}
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(vm), got)).To(Succeed())
		Expect(got.Spec.DataVolumeTemplates[0].Spec).To(Equal(vm.Spec.DataVolumeTemplates[0].Spec))
		Expect(got.Spec.DataVolumeTemplates[0].Name).To(Equal("dv"))
		Expect(got.Status.PrintableStatus).To(BeEmpty())
	})
})

var _ = Describe("KubeVirt", Ordered, func() {
	ctx := context.Background()
	newKubeVirt := func(name string) *v1.KubeVirt {
		return &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kubevirt"}}
	}
	It("is refused when a value cannot be used", func() {
		kv := newKubeVirt("bad")
		kv.Spec.Configuration.AdditionalGuestMemoryOverheadRatio = ptr.To("much")
		kv.Spec.Configuration.CPURequest = quantityOf("-1")
		expectInvalid(k8s.Create(ctx, kv), "spec.configuration.additionalGuestMemoryOverheadRatio",
			"spec.configuration.cpuRequest")
	})

	It("exists at most once", func() {
		kv := newKubeVirt("first")
		Expect(k8s.Create(ctx, kv)).To(Succeed())
		DeferCleanup(expectGone, ctx, kv)
		err := k8s.Create(ctx, newKubeVirt("second"))
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring("kubevirt/first")))
	})

	It("is not deleted while there are workloads, if its uninstall strategy says so", func() {
		kv := newKubeVirt("guarded")
		kv.Spec.UninstallStrategy = v1.KubeVirtUninstallStrategyBlockUninstallIfWorkloadsExist
		Expect(k8s.Create(ctx, kv)).To(Succeed())
		vmi := newVMI("workload")
		Expect(k8s.Create(ctx, vmi)).To(Succeed())
		err := k8s.Delete(ctx, kv)
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring("default/workload")))
		expectGone(ctx, vmi)
		Eventually(func() error { return k8s.Delete(ctx, kv) }).WithTimeout(waitLimit).Should(Succeed())
	})
})

var _ = Describe("the samples", func() {
	ctx := context.Background()

	It("are admitted without a warning, and so is the VMI of each VM", func() {
		files, err := filepath.Glob(filepath.Join("..", "..", "..", "config", "samples", "vm-*.yaml"))
		Expect(err).NotTo(HaveOccurred())
		Expect(files).NotTo(BeEmpty())
		for _, file := range files {
			for _, vm := range sampleVMs(file) {
				Expect(k8s.Create(ctx, vm, client.DryRunAll)).To(Succeed(), file)
				path := field.NewPath("spec")
				Expect(specsupport.UnimplementedInVM(path, &vm.Spec)).To(BeEmpty(), file)
				Expect(specsupport.UnimplementedInVMI(path.Child("template", "spec"), &vm.Spec.Template.Spec)).To(BeEmpty(), file)
				vmi := newVMI(vm.Name)
				vmi.Spec = vm.Spec.Template.Spec
				Expect(k8s.Create(ctx, vmi, client.DryRunAll)).To(Succeed(), file)
			}
		}
	})
})

// sampleVMs reads the VMs of a sample, and fails on a field that the API does not have.
func sampleVMs(file string) []*v1.VirtualMachine {
	GinkgoHelper()
	content, err := os.ReadFile(file)
	Expect(err).NotTo(HaveOccurred())
	var vms []*v1.VirtualMachine
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		if !strings.Contains(document, "kind: VirtualMachine\n") {
			continue
		}
		vm := &v1.VirtualMachine{}
		Expect(yaml.UnmarshalStrict([]byte(document), vm)).To(Succeed(), file)
		vm.Namespace = metav1.NamespaceDefault
		vms = append(vms, vm)
	}
	return vms
}

var _ = Describe("instance types and preferences", func() {
	ctx := context.Background()
	const ns = metav1.NamespaceDefault

	It("are refused with the field of each error, in both scopes", func() {
		size := v1beta1.VirtualMachineInstancetypeSpec{
			CPU: v1beta1.CPUInstancetype{Guest: 1},
			Memory: v1beta1.MemoryInstancetype{
				Guest: resource.MustParse("1Gi"), OvercommitPercent: 10, Hugepages: &v1.Hugepages{PageSize: "2Mi"},
			},
		}
		taste := v1beta1.VirtualMachinePreferenceSpec{CPU: &v1beta1.CPUPreferences{
			PreferredCPUTopology: ptr.To(v1beta1.Spread), SpreadOptions: &v1beta1.SpreadOptions{Ratio: ptr.To[uint32](0)},
		}}
		meta := metav1.ObjectMeta{Namespace: ns, Name: "faulty"}
		cluster := metav1.ObjectMeta{Name: "faulty"}
		for _, object := range []client.Object{
			&v1beta1.VirtualMachineInstancetype{ObjectMeta: meta, Spec: size},
			&v1beta1.VirtualMachineClusterInstancetype{ObjectMeta: cluster, Spec: size},
		} {
			expectInvalid(k8s.Create(ctx, object), "spec.memory.overcommitPercent")
		}
		for _, object := range []client.Object{
			&v1beta1.VirtualMachinePreference{ObjectMeta: meta, Spec: taste},
			&v1beta1.VirtualMachineClusterPreference{ObjectMeta: cluster, Spec: taste},
		} {
			expectInvalid(k8s.Create(ctx, object), "spec.cpu.spreadOptions.ratio")
		}
	})

	It("and VMIs are refused with quantities that take hours to read", func() {
		guest := map[string]any{"guest": "1e-1000000000"}
		for kind, spec := range map[string]map[string]any{
			"VirtualMachineInstancetype":        {"cpu": map[string]any{"guest": int64(1)}, "memory": guest},
			"VirtualMachineClusterInstancetype": {"cpu": map[string]any{"guest": int64(1)}, "memory": guest},
			"VirtualMachinePreference":          {"requirements": map[string]any{"memory": guest}},
			"VirtualMachineClusterPreference":   {"requirements": map[string]any{"memory": guest}},
		} {
			object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
			object.SetGroupVersionKind(v1beta1.GroupVersion.WithKind(kind))
			object.SetName("endless")
			if !strings.Contains(kind, "Cluster") {
				object.SetNamespace(ns)
			}
			path := "spec.memory.guest"
			if strings.Contains(kind, "Preference") {
				path = "spec.requirements.memory.guest"
			}
			expectInvalid(k8s.Create(ctx, object), path)
		}
		vmi := &unstructured.Unstructured{
			Object: map[string]any{"spec": map[string]any{"domain": map[string]any{"devices": map[string]any{},
				"memory": guest}}}}
		vmi.SetGroupVersionKind(v1.GroupVersion.WithKind("VirtualMachineInstance"))
		vmi.SetNamespace(ns)
		vmi.SetName("endless")
		Expect(k8s.Create(ctx, vmi)).To(
			MatchError(ContainSubstring("spec.domain.memory.guest: the exponent may have at most 2 digits")))
	})

	It("are applied before a VM is validated, once they exist", func() {
		vm := newVM("sized")
		vm.Spec.Template.Spec.Domain.CPU = &v1.CPU{Sockets: 2}
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "size", Kind: "virtualmachineinstancetype"}
		Expect(k8s.Create(ctx, vm, client.DryRunAll)).To(Succeed())
		size := &v1beta1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "size"}}
		size.Spec.CPU.Guest, size.Spec.Memory.Guest = 2, resource.MustParse("1Gi")
		Expect(k8s.Create(ctx, size)).To(Succeed())
		DeferCleanup(expectGone, ctx, size)
		// The webhook reads from a cache.
		Eventually(func() error {
			return k8s.Create(ctx, vm.DeepCopy(), client.DryRunAll)
		}).WithTimeout(waitLimit).Should(
			MatchError(ContainSubstring(
				"VM field(s) spec.template.spec.domain.cpu.sockets conflicts with selected instance type")))
	})

	It("are referred to by a name or a volume", func() {
		vm := newVM("matcher")
		vm.Spec.Preference = &v1.PreferenceMatcher{}
		expectInvalid(k8s.Create(ctx, vm), "spec.preference")
		vm.Spec.Preference = &v1.PreferenceMatcher{Name: "a", RevisionName: "revision-of-a"}
		Expect(k8s.Create(ctx, vm)).To(Succeed())
		DeferCleanup(expectGone, ctx, vm)
		vm.Spec.Preference.Name = "b"
		expectInvalid(k8s.Update(ctx, vm), "spec.preference.revisionName")
	})
})
