// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package export

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/cdi"
	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	"github.com/vireo-project/vireo/api/csi"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/health"
)

var now = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// export is an export of a claim, VM or snapshot.
func exportOf(kind, group, name string) *Observed {
	vmExport := &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "export", UID: "uid", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute)),
	}}
	vmExport.Spec.Source = corev1.TypedLocalObjectReference{Kind: kind, Name: name}
	if group != "" {
		vmExport.Spec.Source.APIGroup = &group
	}
	return &Observed{
		Now: now, Export: vmExport, Claims: map[string]*corev1.PersistentVolumeClaim{}, Unfilled: map[string]string{},
		Used: map[string]bool{}, Config: Config{Image: "exporter:1", CA: "CA", CAEnd: now.Add(24 * time.Hour)},
	}
}

func (w *Observed) add(claims ...*corev1.PersistentVolumeClaim) *Observed {
	for _, claim := range claims {
		w.Claims[claim.Name] = claim
	}
	return w
}

func claim(name string, changes ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := builder.MakePVC(name).Namespace("default").Bound("1Gi").Obj()
	for _, change := range changes {
		change(c)
	}
	return c
}

func diskContent(c *corev1.PersistentVolumeClaim) {
	c.Annotations = map[string]string{cdi.ContentTypeAnnotation: "kubevirt"}
}

func block(c *corev1.PersistentVolumeClaim) {
	c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
}

func claimWorld(changes ...func(*corev1.PersistentVolumeClaim)) *Observed {
	return exportOf(KindClaim, "", "data").add(claim("data", changes...))
}

func exportedVM() *v1.VirtualMachine {
	vm := builder.MakeVM("vm").Namespace("default").UID("vm-uid").Strategy(v1.RunStrategyHalted).
		Template(builder.MakeVMI("vm").PVC("root", "root").PVC("more", "more")).Obj()
	vm.Annotations = map[string]string{"mine": "1", firmware.RecordAnnotation: "identity",
		"kubevirt.io/latest-observed-api-version": "v1", corev1.LastAppliedConfigAnnotation: "{}"}
	return vm
}

func vmWorld() *Observed {
	w := exportOf(KindVM, "kubevirt.io", "vm").add(claim("root"), claim("more", block))
	w.VM = exportedVM()
	return w
}

// next plans the step, which must not fail.
func next(t *testing.T, w *Observed) *Step {
	t.Helper()
	step, err := Next(w)
	if err != nil {
		t.Fatal(err)
	}
	return step
}

// text returns the phase and the conditions of a status.
func text(status *exportv1.VirtualMachineExportStatus) string {
	out := string(status.Phase)
	for _, kind := range []exportv1.ConditionType{exportv1.ConditionReady, exportv1.ConditionPVC,
		exportv1.ConditionVolumesCreated} {
		if c := conditions.Find(status.Conditions, kind); c != nil {
			out += "; " + string(kind) + "=" + string(c.Status) + " " + c.Reason + " " + c.Message
		}
	}
	return out
}

