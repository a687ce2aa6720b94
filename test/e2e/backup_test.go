// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/exporter/content"
)

// The spec reads the backups as a user does who exports the claim.
var _ = Describe("A backup of a VM", extended(2), kvmLinuxLong(), func() {
	It("has what the running guest has written to its disks, and so has a dump its memory, and both leave nothing in the VM", func(ctx context.Context) {
		const name = "keeper"
		enableGate(ctx, "IncrementalBackup")
		namespace := newNamespace(ctx)
		target := makeClaim(namespace, "backups", corev1.PersistentVolumeFilesystem)
		// An image of a block device may occupy all of the device's size.
		target.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("768Mi")
		create(ctx, makeClaim(namespace, "files", corev1.PersistentVolumeFilesystem),
			makeClaim(namespace, "block", corev1.PersistentVolumeBlock), target,
			makeVM(namespace, name, withGracePeriod(60), withClaim("files", "files"), withClaim("block", "block")))
		before := expectReady(ctx, namespace, name)
		pod := launcherPod(ctx, before)
		expectBoots(ctx, namespace, name, 1)
		expectAgent(ctx, namespace, name, shortTimeout)
		generation := readVM(ctx, namespace, name).Generation

		By("backing it up while it runs")
		writeOn(ctx, namespace, name, writeExported, "files", "block")
		first := makeBackup(namespace, "first", name, target.Name)
		create(ctx, first)
		expectBackup(ctx, first)
		Expect(first.Status.Type).To(Equal(backupv1alpha1.Full))
		Expect(first.Status.IncludedVolumes).To(ConsistOf(HaveField("VolumeName", "files"), HaveField("VolumeName", "block")))
		Expect(meta.FindStatusCondition(first.Status.Conditions, string(backupv1alpha1.ConditionQuiesced))).To(
			HaveField("Reason", backupv1alpha1.ReasonQuiesceSucceeded))

		By("finding nothing of it in the VM")
		instance := vmi(ctx, namespace, name)
		Expect(instance.UID).To(Equal(before.UID))
		Expect(launcherPod(ctx, instance).UID).To(Equal(pod.UID))
		Expect(instance.Spec.UtilityVolumes).To(BeEmpty())
		for _, v := range instance.Status.VolumeStatus {
			Expect(ptr.Deref(v.PersistentVolumeClaimInfo, v1.PersistentVolumeClaimInfo{}).ClaimName).
				NotTo(Equal(target.Name), v.Name)
		}
		Expect(readVM(ctx, namespace, name).Generation).To(Equal(generation))

		By("backing it up again, to the same claim")
		second := makeBackup(namespace, "second", name, target.Name)
		second.Spec.SkipQuiesce = true
		create(ctx, second)
		expectBackup(ctx, second)
		Expect(meta.FindStatusCondition(second.Status.Conditions, string(backupv1alpha1.ConditionQuiesced))).To(
			HaveField("Reason", backupv1alpha1.ReasonQuiesceSkipped))

		By("reading the images")
		export := &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "images"}}
		expectVirtctl(ctx, "vmexport", "create", "-n", namespace, export.Name, "--pvc="+target.Name)
		expectExport(ctx, export, exportv1.Ready)
		archive := filepath.Join(GinkgoT().TempDir(), "backups.tar.gz")
		expectVirtctl(ctx, "vmexport", "download", "-n", namespace, export.Name, "--volume="+target.Name, "--output="+archive,
			"--port-forward", "--retry=5")
		var names []string
		eachFile(archive, ".qcow2", func(path string, data []byte) {
			directory, file, _ := strings.Cut(strings.TrimPrefix(path, name+"/"), "/")
			backup, _, _ := strings.Cut(file, "-")
			Expect(directory).To(HavePrefix(backup+"-20"), path)
			names = append(names, file)
			Expect(bytes.HasPrefix(data, []byte("QFI\xfb"))).To(BeTrue(), "%s is no qcow2 image", path)
			Expect(bytes.Contains(data, []byte(exported))).
				To(BeTrue(), "%s does not have what the guest has written: %d bytes", path, len(data))
		})
		Expect(names).To(ConsistOf("first-files.qcow2", "first-block.qcow2", "second-files.qcow2", "second-block.qcow2"))

		By("dumping its memory, and downloading that")
		dump := filepath.Join(GinkgoT().TempDir(), "memory.tar.gz")
		expectVirtctl(ctx, "memory-dump", "get", "-n", namespace, name, "--claim-name=memory", "--create-claim",
			"--storage-class="+storageClass,
			"--output="+dump, "--port-forward")
		request := readVM(ctx, namespace, name).Status.MemoryDumpRequest
		Expect(request).To(And(HaveField("Phase", v1.MemoryDumpCompleted),
			HaveField("FileName", HaveValue(HavePrefix(name+"-memory-")))))
		dumps := 0
		eachFile(dump, *request.FileName, func(_ string, data []byte) {
			dumps++
			Expect(bytes.HasPrefix(data, []byte("\x7fELF"))).To(BeTrue())
			Expect(len(data)).To(BeNumerically(">", 100<<20), "the guest has 128 MiB")
		})
		Expect(dumps).To(Equal(1))
		expectVirtctl(ctx, "memory-dump", "remove", "-n", namespace, name)
		Eventually(readVM).WithArguments(ctx, namespace,
			name).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(
			HaveField("Status.MemoryDumpRequest", BeNil()))

		By("finding the same guest as before")
		instance = vmi(ctx, namespace, name)
		Expect(instance.UID).To(Equal(before.UID))
		Expect(instance.Spec.UtilityVolumes).To(BeEmpty())
		Expect(condition(instance, v1.VirtualMachineInstanceReady)).To(HaveField("Status", corev1.ConditionTrue))
		Expect(readVM(ctx, namespace, name).Generation).To(Equal(generation))
	}, specTimeout(15*time.Minute))

	It("has only what has changed if the running guest has the tracker's checkpoint", func(ctx context.Context) {
		const name = "tracked"
		enableGate(ctx, "IncrementalBackup")
		trackLabeled(ctx)
		namespace := newNamespace(ctx)
		target := makeClaim(namespace, "backups", corev1.PersistentVolumeFilesystem)
		target.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1Gi")
		create(ctx, makeClaim(namespace, "files", corev1.PersistentVolumeFilesystem),
			makeClaim(namespace, "block", corev1.PersistentVolumeBlock), target,
			makeVM(namespace, name, withRunStrategy(v1.RunStrategyHalted), withGracePeriod(60), withClaim("files", "files"),
				withClaim("block", "block"),
				func(vm *v1.VirtualMachine) { vm.Labels = map[string]string{trackedLabel: "yes"} }))
		expectTracking := func(state v1.ChangedBlockTrackingState) {
			GinkgoHelper()
			Eventually(readVM).WithArguments(ctx, namespace,
				name).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(
				HaveField("Status.ChangedBlockTracking", HaveField("State", state)))
		}
		expectTracking(v1.ChangedBlockTrackingInitializing)
		expectVirtctl(ctx, "start", "-n", namespace, name)
		expectReady(ctx, namespace, name)
		expectBoots(ctx, namespace, name, 1)
		expectTracking(v1.ChangedBlockTrackingEnabled)

		tracker := &backupv1alpha1.VirtualMachineBackupTracker{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
			Name: "nightly"}}
		tracker.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To(v1.GroupVersion.Group),
			Kind: "VirtualMachine", Name: name}
		create(ctx, tracker)
		backUp := func(backup string, kind backupv1alpha1.BackupType, message string) {
			GinkgoHelper()
			made := makeBackup(namespace, backup, tracker.Name, target.Name)
			made.Spec.Source.APIGroup, made.Spec.Source.Kind = ptr.To(backupv1alpha1.GroupVersion.Group),
				"VirtualMachineBackupTracker"
			create(ctx, made)
			expectBackup(ctx, made)
			Expect(made.Status.Type).To(Equal(kind), "%+v", made.Status)
			Expect(meta.FindStatusCondition(made.Status.Conditions, string(backupv1alpha1.ConditionComplete)).Message).
				To(ContainSubstring(message))
			Expect(k8s.Get(ctx, client.ObjectKeyFromObject(tracker), tracker)).To(Succeed())
			Expect(tracker.Status.LatestCheckpoint.Name).To(Equal(ptr.Deref(made.Status.CheckpointName, "")))
		}
		backUp("first", backupv1alpha1.Full, "had no checkpoint")
		writeOn(ctx, namespace, name, writeExported, "files", "block")
		backUp("second", backupv1alpha1.Incremental, "since the checkpoint first-")

		By("making a full one after a restart")
		before := vmi(ctx, namespace, name)
		expectVirtctl(ctx, "restart", "-n", namespace, name)
		expectNewInstance(ctx, before)
		expectReady(ctx, namespace, name)
		expectTracking(v1.ChangedBlockTrackingEnabled)
		backUp("third", backupv1alpha1.Full, "had no checkpoint of this run")
	}, specTimeout(15*time.Minute))

	It("can be pulled, and continues from there only if all of it was read", func(ctx context.Context) {
		const name, token = "pulled", "a-token-of-this-spec"
		enableGate(ctx, "IncrementalBackup")
		trackLabeled(ctx)
		namespace := newNamespace(ctx)
		scratch := makeClaim(namespace, "scratch", corev1.PersistentVolumeFilesystem)
		scratch.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1Gi")
		create(ctx, makeClaim(namespace, "files", corev1.PersistentVolumeFilesystem), scratch,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "token"},
				StringData: map[string]string{content.TokenKey: token}},
			makeVM(namespace, name, withGracePeriod(60), withClaim("files", "files"),
				func(vm *v1.VirtualMachine) { vm.Labels = map[string]string{trackedLabel: "yes"} }))
		expectReady(ctx, namespace, name)
		expectConsole(ctx, namespace, name, bootTimeout, MatchRegexp(bootsOn("files", 1)))
		tracker := &backupv1alpha1.VirtualMachineBackupTracker{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
			Name: "nightly"}}
		tracker.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To(v1.GroupVersion.Group),
			Kind: "VirtualMachine", Name: name}
		create(ctx, tracker)
		proxy := newProxyClient(ctx)
		pull := func(backup string, kind backupv1alpha1.BackupType) *backupv1alpha1.VirtualMachineBackup {
			GinkgoHelper()
			made := makeBackup(namespace, backup, tracker.Name, scratch.Name)
			made.Spec.Source.APIGroup, made.Spec.Source.Kind = ptr.To(backupv1alpha1.GroupVersion.Group),
				"VirtualMachineBackupTracker"
			made.Spec.Mode, made.Spec.TokenSecretRef = ptr.To(backupv1alpha1.PullMode), "token"
			create(ctx, made)
			expectPullable(ctx, made)
			Expect(made.Status.Type).To(Equal(kind))
			return made
		}
		// end deletes a pull, and expects which checkpoint the tracker has then.
		end := func(made *backupv1alpha1.VirtualMachineBackup, checkpoint string) {
			GinkgoHelper()
			Expect(k8s.Delete(ctx, made)).To(Succeed())
			Eventually(func() error { return k8s.Get(ctx, client.ObjectKeyFromObject(made), made) }).WithContext(ctx).
				WithTimeout(bootTimeout).WithPolling(pollInterval).Should(MatchError(apierrors.IsNotFound, "IsNotFound"))
			Expect(k8s.Get(ctx, client.ObjectKeyFromObject(tracker), tracker)).To(Succeed())
			latest := ptr.Deref(ptr.Deref(tracker.Status, backupv1alpha1.VirtualMachineBackupTrackerStatus{}).LatestCheckpoint,
				backupv1alpha1.BackupCheckpoint{})
			Expect(latest.Name).To(Equal(checkpoint))
		}

		By("reading all data")
		first := pull("first", backupv1alpha1.Full)
		checkpoint := *first.Status.CheckpointName
		base := content.ProxyPath(namespace, first.Name)
		code, all := proxy.get(ctx, base+content.DataPath("files"), token)
		Expect(code).To(Equal(http.StatusOK))
		Expect(all).NotTo(BeEmpty())
		code, _ = proxy.get(ctx, base+content.MapPath("files"), "wrong")
		Expect(code).To(Equal(http.StatusUnauthorized))
		end(first, checkpoint)

		By("not reading what has changed")
		writeOn(ctx, namespace, name, writeExported, "files")
		end(pull("unread", backupv1alpha1.Incremental), checkpoint)

		By("reading what has changed")
		third := pull("third", backupv1alpha1.Incremental)
		checkpoint = *third.Status.CheckpointName
		changed := readChanged(ctx, proxy, content.ProxyPath(namespace, third.Name), token)
		Expect(bytes.Contains(changed, []byte(exported))).To(BeTrue(), "%d bytes have changed", len(changed))
		Expect(len(changed)).To(BeNumerically("<", len(all)/2))
		end(third, checkpoint)
		Expect(vmi(ctx, namespace, name).Spec.UtilityVolumes).To(BeEmpty())
	}, specTimeout(15*time.Minute))
})

