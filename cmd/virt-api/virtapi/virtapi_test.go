// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtapi

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/component/livelog"
	"github.com/vireo-project/vireo/internal/component/profiler"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/rights"
)

var codecs = clientgoscheme.Codecs.WithoutConversion()

const group = "/apis/subresources.kubevirt.io/v1"

// TestRun runs virt-api with its service account behind the aggregation layer of a real API server, and an agent with a
// certificate. A user's requests to the API server reach the agent of the right node.
func TestRun(t *testing.T) {
	world := startCluster(t)
	g := world.g
	agentPort, lastPath := startAgent(t, world)
	listener, port := listen(t)
	config, _ := world.component(rights.API, "control-plane")
	options := &Options{
		Address: "127.0.0.1", Port: port, Listener: listener, ConsoleServerPort: agentPort,
		Namespace: installed, TrustDirectory: world.trust, Kubeconfig: world.kubeconfig(t, config),
	}
	log, err := livelog.New(0)
	g.Expect(err).NotTo(HaveOccurred())
	log.Install()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, config, options, log) }()
	defer stop()
	world.register(port)

	// Discovery needs no permissions. It goes through the API server, which verifies virt-api's certificate.
	list := &metav1.APIResourceList{}
	g.Eventually(func() error {
		return world.as("nobody").Get().AbsPath(group).Do(context.Background()).Into(list)
	}, timeout).Should(Succeed())
	g.Expect(list.APIResources).NotTo(BeEmpty())

	// The permissions of virt-api's service account suffice, and the user needs permissions too.
	vm := builder.MakeVM("one").Namespace("default").Strategy(v1.RunStrategyHalted).Obj()
	world.create(vm)
	start := func() error {
		return world.as("starter").Put().AbsPath(group + "/namespaces/default/virtualmachines/one/start").
			Body([]byte("{}")).Do(context.Background()).Error()
	}
	g.Expect(apierrors.IsForbidden(start())).To(BeTrue())
	world.create(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "test"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "kubevirt.io:edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "starter"}},
	})
	g.Eventually(start, timeout).Should(Succeed())
	g.Expect(world.client.Get(context.Background(), client.ObjectKeyFromObject(vm), vm)).To(Succeed())
	g.Expect(vm.Spec.RunStrategy).To(HaveValue(Equal(v1.RunStrategyAlways)))
	expectVerbsWrite(world, vm)
	expectExpanded(world)

	// Requests reach the agent of the node, with certificates on both sides.
	pause := func(name, node string) error {
		vmi := builder.MakeVMI(name).Namespace("default").Obj()
		world.create(vmi)
		vmi.Status.Phase, vmi.Status.NodeName = v1.Running, node
		g.Expect(world.client.Status().Update(context.Background(), vmi)).To(Succeed())
		return world.as("starter").Put().AbsPath(group + "/namespaces/default/virtualmachineinstances/" + name + "/pause").
			Body([]byte("{}")).Do(context.Background()).Error()
	}
	g.Expect(pause("here", "blue")).To(Succeed())
	g.Expect(*lastPath.Load()).To(HavePrefix("/v1/namespaces/default/virtualmachineinstances/here/pause"))
	expectRunbookThaws(t, world)
	g.Expect(*lastPath.Load()).To(HavePrefix("/v1/namespaces/default/virtualmachineinstances/here/unfreeze"))
	// The agent of blue listens at the address of red's agent Pod, and its certificate is rejected.
	_, _ = world.component(rights.Handler, "red")
	g.Expect(pause("there", "red")).NotTo(Succeed())
	g.Expect(*lastPath.Load()).To(ContainSubstring("/here/"), "the agent of blue got a request for a VMI on red")

	expectProfiles(world, port)

	// It stops, and closes its listener.
	stop()
	g.Eventually(done, timeout).Should(Receive(BeNil()))
	_, err = (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", listener.Addr().String())
	g.Expect(err).To(HaveOccurred())
}

// expectRunbookThaws runs the command of a runbook that thaws a guest, with kubectl.
func expectRunbookThaws(t *testing.T, world *cluster) {
	t.Helper()
	runbook, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "runbooks", "VireoGuestFrozenTooLong.md"))
	world.g.Expect(err).NotTo(HaveOccurred())
	command := regexp.MustCompile(`kubectl replace --raw .*\\\n.*`).FindString(string(runbook))
	world.g.Expect(command).NotTo(BeEmpty())
	run := exec.CommandContext(t.Context(), "sh", "-c",
		strings.NewReplacer("NAMESPACE", "default", "VMI", "here").Replace(command))
	run.Env = []string{"PATH=" + os.Getenv("KUBEBUILDER_ASSETS"), "KUBECONFIG=" + world.kubeconfig(t, world.config)}
	output, err := run.CombinedOutput()
	world.g.Expect(err).NotTo(HaveOccurred(), "%s: %s", command, output)
}