func TestSourcesThatWait(t *testing.T) {
	for name, tc := range map[string]struct {
		world *Observed
		want  string
	}{
		"no claim":     {exportOf(KindClaim, "", "data"), "Pending; Ready=False Initializing ; PVCReady=False PVCNotFound PersistentVolumeClaim default/data not found"},
		"a used claim": {func() *Observed { w := claimWorld(); w.Used["data"] = true; return w }(), "Pending; Ready=False InUse PersistentVolumeClaim default/data is in use; PVCReady=True PVCBound "},
		"an import":    {func() *Observed { w := claimWorld(); w.Unfilled["data"] = ""; return w }(), "Pending; Ready=False PVCPending PersistentVolumeClaim default/data is not populated; PVCReady=True PVCBound "},
		"no importer":  {func() *Observed { w := claimWorld(); w.Unfilled["data"] = "install it"; return w }(), "Pending; Ready=False PVCPending PersistentVolumeClaim default/data is not populated: install it; PVCReady=True PVCBound "},
		"no importer for a VM": {
			func() *Observed { w := vmWorld(); w.Unfilled["root"], w.Unfilled["more"] = "", "install it"; return w }(),
			"Pending; Ready=False VolumesNotPopulated Not all volumes in the Virtual Machine default/vm are populated: install it; PVCReady=True PVCBound ",
		},
		"no VM":        {exportOf(KindVM, "kubevirt.io", "vm"), "Skipped; Ready=False VMNotFound Virtual Machine default/vm not found"},
		"a running VM": {func() *Observed { w := vmWorld(); w.Running = true; return w }(), "Pending; Ready=False InUse Virtual Machine default/vm is running; PVCReady=True PVCBound "},
		"a VM's used claim": {
			func() *Observed { w := vmWorld(); w.Used["more"] = true; return w }(), "Pending; Ready=False InUse PersistentVolumeClaim default/more is in use; PVCReady=True PVCBound ",
		},
		"a VM without a claim": {
			func() *Observed { w := vmWorld(); delete(w.Claims, "more"); return w }(),
			"Pending; Ready=False VolumesNotPopulated Not all volumes in the Virtual Machine default/vm are populated; PVCReady=False PVCNotFound PersistentVolumeClaim default/more not found",
		},
		"a VM without volumes": {
			func() *Observed { w := vmWorld(); w.VM.Spec.Template.Spec.Volumes = nil; return w }(), "Skipped; Ready=False VMNoVolumes Virtual Machine default/vm has no volumes",
		},
		"no snapshot": {
			exportOf(KindSnapshot, "snapshot.kubevirt.io", "snap"),
			"Skipped; Ready=False VMSnapshotNotFound VirtualMachineSnapshot default/snap not found; " +
				"VolumesCreated=False VMSnapshotNoVolumes VirtualMachineSnapshot default/snap does not contain any volume snapshots",
		},
		"no backup": {
			exportOf(KindBackup, "backup.kubevirt.io", "b"),
			"Skipped; Ready=False Initializing VirtualMachineBackup default/b not found",
		},
		"a template": {
			exportOf("VirtualMachineTemplate", "template.kubevirt.io", "t"),
			"Pending; Ready=False Initializing sources of the kind VirtualMachineTemplate are not exported: use a PersistentVolumeClaim, a VirtualMachine or a VirtualMachineSnapshot",
		},
		"no image":     {func() *Observed { w := claimWorld(); w.Config.Image = ""; return w }(), "Pending; Ready=False PodPending The installation has no image of virt-exportserver: virt-controller needs VIRT_EXPORTSERVER_IMAGE; PVCReady=True PVCBound "},
		"no authority": {func() *Observed { w := claimWorld(); w.Config.CA = ""; return w }(), "Pending; Ready=False PodPending There is no authority for the certificates of exporters yet; PVCReady=True PVCBound "},
	} {
		t.Run(name, func(t *testing.T) {
			step := next(t, tc.world)
			if got := text(step.Status); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			expectHealth(t, step, health.InProgress)
			if step.Pod != nil || !hasNoAddresses(step.Status) {
				t.Errorf("a Pod is made: %+v", step)
			}
			// What is watched is not polled: the export is planned again when its time is over.
			interval := poll
			if strings.HasPrefix(tc.want, "Skipped") || strings.Contains(tc.want, "Initializing") {
				interval = 2*time.Hour - time.Minute
			}
			if step.Service == nil || step.RequeueAfter != interval {
				t.Errorf("got Service %v, again after %s", step.Service, step.RequeueAfter)
			}
			// A Pod of a source that cannot be exported any more is deleted.
			if tc.world.Config.Image != "" && tc.world.Config.CA != "" {
				tc.world.Pod = podOf(tc.world, corev1.PodRunning)
				if step := next(t, tc.world); !step.Delete || step.Paused != strings.Contains(tc.want, "InUse") {
					t.Errorf("got %+v", step)
				}
			}
		})
	}
}

// The longer an export waits for the same, the less often what is not watched is read.
func TestPolling(t *testing.T) {
	w := claimWorld(diskContent)
	w.Service = serviceOf(w)
	w.Used["data"] = true
	var after []time.Duration
	for range 8 {
		step := next(t, w)
		after = append(after, step.RequeueAfter)
		w.Export.Status, w.Now = step.Status, w.Now.Add(step.RequeueAfter)
	}
	const s = time.Second
	if want := []time.Duration{10 * s, 10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 300 * s, 300 * s}; !slices.Equal(after,
		want) {
		t.Fatalf("got %v, want %v", after, want)
	}
	// Another reason begins anew, although the status is the same.
	w.Used["data"], w.Unfilled["data"] = false, ""
	step := next(t, w)
	if step.RequeueAfter != poll ||
		!conditions.Find(step.Status.Conditions, exportv1.ConditionReady).LastTransitionTime.Time.Equal(w.Now) {
		t.Errorf("got %+v", step)
	}
	// So it is with a Pod that does not start.
	delete(w.Unfilled, "data")
	step = next(t, w)
	w.Export.Status, w.Pod = step.Status, podOf(w, corev1.PodPending)
	w.Now = w.Now.Add(2 * time.Minute)
	if step := next(t, w); step.RequeueAfter != 2*time.Minute {
		t.Errorf("got %+v", step)
	}
}