// trackedLabel is the label of VMs whose changed blocks are tracked.
const trackedLabel = "e2e.vireo.example/tracked"

// trackLabeled has the changed blocks of VMs with trackedLabel tracked.
func trackLabeled(ctx context.Context) {
	GinkgoHelper()
	Expect(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		list := &v1.KubeVirtList{}
		if err := k8s.List(ctx, list); err != nil {
			return err
		}
		kubeVirt := &list.Items[0]
		kubeVirt.Spec.Configuration.ChangedBlockTrackingLabelSelectors = &v1.ChangedBlockTrackingSelectors{
			VirtualMachineLabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{trackedLabel: "yes"}},
		}
		return k8s.Update(ctx, kubeVirt)
	})).To(Succeed())
}

func makeBackup(namespace, name, vm, claim string) *backupv1alpha1.VirtualMachineBackup {
	made := &backupv1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	made.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To(v1.GroupVersion.Group), Kind: "VirtualMachine",
		Name: vm}
	made.Spec.PvcName = ptr.To(claim)
	return made
}

// expectBackup waits until a backup is complete, and reads it. It does not wait for one that has failed.
func expectBackup(ctx context.Context, backup *backupv1alpha1.VirtualMachineBackup) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(backup), backup)).To(Succeed())
		g.Expect(backup.Status).NotTo(BeNil())
		if meta.IsStatusConditionTrue(backup.Status.Conditions, string(backupv1alpha1.ConditionFailed)) {
			StopTrying("the backup has failed").Attach("status", backup.Status).Now()
		}
		g.Expect(meta.IsStatusConditionTrue(backup.Status.Conditions, string(backupv1alpha1.ConditionComplete))).
			To(BeTrue(), "%+v", backup.Status)
		g.Expect(backup.Finalizers).To(BeEmpty())
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}

