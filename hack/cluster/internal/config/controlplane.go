// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package config

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/vireo-project/vireo/hack/cluster/internal/plan"
)

// ProvisionerName is the provisioner of the storage classes of a cluster without the CSI driver.
const ProvisionerName = "vireo.local/volumes"

// Ports on the bridge's address, which no other program of the host uses.
const (
	etcdPort      = 2379
	etcdPeerPort  = 2380
	apiServerPort = 6443
	dnsPort       = 10053
)

func addresses(list ...netip.Addr) []netip.Addr { return list }

func (r renderer) host(name string, probe Probe, directory string, arguments ...string) Component {
	return Component{
		Name: name, Cgroup: plan.HostCgroup, Path: SystemPath, Probe: probe,
		Command: append([]string{filepath.Join(directory, name)}, arguments...),
	}
}

func (r renderer) url(port int, path string) string {
	return fmt.Sprintf("https://%s:%d%s", r.plan.Host, port, path)
}

// etcd runs without fsync: the cluster is disposable, and does not survive a
// crash of the host anyway.
func (r renderer) etcd() Component {
	l := r.layout
	client, peer := r.url(etcdPort, ""), r.url(etcdPeerPort, "")
	return r.host("etcd", Probe{URL: r.url(etcdPort, "/readyz"), Certificate: "apiserver-etcd-client"}, r.facts.Etcd,
		"--name=vireo",
		"--data-dir="+l.Path("etcd"),
		"--unsafe-no-fsync",
		"--listen-client-urls="+client,
		"--advertise-client-urls="+client,
		"--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer,
		"--initial-cluster=vireo="+peer,
		"--client-cert-auth",
		"--trusted-ca-file="+l.PKI("etcd-ca.crt"),
		"--cert-file="+l.PKI("etcd.crt"),
		"--key-file="+l.PKI("etcd.key"),
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file="+l.PKI("etcd-ca.crt"),
		"--peer-cert-file="+l.PKI("etcd.crt"),
		"--peer-key-file="+l.PKI("etcd.key"),
		"--log-level=warn",
	)
}