// podOf returns the Pod of an export in a phase.
func podOf(w *Observed, phase corev1.PodPhase, changes ...func(*corev1.Pod)) *corev1.Pod {
	s := w.source()
	served, _, _ := w.content(&s)
	pod := w.pod(&s, served)
	pod.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
	pod.Status.Phase = phase
	if phase == corev1.PodRunning {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func serviceOf(w *Observed) *corev1.Service { return w.service() }

func TestPodIsMadeOnce(t *testing.T) {
	w := claimWorld(diskContent)
	step := next(t, w)
	if step.Service == nil || step.Pod == nil || !step.Token || step.Certificate == "" ||
		!step.CertificateEnd.Equal(now.Add(2*time.Hour+4*time.Minute)) {
		t.Fatalf("got %+v", step)
	}
	again := next(t, w)
	if again.Certificate != step.Certificate {
		t.Error("the name of the Secret is not stable")
	}
	if got := text(step.Status); got != "Pending; Ready=False PodPending The exporter's Pod waits for its volumes and for the Secret export-token-export with the key token; PVCReady=True PVCBound " {
		t.Errorf("got %s", got)
	}
	w.Export.Status, w.Service, w.Pod = step.Status, serviceOf(w), podOf(w, corev1.PodPending)
	w.Pod.CreationTimestamp = metav1.NewTime(now)
	step = next(t, w)
	if step.Service != nil || step.Pod != nil || step.Token || step.Delete || step.Content != "" {
		t.Errorf("got %+v", step)
	}
}

// The Secret that existed may have been that of an earlier export of the name, and be deleted after it.
func TestATokenThatIsGoneIsMadeAgain(t *testing.T) {
	w := claimWorld(diskContent)
	w.Export.Status, w.Service, w.Pod = next(t, w).Status, serviceOf(w), podOf(w, corev1.PodPending)
	step := next(t, w)
	if !step.Token || step.RequeueAfter != restart {
		t.Errorf("got %+v", step)
	}
	w.Pod = podOf(w, corev1.PodRunning)
	if step := next(t, w); step.Token {
		t.Error("the Pod runs, and so it has a token")
	}
	w.Export.Spec.TokenSecretRef, w.Pod = ptr.To("mine"), podOf(w, corev1.PodPending)
	if step := next(t, w); step.Token {
		t.Error("a token of the user is made")
	}
}

// expectHealth checks what kstatus concludes from the status of an export.
func expectHealth(t *testing.T, step *Step, want string) {
	t.Helper()
	if got := health.Kstatus(t, &exportv1.VirtualMachineExport{Status: step.Status}); got != want {
		t.Errorf("kstatus: got %s, want %s", got, want)
	}
}

func TestReadyExport(t *testing.T) {
	w := claimWorld(diskContent)
	w.Service, w.Pod = serviceOf(w), podOf(w, corev1.PodRunning)
	w.Config.External = &External{Host: "export.example", CA: "OUTER"}
	w.Pod = podOf(w, corev1.PodRunning)
	step := next(t, w)
	if got := text(step.Status); got != "Ready; Ready=True PodReady ; PVCReady=True PVCBound " {
		t.Fatalf("got %s", got)
	}
	expectHealth(t, step, health.Current)
	links := step.Status.Links
	formats := links.Internal.Volumes[0].Formats
	if links.Internal.Cert != "CA" || len(formats) != 2 ||
		formats[0].Url != "https://virt-export-export.default.svc/volumes/data/disk.img" ||
		formats[1].Url != "https://virt-export-export.default.svc/volumes/data/disk.img.gz" {
		t.Errorf("got %+v", links.Internal)
	}
	expectOnlyToken(t, links.Internal)
	want := "https://export.example/api/export.kubevirt.io/v1/namespaces/default/virtualmachineexports/export/volumes/data/disk.img"
	if links.External.Cert != "OUTER" || links.External.Volumes[0].Formats[0].Url != want {
		t.Errorf("got %+v", links.External)
	}
	w.Export.Status = step.Status
	w.Now = w.Now.Add(time.Second)
	if again := next(t, w); !conditionsEqual(again.Status, step.Status) || again.RequeueAfter != pollReady {
		t.Errorf("got %+v", again)
	}
}

// hasNoAddresses reports whether a status has links without addresses: clients of KubeVirt find them from the
// beginning.
func hasNoAddresses(status *exportv1.VirtualMachineExportStatus) bool {
	return status.Links != nil && *status.Links == exportv1.VirtualMachineExportLinks{}
}

// expectOnlyToken expects that of the manifests there is only the Secret with the token.
func expectOnlyToken(t *testing.T, link *exportv1.VirtualMachineExportLink) {
	t.Helper()
	want := exportv1.VirtualMachineExportManifest{Type: exportv1.AuthHeader,
		Url: "https://virt-export-export.default.svc/internal/manifests/secret"}
	if len(link.Manifests) != 1 || link.Manifests[0] != want {
		t.Errorf("the manifests are %+v", link.Manifests)
	}
}

func conditionsEqual(a, b *exportv1.VirtualMachineExportStatus) bool {
	first, _ := json.Marshal(a)
	second, _ := json.Marshal(b)
	return string(first) == string(second)
}

func TestFormats(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.PersistentVolumeClaim)
		want   content.Volume
	}{
		"files":            {func(*corev1.PersistentVolumeClaim) {}, content.Volume{Name: "data"}},
		"a device":         {block, content.Volume{Name: "data", Block: true, Disk: true}},
		"an imported disk": {diskContent, content.Volume{Name: "data", Disk: true}},
		"an imported archive": {func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{cdi.ContentTypeAnnotation: "archive"}
		}, content.Volume{Name: "data"}},
		"an imported disk by default": {func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{cdi.ContentTypeAnnotation: ""}
		}, content.Volume{Name: "data", Disk: true}},
		"of a DataVolume": {func(c *corev1.PersistentVolumeClaim) {
			dv := &cdi.DataVolume{ObjectMeta: metav1.ObjectMeta{Name: "data"}}
			c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(dv, cdi.GroupVersion.WithKind("DataVolume"))}
		}, content.Volume{Name: "data", Disk: true}},
	} {
		w := claimWorld(tc.change)
		s := w.source()
		if len(s.volumes) != 1 || s.volumes[0].Volume != tc.want {
			t.Errorf("%s: got %+v", name, s.volumes)
		}
	}
}

