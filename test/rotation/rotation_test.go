// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rotation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
	"github.com/vireo-project/vireo/test/pki"
	"github.com/vireo-project/vireo/test/rights"
)

const (
	// rotations is how often each CA and each certificate is replaced.
	rotations    = 3
	migrationUID = types.UID("11111111-2222-3333-4444-555555555555")
)

func TestConnectionsSurviveRotations(t *testing.T) {
	// The step is shorter than the time between the renewal and the expiry of a certificate, which is at least a fifth of
	// a day.
	w := newWorld(t, nil)
	w.rotate(3 * time.Hour)
}

// With lifetimes of minutes, by the deprecated fields.
func TestConnectionsSurviveRotationsWithinMinutes(t *testing.T) {
	minutes := func(n int) *metav1.Duration { return &metav1.Duration{Duration: time.Duration(n) * time.Minute} }
	w := newWorld(t, &v1.KubeVirtSelfSignConfiguration{
		CARotateInterval: minutes(20), CAOverlapInterval: minutes(12), CertRotateInterval: minutes(14),
	})
	w.rotate(time.Minute)
}

// rotate advances the clock in steps until each CA and each certificate was replaced several times.
func (w *world) rotate(step time.Duration) {
	t := w.t
	vmi := w.guest()
	w.settle()
	w.exported.settle()
	w.expectHealthy()
	console := websocket.NetConn(t.Context(), w.stream(vmi, "console"), websocket.MessageBinary)
	tunnel, err := w.red.peers(w.blue.migrationPort).Tunnel(t.Context(), peer.AttemptOf(vmi))
	w.g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = tunnel.Close() }()

	seen := map[string]map[string]bool{}
	steps := 0
	for ; !complete(seen); steps++ {
		if maxSteps := int(rotations * w.lifetimes.CADuration / step); steps > maxSteps {
			t.Fatalf("after %s not every certificate was replaced %d times: %v", time.Duration(steps)*step, rotations,
				counts(seen))
		}
		path := w.webhookPath()
		w.clock.Step(step)
		w.trigger()
		w.settle()
		w.exported.settle()
		record(seen, w.certificates())

		// Open connections stay open, and new ones are accepted.
		expectEcho(w.g, console, []byte("still there\n"))
		expectEcho(w.g, tunnel, ping())
		w.expectScreen(vmi)
		w.exported.expectDownload()
		// An API server that has not read the new configuration uses the path of before.
		w.expectWebhook(path)
		w.expectWebhook(w.webhookPath())
		_, err := w.red.peers(w.blue.migrationPort).Destination(t.Context(), peer.AttemptOf(vmi))
		w.g.Expect(err).NotTo(HaveOccurred())
	}
	t.Logf("%s in %d steps: %v", time.Duration(steps)*step, steps, counts(seen))
}

// guest creates a VMI that runs on red and migrates to blue. virt-controller creates its Pod; the test does the parts
// of the scheduler, the kubelet and the agent.
func (w *world) guest() *v1.VirtualMachineInstance {
	w.t.Helper()
	ctx := context.Background()
	vmi := builder.MakeVMI("guest").Namespace(metav1.NamespaceDefault).Obj()
	w.create(vmi)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: podspec.PodName(vmi)}}
	w.g.Eventually(func() error { return w.client.Get(ctx, client.ObjectKeyFromObject(pod), pod) }, timeout, "10ms").
		Should(Succeed())
	w.g.Expect(w.client.SubResource("binding").Create(ctx, pod, &corev1.Binding{
		ObjectMeta: pod.ObjectMeta, Target: corev1.ObjectReference{Kind: "Node", Name: "red"},
	})).To(Succeed())
	w.g.Eventually(func() error {
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		pod.Status = builder.MakePodStatus().Running().Obj()
		return w.client.Status().Update(ctx, pod)
	}, timeout, "10ms").Should(Succeed())
	w.red.run(vmi, pod.UID)
	w.g.Eventually(func(g Gomega) {
		g.Expect(w.client.Get(ctx, client.ObjectKeyFromObject(vmi), vmi)).To(Succeed())
		g.Expect(vmi.Status.Phase).To(Equal(v1.Scheduled))
		before := vmi.DeepCopy()
		vmistatus.SetPhase(&vmi.Status, v1.Running, metav1.Now())
		_, err := vmistatus.Patch(ctx, w.red.api, vmistatus.Handler, before, vmi)
		g.Expect(err).NotTo(HaveOccurred())
	}, timeout, "10ms").Should(Succeed())

	migrating := vmi.DeepCopy()
	migrating.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
		MigrationUID: migrationUID, SourceNode: "red", TargetNode: "blue", TargetNodeAddress: "127.0.0.1", TargetPod: "p",
	}
	w.blue.incoming.vmi.Store(migrating)
	w.blue.launchers.Launcher("target")
	w.blue.targets.Put(migrationUID,
		peer.Target{Pod: hypervisor.PodRef{UID: "target"}, Address: "10.244.1.7", Domain: "<domain/>"})
	return migrating
}

