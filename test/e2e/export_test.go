// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	exportapi "github.com/vireo-project/vireo/api/export"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/exporter/content"
)

// exported is the text that a guest writes to its disks before a snapshot that is exported. The guest's shell computes
// it from writeExported, so that the disk contains it only if the command was executed.
const writeExported, exported = "EXPORTED-$((1000+337))-BY-THE-GUEST", "EXPORTED-1337-BY-THE-GUEST"

// writeOn writes a text to the disks of a guest with these serials.
func writeOn(ctx context.Context, namespace, name, text string, disks ...string) {
	GinkgoHelper()
	t := openConsole(ctx, namespace, name)
	for _, disk := range disks {
		t.press("echo " + text + " >/mnt/" + disk + "/written\n")
	}
	t.press("sync && echo WRITTEN-$((40+2))\n")
	expectOutput(ctx, t.Out, "WRITTEN-42")
	t.Kill()
}

// expectExported downloads a snapshot with two disks, "files" and "block", of a running guest as a user does, and
// checks that a client without the token cannot.
func expectExported(ctx context.Context, namespace, snapshot, vm string) {
	GinkgoHelper()
	directory := GinkgoT().TempDir()
	enableGate(ctx, "OCIExport")
	expectVirtctl(ctx, "vmexport", "create", "-n", namespace, "taken", "--snapshot="+snapshot)
	export := &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "taken"}}
	expectImageExport(ctx, export)

	sums := map[string]string{}
	for _, volume := range []string{"files", "block"} {
		raw := filepath.Join(directory, volume+".img")
		download := []string{"vmexport", "download", "-n", namespace, export.Name, "--volume=" + volume, "--port-forward"}
		expectVirtctl(ctx, append(download, "--format=raw", "--output="+raw)...)
		expectVirtctl(ctx, append(download, "--output="+raw+".gz")...)
		data, err := os.ReadFile(raw)
		Expect(err).NotTo(HaveOccurred())
		Expect(bytes.Contains(data, []byte(exported))).To(BeTrue(), "%s does not have what the guest has written: %d bytes",
			volume, len(data))
		sums[volume] = sum(bytes.NewReader(data))
		Expect(sumOfGzip(raw + ".gz")).To(Equal(sums[volume]))
	}
	image := filepath.Join(directory, "image.tar")
	expectVirtctl(ctx, "vmexport", "download", "-n", namespace, export.Name, "--format=oci", "--output="+image,
		"--port-forward")
	expectImage(image, vm, sums)
	manifests := expectVirtctl(ctx, "vmexport", "download", "-n", namespace, export.Name, "--manifest", "--include-secret",
		"--port-forward")
	Expect(manifests).To(And(ContainSubstring("kind: VirtualMachine\n"), ContainSubstring("name: "+vm+"\n"),
		ContainSubstring("/volumes/taken-files/disk.img.gz")))
	if hasLocalNodes() {
		expectSameDisks(ctx, export, sums)
		expectProxied(ctx, export,
			map[string]string{"/volumes/taken-files/disk.img": sums["files"], content.OCIPath: sumOfFile(image)})
	}

	expectKubeVirtExports(ctx, namespace, snapshot, vm, sums)

	// The guest itself is not exported while it runs.
	expectVirtctl(ctx, "vmexport", "create", "-n", namespace, "live", "--vm="+vm)
	live := &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "live"}}
	expectExport(ctx, live, exportv1.Pending)
	Expect(live.Status.Conditions).To(
		ContainElement(And(HaveField("Type", exportv1.ConditionReady), HaveField("Reason", "InUse"))))

	for _, object := range []client.Object{export, live} {
		expectVirtctl(ctx, "vmexport", "delete", "-n", namespace, object.GetName())
		expectGone(ctx, object)
	}
	pod := metav1.ObjectMeta{Namespace: namespace, Name: content.ServiceName(export.Name)}
	expectGone(ctx, &corev1.Pod{ObjectMeta: pod})
	expectGone(ctx, &corev1.Service{ObjectMeta: pod})
	expectGone(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: export.Name + "-files"}})
}

// expectExport waits for a phase of an export, and reads it.
func expectExport(
	ctx context.Context, export *exportv1.VirtualMachineExport, phase exportv1.VirtualMachineExportPhase,
) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(export), export)).To(Succeed())
		g.Expect(export.Status).NotTo(BeNil())
		g.Expect(export.Status.Phase).To(Equal(phase), "%+v", export.Status.Conditions)
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}

// expectImageExport waits until an export is ready as an OCI image, too.
func expectImageExport(ctx context.Context, export *exportv1.VirtualMachineExport) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(export), export)).To(Succeed())
		g.Expect(export.Status).NotTo(BeNil())
		g.Expect(export.Status.Phase).To(Equal(exportv1.Ready), "%+v", export.Status.Conditions)
		g.Expect(export.Status.Conditions).To(ContainElement(And(
			HaveField("Type", exportv1.ConditionOCIReady), HaveField("Status", corev1.ConditionTrue),
			HaveField("Reason", exportapi.OCIDigestsComputedReason))))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}