// TestFormatsOfAVM has volumes of a VM on claims that contain files.
func TestFormatsOfAVM(t *testing.T) {
	filesystem := func(spec *v1.VirtualMachineInstanceSpec) {
		spec.Domain.Devices.Disks = slices.DeleteFunc(spec.Domain.Devices.Disks,
			func(d v1.Disk) bool { return d.Name == "root" })
		spec.Domain.Devices.Filesystems = []v1.Filesystem{{Name: "root"}}
	}
	memoryDump := func(spec *v1.VirtualMachineInstanceSpec) {
		spec.Domain.Devices.Disks = slices.DeleteFunc(spec.Domain.Devices.Disks,
			func(d v1.Disk) bool { return d.Name == "root" })
		dump := &v1.MemoryDumpVolumeSource{}
		dump.ClaimName = "root"
		spec.Volumes[0].VolumeSource = v1.VolumeSource{MemoryDump: dump}
	}
	for name, tc := range map[string]struct {
		change func(*v1.VirtualMachineInstanceSpec)
		disk   bool
	}{
		"a disk":                  {func(*v1.VirtualMachineInstanceSpec) {}, true},
		"a volume without a disk": {func(spec *v1.VirtualMachineInstanceSpec) { spec.Domain.Devices.Disks = nil }, true},
		"a file system":           {filesystem, false},
		"a memory dump":           {memoryDump, false},
	} {
		w := vmWorld()
		tc.change(&w.VM.Spec.Template.Spec)
		s := w.source()
		if len(s.volumes) != 2 || s.volumes[0].Name != "root" || s.volumes[0].Disk != tc.disk {
			t.Errorf("%s: got %+v", name, s.volumes)
		}
	}
}

func TestLabelsOfComponentsAreNotCopied(t *testing.T) {
	w := vmWorld()
	w.Export.Labels = map[string]string{"mine": "1", "kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "other",
		"kubevirt.io.x": "y", ServiceLabel: "other"}
	w.Export.Annotations = map[string]string{"mine": "2", "kubevirt.io/domain": "other",
		corev1.LastAppliedConfigAnnotation: "{}"}
	step := next(t, w)
	service, pod := step.Service, step.Pod
	if len(service.Labels) != 2 || service.Labels["mine"] != "1" || service.Labels["kubevirt.io"] != "virt-exporter" ||
		len(service.Annotations) != 1 || service.Annotations["mine"] != "2" ||
		service.Spec.Selector[ServiceLabel] != "export" {
		t.Errorf("the Service is %v", service)
	}
	if len(pod.Labels) != 3 || pod.Labels["mine"] != "1" || pod.Labels["kubevirt.io"] != "virt-exporter" ||
		pod.Labels[ServiceLabel] != "export" {
		t.Errorf("the labels are %v", pod.Labels)
	}
	if len(pod.Annotations) != 4 || pod.Annotations["mine"] != "2" {
		t.Errorf("the annotations are %v", pod.Annotations)
	}
}

