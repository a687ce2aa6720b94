// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/memorylimit"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/rights"
)

const (
	// root is the directory of the repository, in which the benchmark runs.
	root = "."
	// phaseTimeout and timeoutPerVM bound each wait.
	phaseTimeout, timeoutPerVM = 10 * time.Minute, 360 * time.Millisecond
	// memoryLimit is virt-controller's in config/manager, in bytes.
	memoryLimit = 2 << 30
	// etcdQuota is in bytes. The revisions of many objects between two compactions exceed etcd's default.
	etcdQuota = 8 << 30
	// The QPS and burst of Kubernetes's own components, so that they do not limit the measured ones.
	kubernetesQPS, kubernetesBurst = 2000, 4000
)

// Processes with the agent of one node each.
const (
	oneAgentName  = "one agent"
	lostAgentName = "agent of the lost node"
)

// world is the cluster of the benchmark.
type world struct {
	o           *options
	env         *envtest.Environment
	config      *rest.Config
	api         client.WithWatch
	audit       *auditLog
	fleet       *fleet
	stopReaders context.CancelFunc
	// processes are running, in the order in which they were started.
	processes []*process
	// admin is the path of an administrator's kubeconfig, and account that of virt-controller's.
	admin, account                                  string
	webhookPort, healthPort, pprofPort, metricsPort int
}

