// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/cdi/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// guestFile is the name of the small guest's disk in its image.
const guestFile = "guest-small.qcow2"

var _ = Describe("A VM whose disk is a DataVolume", extended(1), func() {
	It("boots from a disk that is downloaded, and another VM from a copy of a disk that is uploaded",
		func(ctx context.Context) {
			if !hasImporter(ctx) {
				Skip("the cluster has no Containerized Data Importer: start the local one with STORAGE=1 IMPORTER=1")
			}
			namespace := newNamespace(ctx)
			url, file := serveGuest(ctx, namespace)
			create(ctx, makeVM(namespace, "downloaded",
				withRootTemplate("downloaded", v1beta1.DataVolumeSource{HTTP: &v1beta1.DataVolumeSourceHTTP{URL: url}})))

			By("uploading while the other disk is downloaded")
			upload := startVirtctl(ctx, "image-upload", "dv", "golden", "-n", namespace, "--size=64Mi", "--image-path="+file,
				"--force-bind",
				"--uploadproxy-url=https://"+forwardService(ctx, "cdi", "cdi-uploadproxy", "443"), "--insecure")
			Eventually(upload.Session).WithContext(ctx).WithTimeout(bootTimeout).Should(gexec.Exit(0))
			create(ctx, makeVM(namespace, "copied",
				withRootTemplate("copied",
					v1beta1.DataVolumeSource{PVC: &v1beta1.DataVolumeSourcePVC{Namespace: namespace, Name: "golden"}})))

			for _, name := range []string{"downloaded", "copied"} {
				instance := expectReady(ctx, namespace, name)
				expectConsole(ctx, namespace, name, bootTimeout, ContainSubstring(guestReady))
				Expect(instance.Status.VolumeStatus).To(ContainElement(And(
					HaveField("Name", "root"), HaveField("PersistentVolumeClaimInfo.ClaimName", name))))
			}
		}, specTimeout(10*time.Minute))
})

// withRootTemplate replaces the guest's disk by a DataVolume that is created with the VM.
func withRootTemplate(name string, source v1beta1.DataVolumeSource) option {
	return func(vm *v1.VirtualMachine) {
		vm.Spec.DataVolumeTemplates = append(vm.Spec.DataVolumeTemplates, v1.DataVolumeTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1beta1.DataVolumeSpec{
				Source: &source,
				Storage: &v1beta1.StorageSpec{Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")},
				}},
			},
		})
		spec(vm).Volumes[0].VolumeSource = v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: name}}
	}
}

// serveGuest runs a web server with the small guest's disk in a namespace. It returns the disk's URL there, and a local
// copy.
func serveGuest(ctx context.Context, namespace string) (url, file string) {
	GinkgoHelper()
	pod := makePeer(namespace, "images", "", "serve", "--directory=/image/disk")
	pod.Spec.Volumes = []corev1.Volume{{Name: "image", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{
		Reference: image("guest-small"), PullPolicy: corev1.PullIfNotPresent,
	}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "image", MountPath: "/image", ReadOnly: true}}
	startPod(ctx, pod)
	create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod.Name},
		Spec:       corev1.ServiceSpec{Selector: pod.Labels, Ports: []corev1.ServicePort{{Port: 8080}}},
	})
	var disk []byte
	Eventually(func() (err error) {
		disk, err = clientset.CoreV1().Pods(namespace).ProxyGet("http", pod.Name, "8080", guestFile, nil).DoRaw(ctx)
		return err
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
	file = filepath.Join(GinkgoT().TempDir(), guestFile)
	Expect(os.WriteFile(file, disk, 0o600)).To(Succeed())
	return "http://" + pod.Name + ":8080/" + guestFile, file
}

// forwardService opens a local port that forwards to a Service's port until the spec ends, and returns its address.
func forwardService(ctx context.Context, namespace, service, port string) string {
	GinkgoHelper()
	command := exec.CommandContext(ctx, kubectlProgram, "port-forward", "-n", namespace, "service/"+service, ":"+port)
	session, err := gexec.Start(command, GinkgoWriter, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { session.Kill() })
	Eventually(session.Out.Contents).WithContext(ctx).WithTimeout(shortTimeout).Should(MatchRegexp(forwardedAt.String()))
	return string(forwardedAt.FindSubmatch(session.Out.Contents())[1])
}