func TestResourcesOfThePod(t *testing.T) {
	w := vmWorld()
	w.Config.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("0")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")},
	}
	got := next(t, w).Pod.Spec.Containers[0].Resources
	want := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"),
			corev1.ResourceMemory: resource.MustParse("100Mi")},
		Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"),
			corev1.ResourceMemory: resource.MustParse("100Mi")},
	}
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestPodHasNoPrivileges(t *testing.T) {
	pod := next(t, vmWorld()).Pod
	spec := &pod.Spec
	c := &spec.Containers[0]
	if *spec.AutomountServiceAccountToken || !*spec.SecurityContext.RunAsNonRoot ||
		spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
		*c.SecurityContext.AllowPrivilegeEscalation || !*c.SecurityContext.ReadOnlyRootFilesystem ||
		c.SecurityContext.Capabilities.Drop[0] != "ALL" {
		t.Errorf("got %+v", spec)
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if c.Resources.Requests[name] == (resource.Quantity{}) || c.Resources.Limits[name] == (resource.Quantity{}) {
			t.Errorf("%s has no request or limit, which a quota may demand", name)
		}
	}
	for _, m := range c.VolumeMounts {
		if !m.ReadOnly {
			t.Errorf("%s is writable", m.Name)
		}
	}
	if len(c.VolumeDevices) != 1 || c.VolumeDevices[0].DevicePath != "/dev/export-volumes/more" {
		t.Errorf("got %+v", c.VolumeDevices)
	}
	for _, v := range spec.Volumes {
		if claim := v.PersistentVolumeClaim; claim != nil && claim.ReadOnly != (claim.ClaimName == "more") {
			t.Errorf("read-only of %s is %t", claim.ClaimName, claim.ReadOnly)
		}
	}
	if *spec.ActiveDeadlineSeconds != 2*60*60-60 {
		t.Errorf("the deadline is %d", *spec.ActiveDeadlineSeconds)
	}
	parsed, err := content.Parse([]byte(pod.Annotations[ContentAnnotation]))
	if err != nil || len(parsed.Volumes) != 2 {
		t.Errorf("got %+v, %v", parsed, err)
	}
}

func TestManifests(t *testing.T) {
	w := vmWorld()
	w.VM.Spec.Template.Spec.Volumes[0].VolumeSource = v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}}
	w.VM.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "root"},
		Spec: cdiv1beta1.DataVolumeSpec{
			Source: &cdiv1beta1.DataVolumeSource{Blank: &cdiv1beta1.DataVolumeBlankImage{}},
		}}}
	w.VM.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small"}
	w.Service, w.Pod = serviceOf(w), podOf(w, corev1.PodRunning)
	step := next(t, w)
	manifests := step.Status.Links.Internal.Manifests
	if len(manifests) != 2 || manifests[0].Url != "https://virt-export-export.default.svc/internal/manifests/all" ||
		manifests[1].Url != "https://virt-export-export.default.svc/internal/manifests/secret" {
		t.Errorf("got %+v", manifests)
	}
	c, err := content.Parse([]byte(w.Pod.Annotations[ContentAnnotation]))
	if err != nil {
		t.Fatal(err)
	}
	list := c.AllManifests(*c.Manifests.Internal)
	raw, err := json.Marshal(list)
	if err != nil || len(list) != 3 {
		t.Fatalf("got %s, %v", raw, err)
	}
	for _, want := range []string{
		`"http":{"certConfigMap":"export-ca-cm-export","secretExtraHeaders":["header-secret-export"],"url":"https://virt-export-export.default.svc/volumes/root/disk.img.gz"}`,
		`"metadata":{"name":"more"},"spec":{"source":{"http":`, `"volumeMode":"Block"`, `"annotations":{"kubevirt.io/guest-identity":"identity","mine":"1"}`, `"storage":"1Gi"`,
	} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("%s is not in %s", want, raw)
		}
	}
	for _, unwanted := range []string{`"blank"`, `"instancetype"`, `"status"`, `"uid"`} {
		if strings.Contains(string(raw), unwanted) {
			t.Errorf("%s is in %s", unwanted, raw)
		}
	}
	// A VM that is too large, or that cannot be expanded, is exported without manifests, and the status says so.
	w.VM.Spec.Template.ObjectMeta.Annotations = map[string]string{"large": strings.Repeat("x", content.MaxSize)}
	step = next(t, w)
	if !strings.Contains(text(step.Status), "too large") || step.Content == "" {
		t.Errorf("got %s", text(step.Status))
	}
	expectOnlyToken(t, step.Status.Links.Internal)
	w = vmWorld()
	w.Problem = "VirtualMachineInstancetype small does not exist"
	w.Service, w.Pod = serviceOf(w), podOf(w, corev1.PodRunning)
	step = next(t, w)
	if !strings.Contains(text(step.Status), "There are no manifests. VirtualMachineInstancetype small") {
		t.Errorf("got %s", text(step.Status))
	}
	expectOnlyToken(t, step.Status.Links.Internal)
}