// expectProfiles takes profiles of virt-api, by way of its own port: it authenticates to itself as to its other Pods.
func expectProfiles(world *cluster, port int) {
	g, ctx := world.g, context.Background()
	do := func(user, command, body string) ([]byte, error) {
		result := world.as(user).Get().AbsPath(group + "/" + command + "-cluster-profiler").Body([]byte(body)).Do(ctx)
		if err := result.Error(); err != nil {
			return nil, err // with the message of the Status, which that of Raw has not
		}
		return result.Raw()
	}
	_, err := do("profiler", "start", "")
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "without a permission: %v", err)
	g.Expect(err).NotTo(MatchError(ContainSubstring("feature gate")))
	named := metav1.ObjectMeta{Name: "profiler"}
	world.create(&rbacv1.ClusterRole{ObjectMeta: named, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1.SubresourceGroupName}, Verbs: []string{"get", "list"},
		Resources: []string{"start-cluster-profiler", "stop-cluster-profiler", "dump-cluster-profiler"},
	}}})
	world.create(&rbacv1.ClusterRoleBinding{
		ObjectMeta: named, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: named.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "profiler"}},
	})
	g.Eventually(func() error { _, err := do("profiler", "start", ""); return err }, timeout).
		Should(MatchError(ContainSubstring("feature gate")))
	kubevirt := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: installed, Name: "kubevirt"}}
	kubevirt.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{ClusterProfiler: true}
	world.create(kubevirt)

	// The agents' Pods of this test have no port for profiles, so that they are not labeled.
	agents := &corev1.PodList{}
	g.Expect(world.client.List(ctx, agents, client.InNamespace(installed))).To(Succeed())
	for i := range agents.Items {
		pod := &agents.Items[i]
		pod.Labels = nil
		g.Expect(world.client.Update(ctx, pod)).To(Succeed())
	}
	for i := range 3 {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: installed, Name: fmt.Sprintf("virt-api-%d", i),
				Labels: map[string]string{v1.AppLabel: "virt-api"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name: "virt-api", Image: "i", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: int32(port)}},
			}}},
		}
		world.create(pod)
		pod.Status = corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		}
		if i == 0 {
			pod.Status.Conditions = nil // The first page has no ready Pod.
		}
		g.Expect(world.client.Status().Update(ctx, pod)).To(Succeed())
	}
	g.Eventually(func() error { _, err := do("profiler", "start", ""); return err }, timeout).Should(Succeed())
	_, err = do("profiler", "stop", "")
	g.Expect(err).NotTo(HaveOccurred())
	request, found := v1.ClusterProfilerRequest{PageSize: 1}, []string{}
	for {
		body, err := json.Marshal(request)
		g.Expect(err).NotTo(HaveOccurred())
		raw, err := do("profiler", "dump", string(body))
		g.Expect(err).NotTo(HaveOccurred())
		page := v1.ClusterProfilerResults{}
		g.Expect(json.Unmarshal(raw, &page)).To(Succeed())
		g.Expect(page.ComponentResults).To(HaveLen(1))
		for name, result := range page.ComponentResults {
			found = append(found, name)
			g.Expect(result.PprofData).To(And(HaveKey("cpu.pprof"), HaveKey("heap.pprof")))
		}
		if request.Continue = page.Continue; request.Continue == "" {
			break
		}
	}
	g.Expect(found).To(Equal([]string{"virt-api-1", "virt-api-2"}))

	// Nobody else gets profiles from the port.
	anonymousRequest, err := http.NewRequestWithContext(ctx, http.MethodGet,
		fmt.Sprintf("https://127.0.0.1:%d%s", port, profiler.DumpPath), http.NoBody)
	g.Expect(err).NotTo(HaveOccurred())
	anonymous := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := anonymous.Do(anonymousRequest)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(response.Body.Close()).To(Succeed())
	g.Expect(response.StatusCode).To(Equal(http.StatusForbidden))
	anonymous.CloseIdleConnections()
}

// expectVerbsWrite uses each verb that writes an object. Some of them are for administrators.
func expectVerbsWrite(world *cluster, vm *v1.VirtualMachine) {
	g, ctx := world.g, context.Background()
	vmi := builder.MakeVMI(vm.Name).Namespace(vm.Namespace).OwnedBy(vm).Obj()
	world.create(vmi)
	vmi.Status.Phase, vmi.Status.NodeName, vmi.Status.EvacuationNodeName = v1.Running, "blue", "blue"
	g.Expect(world.client.Status().Update(ctx, vmi)).To(Succeed())
	put := func(path, body string) {
		err := world.asAdmin().Put().AbsPath(group + "/namespaces/default/" + path).Body([]byte(body)).Do(ctx).Error()
		g.Expect(err).NotTo(HaveOccurred(), path)
	}

	put("virtualmachineinstances/one/evacuate/cancel", `{"evacuationNodeName":"blue"}`)
	g.Expect(world.client.Get(ctx, client.ObjectKeyFromObject(vmi), vmi)).To(Succeed())
	g.Expect(vmi.Status.EvacuationNodeName).To(BeEmpty())

	put("virtualmachines/one/migrate", "{}")
	migrations := &v1.VirtualMachineInstanceMigrationList{}
	g.Expect(world.client.List(ctx, migrations, client.InNamespace(vm.Namespace))).To(Succeed())
	g.Expect(migrations.Items).To(HaveLen(1))

	put("virtualmachines/one/restart", "{}")
	g.Expect(world.client.Get(ctx, client.ObjectKeyFromObject(vm), vm)).To(Succeed())
	g.Expect(vm.Status.StateChangeRequests).NotTo(BeEmpty())

	put("virtualmachines/one/stop", `{"gracePeriod":1}`)
	g.Expect(world.client.Get(ctx, client.ObjectKeyFromObject(vmi), vmi)).To(Succeed())
	g.Expect(vmi.Spec.TerminationGracePeriodSeconds).To(HaveValue(BeEquivalentTo(1)))
}