// start starts everything but VMs.
func (w *world) start(ctx context.Context) error {
	if err := os.MkdirAll(w.o.workDir, 0o755); err != nil {
		return err
	}
	for _, port := range []*int{&w.webhookPort, &w.healthPort, &w.pprofPort, &w.metricsPort} {
		var err error
		if *port, err = freePort(ctx); err != nil {
			return err
		}
	}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"start the control plane", w.startControlPlane},
		{"install", w.install},
		{"start Kubernetes's controllers, scheduler and kwok", w.startKubernetes},
		{"add nodes", w.addNodes},
		{"start virt-controller", w.startController},
		{"create the KubeVirt object", w.createKubeVirt},
		{"start the agents", w.startAgents},
		{"settle", w.settle},
	} {
		fmt.Fprintf(os.Stderr, "scale: %s …\n", step.name)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

func (w *world) startControlPlane(ctx context.Context) error {
	w.env = apiserver.New(filepath.Join(root, "config", "crd", "bases"))
	w.audit = &auditLog{file: filepath.Join(w.o.workDir, "audit.log"), counts: map[request]int{}}
	policy := filepath.Join(w.o.workDir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(rights.AuditPolicy), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(w.audit.file, nil, 0o600); err != nil {
		return err
	}
	w.env.ControlPlane.GetAPIServer().Configure().Append("audit-policy-file", policy).Append("audit-log-path",
		w.audit.file).
		Append("audit-log-maxsize", "100000")
	w.env.ControlPlane.Etcd = &envtest.Etcd{}
	w.env.ControlPlane.Etcd.Configure().Append("quota-backend-bytes", strconv.Itoa(etcdQuota))
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	if err := v1.AddToScheme(scheme); err != nil {
		return err
	}
	var err error
	if w.config, err = w.env.Start(); err != nil {
		return err
	}
	w.config.QPS, w.config.Burst = kubernetesQPS, kubernetesBurst
	if w.api, err = client.NewWithWatch(w.config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	for _, name := range []string{etcdName, apiServerName} {
		p, err := childNamed(name)
		if err != nil {
			return err
		}
		w.processes = append(w.processes, p)
	}
	w.admin, err = filepath.Abs(filepath.Join(w.o.workDir, "admin.kubeconfig"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(w.admin, w.env.KubeConfig, 0o600); err != nil {
		return err
	}
	readers, cancel := context.WithCancel(ctx)
	w.stopReaders = cancel
	go func() {
		if err := w.audit.follow(readers); err != nil {
			fmt.Fprintln(os.Stderr, "scale: read the audit log:", err)
		}
	}()
	return nil
}

// run starts a process of the cluster.
func (w *world) run(name string, environment []string, program string, args ...string) error {
	p, err := startProcess(name, w.o.workDir, environment, program, args...)
	if err == nil {
		w.processes = append(w.processes, p)
	}
	return err
}

func (w *world) startKubernetes(context.Context) error {
	scheduler := filepath.Join(w.o.workDir, "scheduler.yaml")
	if err := os.WriteFile(scheduler, fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: %d, burst: %d}
`, w.admin, kubernetesQPS, kubernetesBurst), 0o600); err != nil {
		return err
	}
	stages := filepath.Join(w.o.workDir, "kwok.yaml")
	if err := os.WriteFile(stages, kwokStages, 0o600); err != nil {
		return err
	}
	if err := w.run(schedulerName, nil, filepath.Join(w.o.kubernetes, schedulerName), "--config="+scheduler,
		"--secure-port=0"); err != nil {
		return err
	}
	// Those that the benchmark needs: for Pods of the components, for objects of deleted VMs, and for nodes that do not
	// respond.
	if err := w.run(managerName, nil, filepath.Join(w.o.kubernetes, managerName), "--kubeconfig="+w.admin,
		"--leader-elect=false", "--secure-port=0",
		"--controllers=garbage-collector-controller,node-lifecycle-controller,taint-eviction-controller,pod-garbage-collector-controller,"+
			"daemonset-controller,deployment-controller,replicaset-controller,disruption-controller",
		fmt.Sprintf("--kube-api-qps=%d", kubernetesQPS), fmt.Sprintf("--kube-api-burst=%d", kubernetesBurst)); err != nil {
		return err
	}
	return w.run(kwokName, nil, w.o.kwok, "--kubeconfig="+w.admin, "--config="+stages, "--manage-all-nodes=false",
		"--manage-nodes-with-label-selector="+simulatedLabel, "--cidr=10.64.0.1/10", "--node-ip=10.0.0.1",
		"--node-lease-duration-seconds=40")
}

// startController starts virt-controller with the rights of its account, and waits until it is ready and reconciles.
func (w *world) startController(ctx context.Context) error {
	if w.account == "" {
		if err := w.writeAccount(ctx); err != nil {
			return err
		}
	}
	err := w.run(controllerName, []string{
		memorylimit.Env + "=" + strconv.Itoa(memoryLimit), "VIREO_PPROF=127.0.0.1:" + strconv.Itoa(w.pprofPort),
		"KUBECONFIG=" + w.account,
	}, w.o.controller, controllerArguments(w.metricsPort, w.healthPort, w.webhookPort)...)
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/readyz", w.healthPort)
	return w.poll(ctx, "virt-controller", 50*time.Millisecond, func() (bool, error) {
		response, err := http.Get(url)
		if err != nil {
			return false, nil //nolint:nilerr // it does not listen yet
		}
		return response.StatusCode == http.StatusOK, response.Body.Close()
	})
}

// controllerArguments returns the command line of virt-controller.
func controllerArguments(metricsPort, healthPort, webhookPort int) []string {
	return []string{
		"--install-namespace=" + rights.Namespace, "--listen=127.0.0.1",
		"--port=" + strconv.Itoa(metricsPort), "--health-port=" + strconv.Itoa(healthPort),
		"--webhook-port=" + strconv.Itoa(webhookPort),
		"--launcher-image=example.com/virt-launcher:v1", "--handler-image=example.com/virt-handler:v1",
		"--broker-image=example.com/virt-broker:v1", "--api-image=example.com/virt-api:v1",
	}
}

// writeAccount writes virt-controller's kubeconfig, with a token of its service account.
func (w *world) writeAccount(ctx context.Context) error {
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](
		24 * 60 * 60)}}
	owner := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: rights.Namespace,
		Name: string(rights.Controller)}}
	if err := w.api.SubResource("token").Create(ctx, owner, token); err != nil {
		return err
	}
	const name = "scale"
	path, err := filepath.Abs(filepath.Join(w.o.workDir, "virt-controller.kubeconfig"))
	if err != nil {
		return err
	}
	w.account = path
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {Server: w.config.Host,
			CertificateAuthorityData: w.config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {Token: token.Status.Token}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, path)
}

// startAgents starts all agents, two of them in processes of their own, and waits until VMs may run on their nodes.
func (w *world) startAgents(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var others []string
	for i := 2; i < w.o.nodes; i++ {
		others = append(others, nodeName(i))
	}
	for name, nodes := range map[string][]string{oneAgentName: {nodeName(0)}, lostAgentName: {nodeName(1)},
		agentsName: others} {
		if err := w.run(name, nil, self, append([]string{"agents", "--kubeconfig=" + w.admin}, nodes...)...); err != nil {
			return err
		}
	}
	return w.poll(ctx, "schedulable nodes", 100*time.Millisecond, func() (bool, error) {
		nodes := &metav1.PartialObjectMetadataList{}
		nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
		err := w.api.List(ctx, nodes, client.MatchingLabels{v1.NodeSchedulable: "true"})
		return len(nodes.Items) == w.o.nodes, err
	})
}

// find returns the running process of a name.
func (w *world) find(name string) *process {
	for _, p := range w.processes {
		if p.name == name {
			return p
		}
	}
	return nil
}

// end stops a process, which then is no longer part of the cluster.
func (w *world) end(p *process, signal os.Signal) {
	for i := range w.processes {
		if w.processes[i] == p {
			w.processes = append(w.processes[:i:i], w.processes[i+1:]...)
			break
		}
	}
	p.stop(signal)
}

// stop stops the cluster.
func (w *world) stop() {
	for i := len(w.processes) - 1; i >= 0; i-- {
		if p := w.processes[i]; p.cmd != nil {
			p.stop(syscall.SIGTERM)
		}
	}
	if w.stopReaders != nil {
		w.stopReaders()
	}
	if w.env != nil {
		if err := w.env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "scale: stop the control plane:", err)
		}
	}
}

// kustomize returns the manifests of config/default.
func kustomize(ctx context.Context) ([]byte, error) {
	kubectl := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	cmd := exec.CommandContext(ctx, kubectl, "kustomize", filepath.Join(root, "config", "default"))
	cmd.Stderr = os.Stderr
	return cmd.Output()
}

func freePort(ctx context.Context) (int, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return 0, err
	}
	return n, listener.Close()
}
