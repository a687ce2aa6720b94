// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl"
	"github.com/vireo-project/vireo/test/builder"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

const guestfsPod = "libguestfs-tools-data"

// Channels of attach by websocket. Source: k8s.io/apimachinery/pkg/util/remotecommand.
const (
	stdinChannel, stdoutChannel, errorChannel = 0, 1, 3
	attachProtocol                            = "v5.channel.k8s.io"
)

// guestfsCluster is a cluster with a claim, a kubelet that sets the Pod's phase, and a shell that returns its input in
// capitals until exit.
type guestfsCluster struct {
	*virtctltest.Server
	t *testing.T
	// created receives the Pod.
	created chan *corev1.Pod
}

func newGuestfsCluster(t *testing.T, phase corev1.PodPhase) *guestfsCluster {
	t.Helper()
	s := &guestfsCluster{virtctltest.NewServer(t), t, make(chan *corev1.Pod, 1)}
	s.Record(http.MethodGet, "/guestfs", http.StatusOK, `{"registry":"registry.example/vireo","tag":"v1","imagePrefix":"","digest":"","gsImage":""}`)
	s.Add(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "data"}})
	go s.runPod(phase)
	s.Handle("/api/v1/namespaces/{namespace}/pods/{name}/attach", shoutingShell)
	return s
}

// runPod simulates the kubelet.
func (s *guestfsCluster) runPod(phase corev1.PodPhase) {
	for s.t.Context().Err() == nil {
		if found := s.Get("pods", virtctltest.Namespace, guestfsPod); found != nil {
			pod := &corev1.Pod{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, pod); err != nil {
				s.t.Error(err)
			}
			s.created <- pod.DeepCopy()
			pod.Status.Phase, pod.Status.Message = phase, "no\x1b[31m luck"
			s.Add(pod)
			return
		}
		select {
		case <-s.t.Context().Done():
		case <-time.After(time.Millisecond):
		}
	}
}

func shoutingShell(w http.ResponseWriter, r *http.Request) {
	socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{attachProtocol}})
	if err != nil {
		return
	}
	send := func(channel byte, text string) {
		_ = socket.Write(r.Context(), websocket.MessageBinary, append([]byte{channel}, text...))
	}
	for {
		_, message, err := socket.Read(r.Context())
		switch {
		case err != nil:
			return
		case message[0] != stdinChannel:
		case strings.Contains(string(message), "exit"):
			send(errorChannel, `{"metadata":{},"status":"Failure","reason":"NonZeroExitCode","message":"1","details":{"causes":[{"reason":"ExitCode","message":"1"}]}}`)
			_ = socket.Close(websocket.StatusNormalClosure, "")
			return
		default:
			send(stdoutChannel, strings.ToUpper(string(message[1:])))
		}
	}
}

// typing returns an input with these lines, which does not end before the test.
func typing(t *testing.T, lines ...string) io.Reader {
	in, out := io.Pipe()
	go func() {
		for _, line := range lines {
			_, _ = io.WriteString(out, line)
		}
	}()
	t.Cleanup(func() { _ = out.Close() })
	return in
}

func (s *guestfsCluster) run(in io.Reader, arguments ...string) virtctltest.Result {
	return s.RunWith(s.t.Context(), virtctl.Execute, in, append([]string{"guestfs"}, arguments...)...)
}

// expectDeleted expects that the Pod was created and deleted.
func (s *guestfsCluster) expectDeleted() {
	s.t.Helper()
	key := "pods/" + virtctltest.Namespace + "/" + guestfsPod
	if got := s.Writes(); !slices.Equal(got, []string{"POST " + key, "DELETE " + key}) {
		s.t.Errorf("writes %q", got)
	}
}

func TestGuestfs(t *testing.T) {
	s := newGuestfsCluster(t, corev1.PodRunning)
	got := s.run(typing(t, "virt-df\n", "exit\n"), "data")
	if got.Code != 0 || !strings.Contains(got.Out, "VIRT-DF") || !strings.Contains(got.ErrOut, "The PVC is at /disk") {
		t.Errorf("%+v", got)
	}
	s.expectDeleted()
	pod := <-s.created
	c := pod.Spec.Containers[0]
	if c.Image != "registry.example/vireo/libguestfs-tools:v1" || c.Command[0] != "/entrypoint.sh" || !c.TTY || !c.Stdin ||
		c.WorkingDir != "/disk" {
		t.Errorf("container %+v", c)
	}
	if kvm := c.Resources.Limits["devices.kubevirt.io/kvm"]; kvm.Value() != 1 {
		t.Errorf("limits %v", c.Resources.Limits)
	}
	if claim := pod.Spec.Volumes[0].PersistentVolumeClaim; claim == nil || claim.ClaimName != "data" {
		t.Errorf("volumes %+v", pod.Spec.Volumes)
	}
	if security := pod.Spec.SecurityContext; !*security.RunAsNonRoot || security.RunAsUser != nil {
		t.Errorf("security %+v", security)
	}
}