// expectExpanded expands VMs that refer to objects of each kind of instance types and preferences, and to a
// ControllerRevision.
func expectExpanded(world *cluster) {
	g, ctx := world.g, context.Background()
	size := v1beta1.VirtualMachineInstancetypeSpec{
		CPU: v1beta1.CPUInstancetype{Guest: 3}, Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse("1Gi")},
	}
	named := metav1.ObjectMeta{Namespace: "default", Name: "named"}
	world.create(&v1beta1.VirtualMachineInstancetype{ObjectMeta: named, Spec: size})
	world.create(&v1beta1.VirtualMachineClusterInstancetype{ObjectMeta: metav1.ObjectMeta{Name: named.Name}, Spec: size})
	world.create(&v1beta1.VirtualMachinePreference{ObjectMeta: named})
	world.create(&v1beta1.VirtualMachineClusterPreference{ObjectMeta: metav1.ObjectMeta{Name: named.Name}})
	raw, err := json.Marshal(&v1beta1.VirtualMachineInstancetype{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "VirtualMachineInstancetype"},
		ObjectMeta: named, Spec: size,
	})
	g.Expect(err).NotTo(HaveOccurred())
	world.create(&appsv1.ControllerRevision{ObjectMeta: named, Data: runtime.RawExtension{Raw: raw}})
	for _, tc := range []struct{ instancetype, preference, revision string }{
		{"VirtualMachineInstancetype", "VirtualMachinePreference", ""}, {"", "", ""}, {"VirtualMachineInstancetype", "", named.Name},
	} {
		body := fmt.Sprintf(`{"spec":{"instancetype":{"name":"named","kind":%q,"revisionName":%q},"preference":{"name":"named","kind":%q},`+
			`"template":{"spec":{"domain":{"devices":{}}}}}}`, tc.instancetype, tc.revision, tc.preference)
		expanded := &v1.VirtualMachine{}
		raw, err := world.as("starter").Put().AbsPath(group +
			"/namespaces/default/expand-vm-spec").Body([]byte(body)).Do(ctx).Raw()
		g.Expect(err).NotTo(HaveOccurred(), body)
		g.Expect(json.Unmarshal(raw, expanded)).To(Succeed())
		g.Expect(expanded.Spec.Template.Spec.Domain.CPU.Sockets).To(BeEquivalentTo(3), body)
	}
}

// startAgent starts a server in place of the agent of node blue, with a certificate that it requests as that agent. It
// returns the port and the path of the last request.
func startAgent(t *testing.T, world *cluster) (int, *atomic.Pointer[string]) {
	t.Helper()
	config, _ := world.component(rights.Handler, "blue")
	own := certificate.NewSource(config, certificate.AgentServing, certificate.AgentSubject("blue"),
		certificate.Trust(world.trust))
	background(t, own.Start)
	listener, port := listen(t)
	lastPath := &atomic.Pointer[string]{}
	lastPath.Store(new(string))
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			lastPath.Store(&r.URL.Path)
			w.WriteHeader(http.StatusAccepted)
		}),
	}
	go func() {
		_ = server.Serve(tls.NewListener(listener, certificate.AgentServer(own, certificate.Trust(world.trust))))
	}()
	t.Cleanup(func() { _ = server.Close() })
	world.g.Eventually(own.Current, timeout).ShouldNot(BeNil())
	return port, lastPath
}

func TestOptions(t *testing.T) {
	o := &Options{}
	fs := flag.NewFlagSet("virt-api", flag.ContinueOnError)
	o.BindFlags(fs)
	if err := fs.Parse([]string{"--install-namespace", "kubevirt", "--v", "3"}); err != nil {
		t.Fatal(err)
	}
	if err := o.Validate(); err != nil || o.Port != 8443 || o.ConsoleServerPort != 8186 || o.Verbosity != 3 {
		t.Errorf("%+v: %v", o, err)
	}
	err := (&Options{Address: "somewhere", Port: 70000}).Validate()
	for _, flag := range []string{"--install-namespace", "--listen", "--port", "--console-server-port"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("no error about %s: %v", flag, err)
		}
	}
}
