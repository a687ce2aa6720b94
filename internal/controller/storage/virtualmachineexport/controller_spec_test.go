// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineexport_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/csi"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/storage/claimusers"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachineExport of a claim", func() {
	var w *exports
	BeforeEach(func() { w = newExports() })

	It("is written once by each step that it takes", func() {
		w.claim("data")
		of := w.ofClaim("data")
		// The Pod needs the Secrets. The status is last, so that it has the reason if a step fails.
		w.ExpectOrder(of, createSecret, createService, createSecret, createPod, patchExportStatus)
		w.ExpectSteady(of)
		w.serve(of)
		w.ExpectBudget(of, patchExportStatus)
		w.ExpectSteady(of)
		user := PodWithClaim(w.ns, "user", "data")
		user.Spec.NodeName = "node"
		ExpectCreated(user)
		w.clock.SetTime(w.clock.Now().Add(claimusers.ResultTTL))
		w.ExpectBudget(of, deletePod, patchExportStatus)
		w.ExpectSteady(of)
	})

	It("is served by a Pod without privileges, under addresses that its certificate is for", func() {
		w.claim("data")
		of := w.ofClaim("data")
		w.Step(of)
		Expect(w.events.Take()).To(ConsistOf(
			Equal("Normal SecretCreated: Created default secret "+w.ns+"/"+tokenSecret),
			HavePrefix("Normal ServiceCreated: "),
			HavePrefix("Normal SecretCreated: Created exporter pod secret "), HavePrefix("Normal ExporterPodCreated: "),
		))
		Expect(DescribeExport(of)).To(Equal("Pending; Ready=False PodPending; PVCReady=True PVCBound"))
		Expect(of.Status.TokenSecretRef).To(HaveValue(Equal(tokenSecret)))
		Expect(of.Status.ServiceName).To(Equal("virt-export-export"))
		w.ExpectSteady(of)

		token := ExpectExists(w.secret(tokenSecret))
		Expect(string(token.Data["token"])).To(MatchRegexp("^[a-zA-Z0-9]{20}$"))
		Expect(metav1.IsControlledBy(token, of)).To(BeTrue())

		pod := ExpectExists(w.pod(of))
		Expect(metav1.IsControlledBy(pod, of)).To(BeTrue())
		Expect(pod.Spec.Containers[0].Image).To(Equal("example.org/virt-exportserver:v1"))
		Expect(pod.Spec.AutomountServiceAccountToken).To(HaveValue(BeFalse()))
		Expect(pod.Annotations[corev1.LastAppliedConfigAnnotation]).To(BeEmpty())
		service := ExpectExists(w.service(of))
		Expect(metav1.IsControlledBy(service, of)).To(BeTrue())
		for key, value := range service.Spec.Selector {
			Expect(pod.Labels).To(HaveKeyWithValue(key, value))
		}

		Expect(w.names("Secret")).To(ConsistOf(tokenSecret, pod.Spec.Volumes[0].Secret.SecretName))
		certificate := ExpectExists(w.secret(pod.Spec.Volumes[0].Secret.SecretName))
		Expect(metav1.IsControlledBy(certificate, of)).To(BeTrue())
		pair, err := tls.X509KeyPair(certificate.Data["tls.crt"], certificate.Data["tls.key"])
		Expect(err).NotTo(HaveOccurred())
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(w.ca.Bundle())
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "virt-export-export." + w.ns + ".svc"})
		Expect(err).NotTo(HaveOccurred())
		Expect(pair.Leaf.NotAfter).To(BeTemporally("~", of.CreationTimestamp.Add(2*time.Hour+5*time.Minute), 2*time.Second))

		w.serve(of)
		w.Step(of)
		Expect(DescribeExport(of)).To(Equal("Ready; Ready=True PodReady; PVCReady=True PVCBound"))
		links := of.Status.Links
		Expect(links.External).To(BeNil())
		Expect(links.Internal.Cert).To(Equal(string(w.ca.Bundle())))
		Expect(links.Internal.Volumes[0].Formats).To(ConsistOf(
			exportv1.VirtualMachineExportVolumeFormat{Format: exportv1.Dir,
				Url: "https://virt-export-export." + w.ns + ".svc/volumes/data/dir"},
			exportv1.VirtualMachineExportVolumeFormat{Format: exportv1.ArchiveGz,
				Url: "https://virt-export-export." + w.ns + ".svc/volumes/data/disk.tar.gz"},
		))
		w.ExpectSteady(of)
		Expect(ExpectExists(w.pod(of)).UID).To(Equal(pod.UID))
		Expect(ExpectExists(w.secret(tokenSecret)).Data).To(Equal(token.Data), "clients have read it")
	})

	It("is deleted when its time is over, which is when it is reconciled next", func() {
		w.claim("data")
		of := w.ofClaim("data", func(of *vmExport) { of.Spec.TTLDuration = &metav1.Duration{Duration: 5 * time.Second} })
		result := w.Step(of)
		// The clock of the spec may be up to a second behind the API server's.
		Expect(result.RequeueAfter).To(BeNumerically("<=", 6*time.Second))
		Expect(ExpectExists(of).Status.TTLExpirationTime.Time).To(BeTemporally("~", of.CreationTimestamp.Add(5*time.Second)))
		w.clock.SetTime(of.CreationTimestamp.Add(6 * time.Second))
		w.Step(of)
		ExpectGone(of)
		w.ExpectSteady(of)
	})

	It("pauses while a Pod of others uses the claim", func() {
		of := w.ready()
		served := ExpectExists(w.pod(of))
		user := PodWithClaim(w.ns, "user", "data")
		user.Spec.NodeName = "node"
		ExpectCreated(user)
		w.ExpectSteady(of)
		w.clock.SetTime(w.clock.Now().Add(claimusers.ResultTTL))
		result := w.Step(of)
		Expect(result.RequeueAfter).To(Equal(10*time.Second), "other Pods are not watched")
		Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning ExportPaused: ")))
		Expect(DescribeExport(of)).To(Equal("Pending; Ready=False InUse; PVCReady=True PVCBound"))
		Expect(readyMessage(of)).To(Equal("PersistentVolumeClaim " + w.ns + "/data is in use"))
		Expect(of.Status.Links).To(HaveValue(BeZero()))
		ExpectGone(w.pod(of))
		w.ExpectSteady(of)
		ExpectGone(w.pod(of))
		Expect(K8sClient.Delete(ctx, user, client.GracePeriodSeconds(0))).To(Succeed())
		w.clock.SetTime(w.clock.Now().Add(claimusers.ResultTTL))
		w.Step(of)
		Expect(ExpectExists(w.pod(of)).UID).NotTo(Equal(served.UID))
		Expect(DescribeExport(of)).To(HavePrefix("Pending; Ready=False PodPending"))
	})

	It("makes a Pod that has ended again, after some time", func() {
		of := w.ready()
		pod := ExpectExists(w.pod(of))
		pod.Status.Phase = corev1.PodFailed
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "exporter",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 1, Message: "out of luck", FinishedAt: metav1.NewTime(w.clock.Now()),
			}}}}
		Expect(K8sClient.Status().Update(ctx, pod)).To(Succeed())
		w.Step(of)
		Expect(DescribeExport(of)).To(HavePrefix("Pending; Ready=False Unknown"))
		Expect(readyMessage(of)).To(ContainSubstring("out of luck"))
		w.ExpectSteady(of)
		ExpectExists(pod)
		w.clock.SetTime(w.clock.Now().Add(time.Minute))
		w.Step(of)
		Expect(w.events.Take()).To(ConsistOf(HavePrefix("Warning ExporterPodFailedOrCompleted: ")))
		ExpectGone(w.pod(of))
		w.Step(of)
		Expect(ExpectExists(w.pod(of)).UID).NotTo(Equal(pod.UID))
		Expect(DescribeExport(of)).To(HavePrefix("Pending; Ready=False PodPending"))
	})

	It("reports a quota that refuses the Pod, and goes on when there is room", func() {
		w.Writes.Fail = func(request string) error {
			if request == createPod {
				return apierrors.NewForbidden(corev1.Resource("pods"), "virt-export-export", errors.New("exceeded quota: small"))
			}
			return nil
		}
		w.claim("data")
		of := w.ofClaim("data")
		_, err := w.Try(of)
		Expect(err).To(MatchError(ContainSubstring("exceeded quota")))
		Expect(readyMessage(of)).To(ContainSubstring("exceeded quota"))
		ExpectExists(w.service(of))
		token := ExpectExists(w.secret(tokenSecret)).Data
		ExpectGone(w.pod(of))
		w.Writes.Fail = nil
		w.Step(of)
		ExpectExists(w.pod(of))
		Expect(ExpectExists(w.secret(tokenSecret)).Data).To(Equal(token))
	})

	It("does not use a Pod or a Service of another", func() {
		w.claim("data")
		foreign := w.pod(&vmExport{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "export"}})
		foreign.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
		ExpectCreated(foreign)
		of := w.ofClaim("data")
		before := ExpectExists(foreign).ResourceVersion
		_, err := w.Try(of)
		Expect(err == nil || strings.Contains(err.Error(), "does not belong")).To(BeTrue())
		Expect(readyMessage(of)).To(ContainSubstring("does not belong to the export"))
		Expect(ExpectExists(foreign).ResourceVersion).To(Equal(before))
	})

	It("takes the token of the user, and reads no Secret", func() {
		w.claim("data")
		of := w.ofClaim("data", func(of *vmExport) { of.Spec.TokenSecretRef = ptr.To("mine") })
		w.Step(of)
		pod := ExpectExists(w.pod(of))
		Expect(w.names("Secret")).To(ConsistOf(pod.Spec.Volumes[0].Secret.SecretName), "that of the certificate")
		Expect(pod.Spec.Volumes[1].Secret.SecretName).To(Equal("mine"))
		Expect(of.Spec.TokenSecretRef).To(Equal(ExpectExists(of).Status.TokenSecretRef))
	})

	It("has external addresses if an Ingress leads to virt-exportproxy", func() {
		of := w.ready()
		path := networkingv1.HTTPIngressPath{
			PathType: ptr.To(networkingv1.PathTypePrefix), Path: "/",
			Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
				Name: "virt-exportproxy", Port: networkingv1.ServiceBackendPort{Number: 443},
			}},
		}
		ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: w.install, Name: "export"}}
		ingress.Spec.Rules = []networkingv1.IngressRule{{Host: "export.example.org",
			IngressRuleValue: networkingv1.IngressRuleValue{
				HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{path}},
			}}}
		ingress.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"export.example.org"}, SecretName: "export-tls"}}
		ExpectCreated(ingress,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.install, Name: "export-tls"}, Data: map[string][]byte{
				"tls.crt": w.ca.Bundle(), "tls.key": []byte("private"),
			}})
		w.ExpectSteady(of) // What leads to virt-exportproxy is read every 30 seconds.
		w.clock.SetTime(w.clock.Now().Add(30 * time.Second))
		w.Step(of)
		external := ExpectExists(of).Status.Links.External
		Expect(external.Volumes[0].Formats[1].Url).To(Equal(
			"https://export.example.org/api/export.kubevirt.io/v1/namespaces/" + w.ns +
				"/virtualmachineexports/export/volumes/data/disk.tar.gz"))
		Expect(external.Cert).To(Equal(strings.TrimSpace(string(w.ca.Bundle()))))
		w.ExpectSteady(of)
	})
})

