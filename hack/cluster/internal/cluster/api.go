// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/vireo-project/vireo/hack/cluster/internal/config"
	"github.com/vireo-project/vireo/hack/cluster/internal/plan"
	"github.com/vireo-project/vireo/hack/cluster/internal/process"
)

// afterAPIServer writes the kubeconfigs and applies the initial objects.
func (m *Machine) afterAPIServer(ctx context.Context, o Options, c config.Cluster) error {
	if err := m.writeKubeconfig(c.Plan); err != nil {
		return err
	}
	if err := m.writeCloneKubeconfig(o.Clone); err != nil {
		return err
	}
	// The API server is ready before its own namespaces exist.
	kubectl := filepath.Join(o.Kubernetes, "kubectl")
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := m.applyDefaults(ctx, kubectl, o)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the API server's log is %s: %w", m.layout.Log("kube-apiserver"), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("apply the cluster's defaults: %w", ctx.Err())
		case <-time.After(300 * time.Millisecond):
		}
	}
}

func (m *Machine) applyDefaults(ctx context.Context, kubectl string, o Options) error {
	files := []string{m.layout.Config("manifest.yaml")}
	if o.CSISidecars != "" {
		// The kinds that the manifest uses are applied first.
		files = append([]string{filepath.Join(o.CSISidecars, "crds")}, files...)
	}
	for _, file := range files {
		if _, err := process.Run(ctx, kubectl, "--kubeconfig", m.kubeconfig(), "apply", "--server-side", "--force-conflicts",
			"-f", file); err != nil {
			return err
		}
	}
	return nil
}

// writeKubeconfig writes the administrator's kubeconfig, which contains its
// certificates, so that no other file is needed.
func (m *Machine) writeKubeconfig(p plan.Plan) error {
	var content [3][]byte
	for i, file := range []string{"ca.crt", "admin.crt", "admin.key"} {
		data, err := os.ReadFile(m.layout.PKI(file))
		if err != nil {
			return fmt.Errorf("read a certificate: %w", err)
		}
		content[i] = data
	}
	k := clientcmdapi.NewConfig()
	k.Clusters["vireo"] = &clientcmdapi.Cluster{Server: config.APIServer(p), CertificateAuthorityData: content[0]}
	k.AuthInfos["vireo-admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: content[1], ClientKeyData: content[2]}
	k.Contexts["vireo"] = &clientcmdapi.Context{Cluster: "vireo", AuthInfo: "vireo-admin"}
	k.CurrentContext = "vireo"
	data, err := clientcmd.Write(*k)
	if err != nil {
		return fmt.Errorf("encode the kubeconfig: %w", err)
	}
	return replace(m.kubeconfig(), data, 0o600)
}

// writeCloneKubeconfig copies the administrator's kubeconfig into the clone.
func (m *Machine) writeCloneKubeconfig(clone string) error {
	data, err := os.ReadFile(m.kubeconfig())
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	return replace(Kubeconfig(clone), data, 0o600)
}

func (m *Machine) client() (kubernetes.Interface, error) {
	settings, err := clientcmd.BuildConfigFromFlags("", m.kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	settings.Timeout = 10 * time.Second
	client, err := kubernetes.NewForConfig(settings)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return client, nil
}

func (m *Machine) readyNodes(ctx context.Context) (int, error) {
	client, err := m.client()
	if err != nil {
		return 0, err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("list nodes: %w", err)
	}
	ready := 0
	for i := range nodes.Items {
		if isReady(&nodes.Items[i], time.Time{}) {
			ready++
		}
	}
	return ready, nil
}

// isReady reports whether the node has reported since a time that it is ready.
// The API stores whole seconds.
func isReady(node *corev1.Node, since time.Time) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(since.Truncate(time.Second))
		}
	}
	return false
}

// admitNode sets a Node's labels and Pod range, and waits until its kubelet
// has reported since a time that it is ready.
func (m *Machine) admitNode(ctx context.Context, n plan.Node, since time.Time) error {
	client, err := m.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	kubelet := n.Name + "/kubelet"
	for labeled := false; ; {
		node, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err == nil && !labeled {
			_, err = client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, nodePatch(n),
				metav1.PatchOptions{})
			labeled = err == nil
		}
		if labeled && isReady(node, since) {
			return nil
		}
		if err == nil {
			err = errors.New("it is not ready")
		}
		if !m.alive(kubelet) {
			return fmt.Errorf("%s has ended, its log is %s", kubelet, m.layout.Log(kubelet))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s: %w, its log is %s", n.Name, err, m.layout.Log(kubelet))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// nodePatch sets the labels that an installer sets, and the Pod range, which
// can be set only once.
func nodePatch(n plan.Node) []byte {
	roles := `"node-role.kubernetes.io/worker":""`
	if n.Name == "node1" {
		roles += `,"node-role.kubernetes.io/control-plane":""`
	}
	return fmt.Appendf(nil, `{"metadata":{"labels":{%s}},"spec":{"podCIDR":%q,"podCIDRs":[%q]}}`, roles, n.PodCIDR, n.PodCIDR)
}