// settle returns when every CA and every certificate that is due has been renewed.
func (w *world) settle() {
	w.t.Helper()
	now, lifetimes := w.clock.Now(), w.lifetimes
	w.g.Eventually(func(g Gomega) {
		for _, role := range certificate.Authorities() {
			_, changes, _, err := w.authority(g, role).Advance(now, lifetimes)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(changes).To(BeFalse(), "the CA of "+role.Name)
		}
	}, timeout, "10ms").Should(Succeed())
	w.publish()
	w.g.Eventually(func(g Gomega) {
		g.Expect(w.apiServiceBundle(g)).To(Equal(w.authority(g, certificate.APIServing).Bundle()),
			"the caBundle of the APIService")
		w.sendRequests(g)
		for name, leaf := range w.leaves() {
			g.Expect(leaf).NotTo(BeNil(), name)
			g.Expect(certificate.RenewAt(leaf, lifetimes)).To(BeTemporally(">", now), name)
		}
	}, timeout, "10ms").Should(Succeed())
}

// leaves returns the certificates in use: those of the agents' sources, and virt-api's as its peers see them.
func (w *world) leaves() map[string]*x509.Certificate {
	leaves := map[string]*x509.Certificate{
		"virt-api, client": w.red.lastCaller(), "webhooks": w.webhookLeaf(), "virt-exportproxy, serving": w.exported.proxyLeaf(),
	}
	for _, a := range []*agent{w.red, w.blue} {
		for name, source := range map[string]*certificate.Source{"serving": a.serving, "migration": a.migration,
			"backup": a.backup} {
			if pair := source.Current(); pair != nil {
				leaves[a.node+", "+name] = pair.Leaf
			} else {
				leaves[a.node+", "+name] = nil
			}
		}
	}
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", w.apiPort), w.frontTLS(w.g))
	if err != nil {
		leaves["virt-api, serving"] = nil
		return leaves
	}
	defer func() { _ = conn.Close() }()
	leaves["virt-api, serving"] = conn.ConnectionState().PeerCertificates[0]
	return leaves
}

// certificates returns the leaves and the CA certificates by name.
func (w *world) certificates() map[string]*x509.Certificate {
	all := w.leaves()
	for _, role := range certificate.Authorities() {
		data, err := w.authority(w.g, role).Data()
		w.g.Expect(err).NotTo(HaveOccurred())
		pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
		w.g.Expect(err).NotTo(HaveOccurred())
		all["authority of "+role.Name] = pair.Leaf
	}
	all["authority of the webhooks"] = w.webhookAuthority()
	all["exporter"] = w.exported.pair.Load().Leaf
	return all
}

// record adds the serial numbers of certificates to those seen.
func record(seen map[string]map[string]bool, certificates map[string]*x509.Certificate) {
	for name, c := range certificates {
		if seen[name] == nil {
			seen[name] = map[string]bool{}
		}
		seen[name][c.SerialNumber.String()] = true
	}
}

func complete(seen map[string]map[string]bool) bool {
	for _, serials := range seen {
		if len(serials) <= rotations {
			return false
		}
	}
	return len(seen) > 0
}

func counts(seen map[string]map[string]bool) map[string]int {
	n := map[string]int{}
	for name, serials := range seen {
		n[name] = len(serials)
	}
	return n
}

// apiServiceBundle returns the CA bundle with which the API server verifies virt-api.
func (w *world) apiServiceBundle(g Gomega) []byte {
	service := &unstructured.Unstructured{}
	service.SetGroupVersionKind(manifests.APIServiceKind)
	g.Expect(w.client.Get(context.Background(), client.ObjectKey{Name: "v1.subresources.kubevirt.io"}, service)).
		To(Succeed())
	encoded, _, err := unstructured.NestedString(service.Object, "spec", "caBundle")
	g.Expect(err).NotTo(HaveOccurred())
	bundle, err := base64.StdEncoding.DecodeString(encoded)
	g.Expect(err).NotTo(HaveOccurred())
	return bundle
}

// frontTLS returns the aggregation layer's configuration, with the test's clock.
func (w *world) frontTLS(g Gomega) *tls.Config {
	pool := x509.NewCertPool()
	g.Expect(pool.AppendCertsFromPEM(w.apiServiceBundle(g))).To(BeTrue())
	return &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: agentapi.ServiceName + "." + rights.Namespace + ".svc",
		Time: w.clock.Now, Certificates: []tls.Certificate{w.proxy.ClientCertificate(pki.FrontProxyName)},
	}
}