func sum(from io.Reader) string {
	GinkgoHelper()
	hash := sha256.New()
	_, err := io.Copy(hash, from)
	Expect(err).NotTo(HaveOccurred())
	return hex.EncodeToString(hash.Sum(nil))
}

func sumOfFile(name string) string {
	GinkgoHelper()
	file, err := os.Open(name)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }()
	return sum(file)
}

func sumOfGzip(name string) string {
	GinkgoHelper()
	file, err := os.Open(name)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }()
	unpacked, err := gzip.NewReader(file)
	Expect(err).NotTo(HaveOccurred())
	return sum(unpacked)
}

// expectSameDisks compares the disks in an exporter's Pod with the downloaded ones.
func expectSameDisks(ctx context.Context, export *exportv1.VirtualMachineExport, sums map[string]string) {
	GinkgoHelper()
	pod := &corev1.Pod{}
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: export.Namespace, Name: content.ServiceName(export.Name)}, pod)).
		To(Succeed())
	root := filepath.Join("/proc", strconv.Itoa(podProcess(pod, "virt-exportserver").PID), "root")
	Expect(sumOfFile(filepath.Join(root, content.VolumeDirectory, export.Name+"-files", "disk.img"))).
		To(Equal(sums["files"]))
	Expect(sumOfFile(filepath.Join(root, content.DeviceDirectory, export.Name+"-block"))).To(Equal(sums["block"]))
}

// expectProxied downloads through virt-exportproxy, as an Ingress does, and checks that requests without the token are
// rejected. sums are those of what is at some paths.
func expectProxied(ctx context.Context, export *exportv1.VirtualMachineExport, sums map[string]string) {
	GinkgoHelper()
	secret := &corev1.Secret{}
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: export.Namespace, Name: *export.Status.TokenSecretRef}, secret)).
		To(Succeed())
	token := string(secret.Data[content.TokenKey])
	foreign := newNamespace(ctx)
	proxy := newProxyClient(ctx)
	file := "/volumes/" + export.Name + "-files/disk.img"
	proxyPath := content.ProxyPath(export.Namespace, export.Name)

	for path, want := range sums {
		code, body := proxy.get(ctx, proxyPath+path, token)
		Expect(code).To(Equal(http.StatusOK), path)
		Expect(sum(bytes.NewReader(body))).To(Equal(want), path)
	}
	for _, wrong := range []string{"", token[1:], token + "x", "x" + token[1:]} {
		code, body := proxy.get(ctx, proxyPath+file, wrong)
		Expect(code).To(Equal(http.StatusUnauthorized))
		Expect(len(body)).To(BeNumerically("<", 1000))
	}
	for path, refused := range map[string]int{
		content.ProxyPath(foreign, export.Name) + file:      http.StatusNotFound,
		content.ProxyPath(export.Namespace, "other") + file: http.StatusNotFound,
		proxyPath + "/volumes/other/disk.img":               http.StatusNotFound,
		proxyPath + "/../live" + file:                       http.StatusBadRequest, "/metrics": http.StatusBadRequest,
	} {
		code, _ := proxy.get(ctx, path, token)
		Expect(code).To(Equal(refused), path)
	}
}

// proxyClient is a client of virt-exportproxy.
type proxyClient struct {
	http *http.Client
	base string
}

func newProxyClient(ctx context.Context) proxyClient {
	GinkgoHelper()
	pods, bundles := &corev1.PodList{}, &corev1.ConfigMap{}
	Expect(k8s.List(ctx, pods, client.InNamespace("kubevirt"), client.MatchingLabels{v1.AppLabel: content.ProxyService})).
		To(Succeed())
	Expect(pods.Items).NotTo(BeEmpty())
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: "kubevirt", Name: certificate.BundleName}, bundles)).To(Succeed())
	roots := x509.NewCertPool()
	Expect(roots.AppendCertsFromPEM([]byte(bundles.Data[certificate.ExportProxyServing.Name]))).To(BeTrue())
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: certificate.ExportProxySubject("kubevirt").DNSNames[0],
	}}
	DeferCleanup(transport.CloseIdleConnections)
	return proxyClient{
		http: &http.Client{Transport: transport, Timeout: shortTimeout},
		base: "https://" + net.JoinHostPort(pods.Items[0].Status.PodIP, strconv.Itoa(content.Port)),
	}
}

func (p proxyClient) get(ctx context.Context, path, token string) (code int, body []byte) {
	GinkgoHelper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+path, nil)
	Expect(err).NotTo(HaveOccurred())
	request.Header.Set(content.TokenHeader, token)
	response, err := p.http.Do(request)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	body, err = io.ReadAll(response.Body)
	Expect(err).NotTo(HaveOccurred())
	return response.StatusCode, body
}