var _ = Describe("VirtualMachineExport of a VM", func() {
	var w *exports
	BeforeEach(func() { w = newExports() })

	It("has the VM's disks and manifests while the VM does not run", func() {
		vm := w.vm()
		of := w.request("kubevirt.io", "VirtualMachine", "vm")
		vmi := builder.MakeVMI("vm").Namespace(w.ns).OwnedBy(vm).Obj()
		ExpectCreated(vmi)
		SetVMIStatus(vmi, v1.Running)
		w.Step(of)
		w.expectNoPod(of, "root")
		Expect(DescribeExport(of)).To(Equal("Pending; Ready=False InUse; PVCReady=True PVCBound"))
		Expect(readyMessage(of)).To(Equal("Virtual Machine " + w.ns + "/vm is running"))

		Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
		w.Step(of)
		w.serve(of)
		w.Step(of)
		Expect(DescribeExport(of)).To(Equal("Ready; Ready=True PodReady; PVCReady=True PVCBound"))
		Expect(of.Status.VirtualMachineName).To(HaveValue(Equal("vm")))
		Expect(of.Status.Links.Internal.Volumes[0].Formats[0].Format).
			To(Equal(exportv1.KubeVirtRaw), "a disk of a VM, although its claim does not say so")
		Expect(of.Status.Links.Internal.Manifests).To(HaveLen(2))
		pod := ExpectExists(w.pod(of))
		served, err := content.Parse([]byte(pod.Annotations["export.vireo.io/content"]))
		Expect(err).NotTo(HaveOccurred())
		Expect(served.Manifests.DataVolumes).To(HaveLen(1))

		// A change of the VM reaches the manifests without another Pod.
		vm = ExpectExists(vm)
		vm.Spec.Template.ObjectMeta.Labels = map[string]string{"changed": "yes"}
		Expect(K8sClient.Update(ctx, vm)).To(Succeed())
		w.Step(of)
		changed := ExpectExists(w.pod(of))
		Expect(changed.UID).To(Equal(pod.UID))
		Expect(changed.Annotations["export.vireo.io/content"]).To(ContainSubstring(`"changed":"yes"`))
		w.ExpectSteady(of)
	})
})