// front returns a client in place of the aggregation layer, which uses a new connection for each request.
func (w *world) front(g Gomega) *http.Client {
	transport := &http.Transport{TLSClientConfig: w.frontTLS(g), DisableKeepAlives: true}
	return &http.Client{Transport: transport}
}

func (w *world) url(path string) string {
	return fmt.Sprintf("https://127.0.0.1:%d/apis/subresources.kubevirt.io/v1/%s", w.apiPort, path)
}

// asAdmin returns the headers with which the aggregation layer authenticates an administrator.
func asAdmin() http.Header {
	return http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters", "system:authenticated"}}
}

// sendRequests sends a request that virt-api serves itself, and one that it forwards to an agent.
func (w *world) sendRequests(g Gomega) {
	for _, path := range []string{"version", "namespaces/default/virtualmachineinstances/guest/vnc/screenshot"} {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, w.url(path), nil)
		g.Expect(err).NotTo(HaveOccurred())
		request.Header = asAdmin()
		response, err := w.front(g).Do(request)
		g.Expect(err).NotTo(HaveOccurred())
		body, err := io.ReadAll(response.Body)
		g.Expect(response.Body.Close()).To(Succeed())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(response.StatusCode).To(Equal(http.StatusOK), "%s: %s", path, body)
	}
}

// expectHealthy waits until virt-api reports the current version of the KubeVirt object, without authentication.
func (w *world) expectHealthy() {
	w.t.Helper()
	w.g.Eventually(func(g Gomega) {
		kv := &v1.KubeVirt{}
		g.Expect(w.client.Get(context.Background(), client.ObjectKey{Namespace: rights.Namespace, Name: "kubevirt"}, kv)).
			To(Succeed())
		response, err := w.front(g).Get(fmt.Sprintf("https://127.0.0.1:%d/healthz", w.apiPort))
		g.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = response.Body.Close() }()
		check := map[string]any{}
		g.Expect(json.NewDecoder(response.Body).Decode(&check)).To(Succeed())
		g.Expect(check).To(HaveKeyWithValue("config-resource-version", kv.ResourceVersion))
	}, timeout, "50ms").Should(Succeed())
}

// stream opens a stream to a guest.
func (w *world) stream(vmi *v1.VirtualMachineInstance, verb string) *websocket.Conn {
	w.t.Helper()
	path := "namespaces/" + vmi.Namespace + "/virtualmachineinstances/" + vmi.Name + "/" + verb
	options := &websocket.DialOptions{HTTPClient: w.front(w.g), HTTPHeader: asAdmin(),
		Subprotocols: []string{"plain.kubevirt.io"}}
	socket, response, err := websocket.Dial(w.t.Context(), w.url(path), options) //nolint:bodyclose // the library closes it
	if err != nil && response != nil {
		body, _ := io.ReadAll(response.Body)
		w.t.Fatalf("%s: %v: %s", verb, err, body)
	}
	w.g.Expect(err).NotTo(HaveOccurred(), verb)
	w.t.Cleanup(func() { _ = socket.CloseNow() })
	return socket
}

// expectScreen opens the guest's screen and expects VNC's banner.
func (w *world) expectScreen(vmi *v1.VirtualMachineInstance) {
	w.t.Helper()
	socket := w.stream(vmi, "vnc")
	defer func() { _ = socket.CloseNow() }()
	ctx, cancel := context.WithTimeout(w.t.Context(), timeout)
	defer cancel()
	_, message, err := socket.Read(ctx)
	w.g.Expect(err).NotTo(HaveOccurred())
	w.g.Expect(string(message)).To(Equal(libvirt.RFBBanner))
}

// expectEcho writes a message to a stream and expects it back.
func expectEcho(g Gomega, conn net.Conn, message []byte) {
	g.Expect(conn.SetDeadline(time.Now().Add(timeout))).To(Succeed())
	_, err := conn.Write(message)
	g.Expect(err).NotTo(HaveOccurred())
	got := make([]byte, len(message))
	_, err = io.ReadFull(conn, got)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got).To(Equal(message))
}

// ping returns a keepalive message of libvirt, which has program "keep" and no body, and which the tunnel forwards in
// both directions. Source: libvirt src/rpc/virkeepaliveprotocol.x.
func ping() []byte {
	const program, version, procedure, message = 0x6b656570, 1, 1, 2
	var frame []byte
	for _, word := range []uint32{28, program, version, procedure, message, 0, 0} {
		frame = binary.BigEndian.AppendUint32(frame, word)
	}
	return frame
}

func echo(conn net.Conn) {
	_, _ = io.Copy(conn, conn)
	_ = conn.Close()
}
