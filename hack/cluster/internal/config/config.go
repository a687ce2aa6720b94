// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package config renders the cluster's configuration: the programs with their
// arguments, and their files. It is pure, so that the configuration can be
// compared with that of a running cluster.
package config

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/vireo-project/vireo/hack/cluster/internal/layout"
	"github.com/vireo-project/vireo/hack/cluster/internal/pki"
	"github.com/vireo-project/vireo/hack/cluster/internal/plan"
)

// Facts are properties of the host on which the configuration depends.
type Facts struct {
	// Programs are the directories of programs built for the cluster.
	Kubernetes string `json:"kubernetes"`
	Etcd       string `json:"etcd"`
	Containerd string `json:"containerd"`
	CoreDNS    string `json:"coredns"`
	Multus     string `json:"multus"`
	// CSIDriver and CSISidecars are empty if the provisioner creates the volumes.
	CSIDriver   string `json:"csiDriver,omitempty"`
	CSISidecars string `json:"csiSidecars,omitempty"`
	// ExclusiveCPUs means that guaranteed Pods get whole CPUs.
	ExclusiveCPUs bool `json:"exclusiveCPUs,omitempty"`
	// Runc is the path of runc, CNI the directory of the network plugins.
	Runc string `json:"runc"`
	CNI  string `json:"cni"`
	// MayAdjustOOM is false for a root user without CAP_SYS_RESOURCE, who
	// cannot lower the OOM score of processes.
	MayAdjustOOM bool `json:"mayAdjustOOM"`
	// BridgeNetfilter reports whether the kernel passes bridged packets through netfilter.
	BridgeNetfilter bool `json:"bridgeNetfilter"`
}

// Probe is a readiness check of a component.
type Probe struct {
	// URL has to return 200.
	URL string `json:"url,omitempty"`
	// Certificate is the name of the client certificate.
	Certificate string `json:"certificate,omitempty"`
	// Socket is a socket that has to accept connections: in the node, or on the machine for a component of the control
	// plane.
	Socket string `json:"socket,omitempty"`
}

// Component is a program of the cluster.
type Component struct {
	// Name is unique: etcd, node1/kubelet, ...
	Name string `json:"name"`
	// Node is the node it belongs to, empty for the control plane.
	Node string `json:"node,omitempty"`
	// Cgroup is the group it runs in.
	Cgroup string `json:"cgroup"`
	// Command is its command line.
	Command []string `json:"command"`
	// Path is its PATH.
	Path  string `json:"path"`
	Probe Probe  `json:"probe"`
}

// Cluster is the configuration of a cluster.
type Cluster struct {
	Plan plan.Plan
	// Files are the contents of files by path.
	Files map[string]string
	// ControlPlane are the components of the control plane in the order of their start.
	ControlPlane []Component
	// Nodes are the nodes' components in the order of their start, by node.
	Nodes map[string][]Component
	// Certificates are the certificates to create.
	Certificates []pki.Leaf
	// Manifest contains the objects that are applied once the API server is up.
	Manifest string
}

// SystemPath is the PATH of every component.
const SystemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// renderer contains the common inputs of rendering.
type renderer struct {
	plan   plan.Plan
	layout layout.Layout
	facts  Facts
	files  map[string]string
}

// Render renders the configuration of a cluster.
func Render(p plan.Plan, l layout.Layout, f Facts) (Cluster, error) {
	r := renderer{plan: p, layout: l, facts: f, files: map[string]string{}}
	c := Cluster{Plan: p, Files: r.files, Nodes: map[string][]Component{}, Certificates: r.certificates(),
		Manifest: r.manifest()}
	for _, user := range []string{"controller-manager", "scheduler", "coredns", "provisioner", storageUser} {
		r.kubeconfig(user)
	}
	r.files[l.Config("audit-policy.yaml")] = auditPolicy
	r.files[l.Config("Corefile")] = r.corefile()
	r.files[l.Config("resolv.conf")] = fmt.Sprintf("nameserver %s\n", p.DNSService)
	r.files[l.Config("manifest.yaml")] = c.Manifest
	c.ControlPlane = append([]Component{r.etcd(), r.apiServer(), r.controllerManager(), r.scheduler(), r.coreDNS()},
		r.storage()...)
	for _, node := range p.Nodes {
		components, err := r.node(node)
		if err != nil {
			return Cluster{}, err
		}
		c.Nodes[node.Name] = components
	}
	return c, nil
}

// Shape returns a digest of the configuration.
func (c Cluster) Shape() (string, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encode the configuration: %w", err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(data)), nil
}

// certificates returns a certificate for each client and server.
func (r renderer) certificates() []pki.Leaf {
	leaves := r.hostCertificates()
	for _, n := range r.plan.Nodes {
		leaves = slices.Concat(leaves, nodeCertificates(n))
	}
	return leaves
}

func (r renderer) hostCertificates() []pki.Leaf {
	p := r.plan
	return []pki.Leaf{
		{File: "etcd", Authority: pki.Etcd, CommonName: "etcd", Names: []string{"localhost"}, Addresses: addresses(p.Host)},
		{File: "apiserver-etcd-client", Authority: pki.Etcd, CommonName: "kube-apiserver"},
		{
			File: "apiserver", Authority: pki.Cluster, CommonName: "kube-apiserver",
			Names: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
				"kubernetes.default.svc.cluster.local"},
			Addresses: addresses(p.Host, p.APIService),
		},
		{File: "apiserver-kubelet-client", Authority: pki.Cluster, CommonName: "kube-apiserver-kubelet-client", Organization: "system:masters"},
		{File: "front-proxy-client", Authority: pki.FrontProxy, CommonName: "front-proxy-client"},
		{File: "admin", Authority: pki.Cluster, CommonName: "vireo-admin", Organization: "system:masters"},
		{File: "controller-manager", Authority: pki.Cluster, CommonName: "system:kube-controller-manager"},
		{File: "scheduler", Authority: pki.Cluster, CommonName: "system:kube-scheduler"},
		{File: "coredns", Authority: pki.Cluster, CommonName: "vireo:coredns"},
		{File: "provisioner", Authority: pki.Cluster, CommonName: "vireo:provisioner"},
		{File: storageUser, Authority: pki.Cluster, CommonName: "vireo:" + storageUser},
	}
}

func nodeCertificates(n plan.Node) []pki.Leaf {
	return []pki.Leaf{
		{File: n.Name + "-kubelet", Authority: pki.Cluster, CommonName: "system:node:" + n.Name, Organization: "system:nodes"},
		{File: n.Name + "-kubelet-server", Authority: pki.Cluster, CommonName: n.Name, Names: []string{n.Name}, Addresses: addresses(n.IP)},
		{File: n.Name + "-proxy", Authority: pki.Cluster, CommonName: "system:kube-proxy"},
	}
}

// APIServer returns the URL of the API server.
func APIServer(p plan.Plan) string {
	return fmt.Sprintf("https://%s:6443", p.Host)
}

// kubeconfig renders the kubeconfig of a component, with the paths of its certificates.
func (r renderer) kubeconfig(user string) {
	r.files[r.layout.Kubeconfig(user)] = fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: vireo
  cluster:
    server: %s
    certificate-authority: %s
users:
- name: %s
  user:
    client-certificate: %s
    client-key: %s
contexts:
- name: vireo
  context:
    cluster: vireo
    user: %s
current-context: vireo
`, APIServer(r.plan), r.layout.PKI("ca.crt"), user, r.layout.PKI(user+".crt"), r.layout.PKI(user+".key"), user)
}