// expectPullable waits until a backup can be pulled, and reads it.
func expectPullable(ctx context.Context, backup *backupv1alpha1.VirtualMachineBackup) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(backup), backup)).To(Succeed())
		g.Expect(backup.Status).NotTo(BeNil())
		if meta.IsStatusConditionTrue(backup.Status.Conditions, string(backupv1alpha1.ConditionFailed)) {
			StopTrying("the backup has failed").Attach("status", backup.Status).Now()
		}
		g.Expect(meta.FindStatusCondition(backup.Status.Conditions, string(backupv1alpha1.ConditionProgressing))).To(
			HaveField("Reason", backupv1alpha1.ReasonExportReady), "%+v", backup.Status)
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}

// readChanged reads what has changed on the volume files of a backup, page by page, as clients do.
func readChanged(ctx context.Context, proxy proxyClient, base, token string) (data []byte) {
	GinkgoHelper()
	for next := ptr.To(uint64(0)); next != nil; {
		code, body := proxy.get(ctx, fmt.Sprintf("%s%s?offset=%d&page_size=100", base, content.MapPath("files"), *next),
			token)
		Expect(code).To(Equal(http.StatusOK))
		page := struct {
			Extents []struct {
				Offset, Length uint64
				Description    string
			} `json:"extents"`
			NextOffset *uint64 `json:"next_offset"`
		}{}
		Expect(json.Unmarshal(body, &page)).To(Succeed())
		for _, extent := range page.Extents {
			if extent.Description != "dirty" {
				continue
			}
			code, body := proxy.get(ctx,
				fmt.Sprintf("%s%s?offset=%d&length=%d", base, content.DataPath("files"), extent.Offset, extent.Length), token)
			Expect(code).To(Equal(http.StatusOK))
			data = append(data, body...)
		}
		next = page.NextOffset
	}
	return data
}