func TestPodOverItsLife(t *testing.T) {
	foreign := func(p *corev1.Pod) { p.OwnerReferences = nil }
	ended := func(ago time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
			p.Status.ContainerStatuses = []corev1.ContainerStatus{
				{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					ExitCode: 1, Message: "it failed", FinishedAt: metav1.NewTime(now.Add(-ago)),
				}}}}
		}
	}
	for name, tc := range map[string]struct {
		phase  corev1.PodPhase
		change func(*corev1.Pod)
		want   string
		delete bool
	}{
		"waits for the token": {corev1.PodPending, func(*corev1.Pod) {}, "Pending; Ready=False PodPending The exporter's Pod waits for its volumes and for the Secret export-token-export", false},
		"is not scheduled": {corev1.PodPending, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Message: "no node"}}
		}, "Pending; Ready=False PodPending The exporter's Pod is not scheduled: no node", false},
		"has no image": {corev1.PodPending, func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{
				{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not there"}}}}
		}, "Pending; Ready=False PodPending The exporter's Pod does not start: ErrImagePull: not there", false},
		"is not ready":     {corev1.PodRunning, func(p *corev1.Pod) { p.Status.Conditions = nil }, "Pending; Ready=False Unknown The exporter is not ready yet", false},
		"has failed":       {corev1.PodFailed, ended(time.Second), "Pending; Ready=False Unknown The exporter's Pod has ended with exit code 1: it failed", false},
		"failed long ago":  {corev1.PodFailed, ended(time.Minute), "Pending; Ready=False Unknown The exporter's Pod has ended", true},
		"has completed":    {corev1.PodSucceeded, func(*corev1.Pod) {}, "Terminated; Ready=False PodCompleted The exporter's Pod has ended", true},
		"of somebody else": {corev1.PodRunning, foreign, "Pending; Ready=False PodPending Pod default/virt-export-export exists and does not belong", false},
		"is being deleted": {corev1.PodRunning, func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }, "Pending; Ready=False PodPending The former Pod", false},
		"has other claims": {corev1.PodRunning, func(p *corev1.Pod) {
			p.Spec.Volumes[len(p.Spec.Volumes)-1].PersistentVolumeClaim.ClaimName = "other"
		}, "Pending; Ready=False PodPending The exporter's Pod is replaced", true},
		"has files instead of a disk": {corev1.PodRunning, func(p *corev1.Pod) {
			p.Annotations[ContentAnnotation] = strings.ReplaceAll(p.Annotations[ContentAnnotation], `"disk":true`, `"disk":false`)
		}, "Pending; Ready=False PodPending The exporter's Pod is replaced", true},
		"has an old certificate": {corev1.PodRunning, func(p *corev1.Pod) {
			p.Annotations[CertificateEndAnnotation] = now.Add(time.Minute).Format(time.RFC3339)
		}, "Pending; Ready=False PodPending The exporter's Pod is replaced", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := claimWorld(diskContent)
			w.Service, w.Pod = serviceOf(w), podOf(w, tc.phase, tc.change)
			step := next(t, w)
			if got := text(step.Status); !strings.HasPrefix(got, tc.want) || step.Delete != tc.delete || step.Pod != nil ||
				!hasNoAddresses(step.Status) {
				t.Errorf("got %s, %+v", got, step)
			}
		})
	}
}

func TestContentOfARunningPodIsRenewed(t *testing.T) {
	w := vmWorld()
	w.Service, w.Pod = serviceOf(w), podOf(w, corev1.PodRunning)
	w.Config.CA = "NEW"
	step := next(t, w)
	if !strings.Contains(step.Content, "NEW") || step.Delete || step.Status.Phase != exportv1.Ready {
		t.Errorf("got %+v", step)
	}
}

func TestForeignService(t *testing.T) {
	w := claimWorld(diskContent)
	w.Service = serviceOf(w)
	w.Service.OwnerReferences = nil
	if step := next(t, w); step.Pod != nil || step.Service != nil ||
		!strings.Contains(text(step.Status), "does not belong to the export") {
		t.Errorf("got %s", text(step.Status))
	}
}

func TestExpiry(t *testing.T) {
	w := claimWorld(diskContent)
	w.Export.Spec.TTLDuration = &metav1.Duration{Duration: 5 * time.Minute}
	if step := next(t, w); step.Expired || step.RequeueAfter > 4*time.Minute ||
		!step.Status.TTLExpirationTime.Time.Equal(now.Add(4*time.Minute)) {
		t.Errorf("got %+v", step)
	}
	w.Now = now.Add(4 * time.Minute)
	if step := next(t, w); !step.Expired || step.Status != nil {
		t.Errorf("got %+v", step)
	}
}

func TestGivenToken(t *testing.T) {
	w := claimWorld(diskContent)
	w.Export.Spec.TokenSecretRef = ptr.To("mine")
	if step := next(t, w); step.Token || *step.Status.TokenSecretRef != "mine" ||
		step.Pod.Spec.Volumes[1].Secret.SecretName != "mine" {
		t.Errorf("got %+v", step)
	}
}

