// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/apiserver/agentclient"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/health"
	"github.com/vireo-project/vireo/test/builder"
	fakeagent "github.com/vireo-project/vireo/test/fakes/agent"
)

const (
	installNamespace = "kubevirt"
	node             = "node1"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// world serves virt-api's verbs without authentication, with objects and the agent of one node.
type world struct {
	t        *testing.T
	client   client.WithWatch
	agent    *fakeagent.Agent
	config   clusterconfig.Config
	api      *API
	url      string
	stopping chan struct{}
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{t: t, agent: fakeagent.Start(t, node), config: clusterconfig.Default(), stopping: make(chan struct{})}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w.client = fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&v1.VirtualMachine{}, &v1.VirtualMachineInstance{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName",
			func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithObjects(append(objects, agentPod(node))...).Build()
	w.api = &API{
		Client: w.client, Config: func() clusterconfig.Config { return w.config },
		Health: &health.Check{APIServer: apiServer{}, ConfigVersion: func() string { return "17" }},
		Agents: agentclient.New(agentclient.Options{
			Pods: w.client, Namespace: installNamespace, Port: w.agent.Port, ReplaceTimeout: time.Millisecond,
			TLS: w.agent.Authority.Client(t),
		}),
	}
	w.restart(func(*API) {})
	return w
}

// restart changes the API and serves it on a new server.
func (w *world) restart(change func(*API)) {
	w.t.Helper()
	change(w.api)
	mux := http.NewServeMux()
	for _, v := range w.api.Verbs(w.stopping) {
		mux.HandleFunc(v.Method+" "+v.Path("v1"), func(rw http.ResponseWriter, r *http.Request) {
			if err := v.Serve(rw, r); err != nil {
				writeError(rw, err)
			}
		})
	}
	server := httptest.NewServer(mux)
	w.t.Cleanup(server.Close)
	w.url = server.URL
}

// intercept serves the API with a client that injects faults.
func (w *world) intercept(faults interceptor.Funcs) {
	w.t.Helper()
	w.restart(func(a *API) { a.Client = interceptor.NewClient(w.client, faults) })
}

func writeError(w http.ResponseWriter, err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	w.WriteHeader(int(status.Status().Code))
	_ = json.NewEncoder(w).Encode(status.Status())
}

// apiServer is an API server that responds.
type apiServer struct{}

func (apiServer) ServerVersion() (*version.Info, error) {
	return &version.Info{GitVersion: "v1.2.3"}, nil
}

func agentPod(node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: installNamespace, Name: "virt-handler-" + node,
			Labels: map[string]string{"kubevirt.io": "virt-handler"}},
		Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "127.0.0.1",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

// running returns a VMI that runs on the node and supports all verbs.
func running(name string) *builder.VMI {
	return builder.MakeVMI(name).Namespace("ns").UID("uid-" +
		name).Phase(v1.Running).With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.NodeName = node
		vmi.Status.Interfaces = []v1.VirtualMachineInstanceNetworkInterface{{Name: "default", IP: "10.0.0.7"}}
	})
}

func with(kind v1.VirtualMachineInstanceConditionType) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.Conditions = append(vmi.Status.Conditions,
			v1.VirtualMachineInstanceCondition{Type: kind, Status: corev1.ConditionTrue})
	}
}

const (
	vmPath  = "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachines/"
	vmiPath = "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/"
)

// do sends a request and returns the code and the body of the response.
func (w *world) do(method, path, body string) (int, string) {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// expect sends a request and compares the response's code, and the message of its Status.
func (w *world) expect(method, path, body string, code int, message string) {
	w.t.Helper()
	got, text := w.do(method, path, body)
	var status metav1.Status
	if got >= http.StatusBadRequest {
		if err := json.Unmarshal([]byte(text), &status); err != nil || int(status.Code) != got {
			w.t.Errorf("%s %s: the response is no Status: %s", method, path, text)
		}
	}
	if got != code || message != "" && !strings.Contains(status.Message, message) {
		w.t.Errorf("%s %s %s: got %d %s, want %d %s", method, path, body, got, text, code, message)
	}
}

// expectCalls compares the requests that the agent got since the last call.
func (w *world) expectCalls(verbs ...string) []fakeagent.Call {
	w.t.Helper()
	calls := w.agent.Calls()
	got := []string{}
	for _, call := range calls {
		got = append(got, call.Method+" "+call.Verb)
	}
	if strings.Join(got, ",") != strings.Join(verbs, ",") {
		w.t.Errorf("the agent got %v, want %v", got, verbs)
	}
	return calls
}

// dial opens a stream, and returns the response code.
func (w *world) dial(path string) (*websocket.Conn, int, error) {
	options := &websocket.DialOptions{Subprotocols: []string{"plain.kubevirt.io"}}
	conn, response, err := websocket.Dial(w.t.Context(), w.url+path, options) //nolint:bodyclose // the library closes it
	if response == nil {
		return conn, 0, err
	}
	return conn, response.StatusCode, err
}