func TestGuestfsOfABlockDeviceWhereAVMRuns(t *testing.T) {
	s := newGuestfsCluster(t, corev1.PodRunning)
	block := corev1.PersistentVolumeBlock
	s.Add(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "data"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeMode: &block},
	})
	vm := builder.MakeVM("demo").Namespace(virtctltest.Namespace).Template(builder.MakeVMI("demo")).With(
		func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec.NodeSelector = map[string]string{"zone": "a"}
		})
	s.Add(vm.Obj())
	got := s.run(typing(t, "exit\n"), "data", "--vm=demo", "--kvm=false", "--image=example.org/tools:1", "--uid=1000",
		"--gid=2000", "--fsGroup=3000", "--pull-policy=Always")
	if got.Code != 0 || !strings.Contains(got.ErrOut, "The PVC is at /dev/vda") {
		t.Fatalf("%+v", got)
	}
	pod := <-s.created
	c, security := pod.Spec.Containers[0], pod.Spec.SecurityContext
	if c.Image != "example.org/tools:1" || c.ImagePullPolicy != corev1.PullAlways ||
		c.VolumeDevices[0].DevicePath != "/dev/vda" || len(c.Resources.Limits) > 0 {
		t.Errorf("container %+v", c)
	}
	if *security.RunAsUser != 1000 || *security.RunAsGroup != 2000 || *security.FSGroup != 3000 {
		t.Errorf("security %+v", security)
	}
	if pod.Spec.NodeSelector["zone"] != "a" {
		t.Errorf("nodeSelector %v", pod.Spec.NodeSelector)
	}
}

func TestGuestfsDeletesAPodThatDoesNotRun(t *testing.T) {
	s := newGuestfsCluster(t, corev1.PodFailed)
	if got := s.run(nil, "data"); got.Code != 1 ||
		!strings.Contains(got.ErrOut, "is not running but Failed: no[31m luck") {
		t.Errorf("%+v", got)
	}
	s.expectDeleted()
}

func TestGuestfsIsInterrupted(t *testing.T) {
	s := newGuestfsCluster(t, corev1.PodPending)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-s.created
		cancel()
	}()
	if got := s.RunWith(ctx, virtctl.Execute, nil, "guestfs", "data"); got.Code != 1 {
		t.Errorf("%+v", got)
	}
	s.expectDeleted()
}

func TestGuestfsIsRefused(t *testing.T) {
	s := newGuestfsCluster(t, corev1.PodRunning)
	user := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "virt-launcher-demo"}}
	user.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	s.Add(user)
	for want, arguments := range map[string][]string{
		"PVC data is used by another pod: virt-launcher-demo": {"data"},
		"the PVC none doesn't exist":                          {"none"},
		"cannot set uid if root is true":                      {"data", "--root", "--uid=1"},
		"gid requires the uid to be set":                      {"data", "--gid=1"},
		"cannot set fsGroup id with root":                     {"data", "--root", "--fsGroup=1"},
		"invalid pull policy: Sometimes":                      {"data", "--pull-policy=Sometimes"},
		`--uid: strconv.ParseInt: parsing "me"`:               {"data", "--uid=me"},
		"the name of the PVC is missing":                      {},
	} {
		if got := s.run(nil, arguments...); got.Code != 1 || !strings.Contains(got.ErrOut, want) {
			t.Errorf("%q: %+v, want %q", arguments, got, want)
		}
	}
	if writes := s.Writes(); len(writes) > 0 {
		t.Errorf("writes %q", writes)
	}
	// A finished Pod does not use the claim.
	user.Status.Phase = corev1.PodSucceeded
	s.Add(user)
	if got := s.run(typing(t, "exit\n"), "data"); got.Code != 0 {
		t.Errorf("%+v", got)
	}
}