var _ = Describe("VirtualMachineExport of a snapshot", func() {
	var w *exports
	BeforeEach(func() {
		w = newExports()
		InstallVolumeSnapshots()
	})

	// store completes a snapshot: its content, which says of which snapshot it is, and its VolumeSnapshot.
	store := func(snapshot *snapshotv1beta1.VirtualMachineSnapshot, of string) {
		GinkgoHelper()
		stored := builder.MakeVM("vm").Template(builder.MakeVMI("vm").PVC("root", "root")).Obj()
		contentOfSnapshot := ContentOf(snapshot)
		contentOfSnapshot.Spec.VirtualMachineSnapshotName = &of
		contentOfSnapshot.Spec.Source.VirtualMachine = &snapshotv1beta1.VirtualMachine{
			ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: "elsewhere"}, Spec: stored.Spec,
		}
		claim := builder.MakePVC("root").Bound("1Gi").Obj()
		contentOfSnapshot.Spec.VolumeBackups = []snapshotv1beta1.VolumeBackup{{
			VolumeName: "root", VolumeSnapshotName: ptr.To("taken"),
			PersistentVolumeClaim: snapshotv1beta1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "root"},
				Spec: claim.Spec},
		}}
		taken := &csi.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "taken"}}
		taken.Spec.Source.PersistentVolumeClaimName = ptr.To("root")
		ExpectCreated(contentOfSnapshot, taken)
		snapshot.Status = &snapshotv1beta1.VirtualMachineSnapshotStatus{ReadyToUse: ptr.To(true)}
		ExpectStatus(snapshot)
	}
	const notCreated = "Pending; Ready=False NotAllPVCsCreated; VolumesCreated=False NotAllPVCsCreated"

	It("serves claims that are made of it", func() {
		snapshot := RequestSnapshot(w.ns, "snap")
		of := w.request("snapshot.kubevirt.io", "VirtualMachineSnapshot", "snap")
		w.Step(of)
		w.expectNoPod(of)
		Expect(DescribeExport(of)).To(Equal(notCreated))
		store(snapshot, "snap")

		w.Step(of)
		w.expectNoPod(of, "export-root")
		made := ExpectExists(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns,
			Name: "export-root"}})
		Expect(made.Spec.DataSourceRef.Name).To(Equal("taken"))
		Expect(metav1.IsControlledBy(made, of)).To(BeTrue())
		w.Step(of)
		ExpectExists(w.pod(of))
		Expect(DescribeExport(of)).To(Equal("Pending; Ready=False PodPending; VolumesCreated=False NotAllPVCsReady"))

		made.Status.Phase = corev1.ClaimBound
		Expect(K8sClient.Status().Update(ctx, made)).To(Succeed())
		w.serve(of)
		w.Step(of)
		Expect(DescribeExport(of)).To(Equal("Ready; Ready=True PodReady; VolumesCreated=True AllPVCsReady"))
		Expect(of.Status.Links.Internal.Volumes[0].Name).To(Equal("export-root"))
		served, err := content.Parse([]byte(ExpectExists(w.pod(of)).Annotations["export.vireo.io/content"]))
		Expect(err).NotTo(HaveOccurred())
		Expect(served.Manifests.VirtualMachine["metadata"]).NotTo(HaveKey("namespace"))
		w.ExpectSteady(of)
	})

	It("does not use the content of another", func() {
		store(RequestSnapshot(w.ns, "snap"), "other")
		of := w.request("snapshot.kubevirt.io", "VirtualMachineSnapshot", "snap")
		w.Step(of)
		w.expectNoPod(of)
		Expect(DescribeExport(of)).To(Equal(notCreated))
	})
})

var _ = Describe("A VirtualMachineExport in a namespace with a LimitRange", func() {
	It("has the memory that it demands in its Pod", func() {
		w := newExports()
		memory := func(quantity string) corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(quantity)}
		}
		ExpectCreated(&corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "limits"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
				Type: corev1.LimitTypeContainer, Min: memory("512Mi"), Max: memory("800Mi"),
			}}},
		})
		w.claim("data")
		of := w.ofClaim("data")
		w.Step(of)
		resources := ExpectExists(w.pod(of)).Spec.Containers[0].Resources
		Expect(resources.Requests.Memory().String() + " to " + resources.Limits.Memory().String()).To(Equal("512Mi to 800Mi"))
	})
})