func (r renderer) apiServer() Component {
	l, p := r.layout, r.plan
	return r.host("kube-apiserver", Probe{URL: r.url(apiServerPort, "/readyz"), Certificate: "admin"}, r.facts.Kubernetes,
		"--bind-address="+p.Host.String(),
		"--advertise-address="+p.Host.String(),
		fmt.Sprintf("--secure-port=%d", apiServerPort),
		"--service-cluster-ip-range="+p.ServiceCIDR.String(),
		"--allow-privileged",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		// Connect to the Pods of webhooks and aggregated APIs directly: the host
		// has routes to Pods and no kube-proxy.
		"--enable-aggregator-routing",
		"--etcd-servers="+r.url(etcdPort, ""),
		"--etcd-cafile="+l.PKI("etcd-ca.crt"),
		"--etcd-certfile="+l.PKI("apiserver-etcd-client.crt"),
		"--etcd-keyfile="+l.PKI("apiserver-etcd-client.key"),
		"--client-ca-file="+l.PKI("ca.crt"),
		"--tls-cert-file="+l.PKI("apiserver.crt"),
		"--tls-private-key-file="+l.PKI("apiserver.key"),
		"--kubelet-certificate-authority="+l.PKI("ca.crt"),
		"--kubelet-client-certificate="+l.PKI("apiserver-kubelet-client.crt"),
		"--kubelet-client-key="+l.PKI("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file="+l.PKI("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file="+l.PKI("front-proxy-client.crt"),
		"--proxy-client-key-file="+l.PKI("front-proxy-client.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+l.PKI("sa.pub"),
		"--service-account-signing-key-file="+l.PKI("sa.key"),
		"--audit-policy-file="+l.Config("audit-policy.yaml"),
		"--audit-log-path="+l.AuditLog(),
		"--audit-log-maxsize=200",
		"--audit-log-maxbackup=2",
	)
}

// There is one replica of each, so leader election is off: it would write a
// Lease every two seconds.
func (r renderer) controllerManager() Component {
	l, p := r.layout, r.plan
	config := l.Kubeconfig("controller-manager")
	return r.host("kube-controller-manager", Probe{URL: r.url(10257, "/healthz")}, r.facts.Kubernetes,
		"--bind-address="+p.Host.String(),
		"--kubeconfig="+config,
		"--authentication-kubeconfig="+config,
		"--authorization-kubeconfig="+config,
		"--leader-elect=false",
		"--use-service-account-credentials",
		"--root-ca-file="+l.PKI("ca.crt"),
		"--service-account-private-key-file="+l.PKI("sa.key"),
		"--cluster-signing-cert-file="+l.PKI("ca.crt"),
		"--cluster-signing-key-file="+l.PKI("ca.key"),
		// A node's Pod range is in its network configuration before the node exists.
		"--allocate-node-cidrs=false",
	)
}

func (r renderer) scheduler() Component {
	config := r.layout.Kubeconfig("scheduler")
	return r.host("kube-scheduler", Probe{URL: r.url(10259, "/healthz")}, r.facts.Kubernetes,
		"--bind-address="+r.plan.Host.String(),
		"--kubeconfig="+config,
		"--authentication-kubeconfig="+config,
		"--authorization-kubeconfig="+config,
		"--leader-elect=false",
	)
}

func (r renderer) coreDNS() Component {
	return r.host("coredns", Probe{URL: fmt.Sprintf("http://%s:8181/ready", r.plan.Host)}, r.facts.CoreDNS,
		"-conf", r.layout.Config("Corefile"),
	)
}

// corefile resolves names of the cluster from the API, and others with the
// host's resolvers.
func (r renderer) corefile() string {
	return fmt.Sprintf(`.:%d {
    bind %s
    errors
    ready %s:8181
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig %s
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
    }
    forward . /etc/resolv.conf {
        max_concurrent 100
    }
    cache 30
}
`, dnsPort, r.plan.Host, r.plan.Host, r.layout.Kubeconfig("coredns"))
}

// provisioner is a subcommand of this program.
func (r renderer) provisioner() Component {
	c := r.host("provisioner", Probe{}, "",
		"provision",
		"--kubeconfig="+r.layout.Kubeconfig("provisioner"),
		"--directory="+r.layout.Volumes(),
	)
	c.Command[0] = r.layout.Binary("cluster")
	return c
}

// auditPolicy logs writes, which the start benchmark counts by object.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
  resources:
  - group: kubevirt.io
  - group: apps
    resources: [controllerrevisions]
  - group: ""
    resources: [pods, pods/status, pods/binding, events]
  - group: events.k8s.io
- level: None
`

// manifest contains the objects that the components do not create themselves.
func (r renderer) manifest() string {
	return fmt.Sprintf(manifestTemplate, r.plan.DNSService, r.plan.Host, dnsPort, dnsPort, r.class(), r.class()) +
		r.storageManifest()
}

const manifestTemplate = `apiVersion: v1
kind: Service
metadata:
  name: kube-dns
  namespace: kube-system
  labels: {k8s-app: kube-dns, kubernetes.io/name: CoreDNS}
spec:
  clusterIP: %s
  ports:
  - {name: dns, port: 53, protocol: UDP}
  - {name: dns-tcp, port: 53, protocol: TCP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: kube-dns-host
  namespace: kube-system
  labels: {kubernetes.io/service-name: kube-dns}
addressType: IPv4
endpoints:
- addresses: [%s]
  conditions: {ready: true}
ports:
- {name: dns, port: %d, protocol: UDP}
- {name: dns-tcp, port: %d, protocol: TCP}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: local
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: %s
volumeBindingMode: WaitForFirstConsumer
reclaimPolicy: Delete
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local-immediate}
provisioner: %s
volumeBindingMode: Immediate
reclaimPolicy: Delete
allowVolumeExpansion: true
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "vireo:coredns"}
rules:
- apiGroups: [""]
  resources: [endpoints, services, pods, namespaces]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "vireo:coredns"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "vireo:coredns"}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: "vireo:coredns"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "vireo:provisioner"}
rules:
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims, nodes]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [persistentvolumeclaims/status]
  verbs: [patch]
- apiGroups: [storage.k8s.io]
  resources: [storageclasses]
  verbs: [get, list, watch]
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [create, patch, update]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "vireo:provisioner"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "vireo:provisioner"}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: "vireo:provisioner"}
`