func snapshotWorld() *Observed {
	w := exportOf(KindSnapshot, "snapshot.kubevirt.io", "snap")
	w.Snapshot = &v1beta1.VirtualMachineSnapshot{Status: &v1beta1.VirtualMachineSnapshotStatus{ReadyToUse: ptr.To(true)}}
	w.Snapshot.Spec.Source.Name = "vm"
	w.Stored = exportedVM()
	w.Content = &v1beta1.VirtualMachineSnapshotContent{}
	for _, name := range []string{"root", "more"} {
		old := claim(name)
		if name == "more" {
			block(old)
		}
		w.Content.Spec.VolumeBackups = append(w.Content.Spec.VolumeBackups, v1beta1.VolumeBackup{
			VolumeName: name, VolumeSnapshotName: ptr.To("taken-" + name),
			PersistentVolumeClaim: v1beta1.PersistentVolumeClaim{ObjectMeta: old.ObjectMeta, Spec: old.Spec},
		})
	}
	w.VolumeSnapshots = map[string]*csi.VolumeSnapshot{}
	for _, name := range []string{"taken-root", "taken-more"} {
		w.VolumeSnapshots[name] = &csi.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Status:     &csi.VolumeSnapshotStatus{RestoreSize: ptr.To(resource.MustParse("2Gi"))},
		}
	}
	return w
}

func TestSnapshot(t *testing.T) {
	w := snapshotWorld()
	step := next(t, w)
	if len(step.Claims) != 2 || step.Pod != nil {
		t.Fatalf("got %+v", step)
	}
	made := step.Claims[0]
	size := made.Spec.Resources.Requests[corev1.ResourceStorage]
	if made.Name != "export-root" || made.Spec.DataSourceRef.Name != "taken-root" || size.String() != "2Gi" ||
		!metav1.IsControlledBy(made, w.Export) {
		t.Errorf("got %+v", made)
	}
	if got := text(step.Status); !strings.HasPrefix(got, "Pending; Ready=False Initializing") ||
		!strings.Contains(got, "VolumesCreated=False NotAllPVCsCreated") {
		t.Errorf("got %s", got)
	}
	// Unbound ones may wait for their first consumer.
	w.add(step.Claims...)
	w.Service = serviceOf(w)
	step = next(t, w)
	if len(step.Claims) != 0 || step.Pod == nil ||
		!strings.Contains(text(step.Status), "VolumesCreated=False NotAllPVCsReady") ||
		*step.Status.VirtualMachineName != "vm" {
		t.Fatalf("got %s, %+v", text(step.Status), step)
	}
	for _, c := range w.Claims {
		c.Status.Phase = corev1.ClaimBound
	}
	w.Pod = podOf(w, corev1.PodRunning)
	step = next(t, w)
	if got := text(step.Status); got != "Ready; Ready=True PodReady ; VolumesCreated=True AllPVCsReady " {
		t.Fatalf("got %s", got)
	}
	// They do not need the VolumeSnapshots any more.
	w.VolumeSnapshots = nil
	if again := next(t, w); again.Status.Phase != exportv1.Ready {
		t.Errorf("got %s", text(again.Status))
	}
	links := step.Status.Links.Internal
	if len(links.Volumes) != 2 || links.Volumes[0].Name != "export-root" || len(links.Manifests) != 2 ||
		links.Volumes[0].Formats[0].Format != exportv1.KubeVirtRaw {
		t.Errorf("got %+v", links)
	}
}

// The volumes of a snapshot's export have the names of the claims that are created, and the VM that is made from the
// manifests has its own.
func TestNamesInASnapshotsExport(t *testing.T) {
	w := snapshotWorld()
	w.add(next(t, w).Claims...)
	for _, c := range w.Claims {
		c.Status.Phase = corev1.ClaimBound
	}
	w.Service = serviceOf(w)
	w.Pod = podOf(w, corev1.PodRunning)
	links := next(t, w).Status.Links.Internal
	if url := links.Volumes[0].Formats[0].Url; !strings.HasSuffix(url, "/volumes/export-root/disk.img") {
		t.Errorf("got %s", url)
	}
	served, err := content.Parse([]byte(w.Pod.Annotations[ContentAnnotation]))
	if err != nil || len(served.Volumes) != 2 || served.Volumes[0].Name != "export-root" ||
		served.Volumes[0].ClaimName() != "root" {
		t.Fatalf("got %+v, %v", served, err)
	}
	names := map[string]string{}
	for template, volume := range served.Manifests.Templates {
		names[template] = volume
	}
	for _, dv := range served.Manifests.DataVolumes {
		names[dv.Name] = dv.Volume
	}
	if want := map[string]string{"root": "export-root", "more": "export-more"}; !maps.Equal(names, want) {
		t.Errorf("got %v", names)
	}
}