// eachFile calls a function with the path and the content of each file in an archive whose name has a suffix.
func eachFile(archive, suffix string, check func(path string, data []byte)) {
	GinkgoHelper()
	file, err := os.Open(archive)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }()
	unpacked, err := gzip.NewReader(file)
	Expect(err).NotTo(HaveOccurred())
	for entries := tar.NewReader(unpacked); ; {
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		Expect(err).NotTo(HaveOccurred())
		if !strings.HasSuffix(entry.Name, suffix) {
			continue
		}
		data, err := io.ReadAll(entries)
		Expect(err).NotTo(HaveOccurred())
		check(strings.TrimPrefix(entry.Name, "./"), data)
	}
}

// enableGate enables a feature gate beside those that other specs need. It stays enabled.
func enableGate(ctx context.Context, gate string) {
	GinkgoHelper()
	Expect(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		list := &v1.KubeVirtList{}
		if err := k8s.List(ctx, list); err != nil {
			return err
		}
		kubeVirt := &list.Items[0]
		settings := &kubeVirt.Spec.Configuration
		if settings.DeveloperConfiguration == nil {
			settings.DeveloperConfiguration = &v1.DeveloperConfiguration{}
		}
		if slices.Contains(settings.DeveloperConfiguration.FeatureGates, gate) {
			return nil
		}
		settings.DeveloperConfiguration.FeatureGates = append(settings.DeveloperConfiguration.FeatureGates, gate)
		return k8s.Update(ctx, kubeVirt)
	})).To(Succeed())
}