// Users may write contents. The claims of an export are in its namespace, and filled from VolumeSnapshots of it,
// whatever is in the content.
func TestAnExportReachesNoOtherNamespace(t *testing.T) {
	w := snapshotWorld()
	w.Content.Spec.Source.VirtualMachine = &v1beta1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "other",
		Name: "vm"}}
	for i := range w.Content.Spec.VolumeBackups {
		old := &w.Content.Spec.VolumeBackups[i].PersistentVolumeClaim
		old.Namespace, old.Spec.VolumeName = "other", "pv-of-other"
		old.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "other"}}
		old.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "secret",
			Namespace: ptr.To("other")}
	}
	step := next(t, w)
	if len(step.Claims) != 2 || step.Service.Namespace != "default" {
		t.Fatalf("got %+v", step)
	}
	for _, made := range step.Claims {
		spec := &made.Spec
		if made.Namespace != "default" || spec.VolumeName != "" || spec.Selector != nil || spec.DataSource.Kind != csi.Kind ||
			spec.DataSourceRef.Kind != csi.Kind || spec.DataSourceRef.Namespace != nil {
			t.Errorf("got claim %+v", made)
		}
	}
	w.add(step.Claims...)
	w.Service = serviceOf(w)
	pod := next(t, w).Pod
	if pod == nil || pod.Namespace != "default" {
		t.Fatalf("got Pod %+v", pod)
	}
	for i := range pod.Spec.Volumes {
		if from := pod.Spec.Volumes[i].PersistentVolumeClaim; from != nil && w.Claims[from.ClaimName] == nil {
			t.Errorf("the exporter reads claim %s", from.ClaimName)
		}
	}
}

func TestSnapshotsThatCannotBeExported(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Observed)
		want   string
	}{
		"not ready":  {func(w *Observed) { w.Snapshot.Status.ReadyToUse = nil }, "is not ready"},
		"no content": {func(w *Observed) { w.Content = nil }, "is not ready"},
		"no volumes": {func(w *Observed) { w.Content.Spec.VolumeBackups = nil }, "Skipped; Ready=False Initializing VirtualMachineSnapshot default/snap does not contain any volume snapshots"},
		"no VolumeSnapshot": {
			func(w *Observed) {
				delete(w.VolumeSnapshots,
					"taken-more")
			}, "VolumeSnapshot default/taken-more of volume more does not exist",
		},
		"the claim of another": {func(w *Observed) { w.add(claim("export-root")) }, "PersistentVolumeClaim default/export-root exists and does not belong"},
		"a claim twice": {func(w *Observed) {
			w.Content.Spec.VolumeBackups[1].PersistentVolumeClaim.Name = "root"
		}, "has two volumes of PersistentVolumeClaim root"},
		"a path in place of a name": {func(w *Observed) {
			w.Content.Spec.VolumeBackups[1].PersistentVolumeClaim.Name = "../var"
		}, `has a volume of PersistentVolumeClaim "../var", which is not a valid name of a claim`},
		// The claim that would be made of it has a valid name.
		"a path that is shortened": {func(w *Observed) {
			w.Content.Spec.VolumeBackups[1].PersistentVolumeClaim.Name = strings.Repeat("x",
				validation.DNS1123SubdomainMaxLength) + "/../../var"
		}, "which is not a valid name of a claim"},
		"no name": {func(w *Observed) {
			w.Content.Spec.VolumeBackups[1].PersistentVolumeClaim.Name = ""
		}, `PersistentVolumeClaim "", which is not a valid name of a claim`},
		"too many volumes": {func(w *Observed) {
			w.Content.Spec.VolumeBackups = make([]v1beta1.VolumeBackup, 1000)
		}, "has 1000 volumes, and a VirtualMachine has at most"},
	} {
		w := snapshotWorld()
		tc.change(w)
		step := next(t, w)
		if got := text(step.Status); !strings.Contains(got, tc.want) || step.Pod != nil {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

func TestLongNames(t *testing.T) {
	w := claimWorld(diskContent)
	w.Export.Name = strings.Repeat("long.", 40) + "name"
	pod := next(t, w).Pod
	if len(pod.Name) > 63 || len(pod.Labels[ServiceLabel]) > 63 ||
		serviceOf(w).Spec.Selector[ServiceLabel] != pod.Labels[ServiceLabel] || strings.Contains(pod.Name, ".") {
		t.Errorf("got %s, %v", pod.Name, pod.Labels)
	}
	other := w.Export.Name + "x"
	if content.ServiceName(other) == content.ServiceName(w.Export.Name) {
		t.Error("two exports have the same Service")
	}
	w.Export.Name = strings.Repeat("x", validation.DNS1123SubdomainMaxLength)
	token, _ := TokenName(w.Export)
	w.Export.Name = w.Export.Name[1:]
	if another, _ := TokenName(w.Export); len(validation.IsDNS1123Subdomain(token)) > 0 || token == another {
		t.Errorf("the Secret is %s", token)
	}
}

func TestFailed(t *testing.T) {
	if got := text(Failed(claimWorld(),
		errors.New("exceeded quota"))); got != "Pending; Ready=False PodPending exceeded quota; PVCReady=True PVCBound " {
		t.Errorf("got %s", got)
	}
}
