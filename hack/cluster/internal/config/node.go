// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package config

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/hack/cluster/internal/image"
	"github.com/vireo-project/vireo/hack/cluster/internal/layout"
	"github.com/vireo-project/vireo/hack/cluster/internal/plan"
)

// ContainerdSocket is the path of containerd's socket in the node.
const ContainerdSocket = "/run/containerd/containerd.sock"

// node renders a node's components and their files.
func (r renderer) node(n plan.Node) ([]Component, error) {
	r.kubeconfig(n.Name + "-kubelet")
	r.kubeconfig(n.Name + "-proxy")
	r.files[r.layout.Config(n.Name+"-init.sh")] = r.initScript(n)
	r.files[r.layout.Config(n.Name+"-containerd.toml")] = r.containerdConfig()
	network, err := json.MarshalIndent(r.networkConfig(n), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the network of %s: %w", n.Name, err)
	}
	r.files[r.layout.Node(n.Name, "net.d", "10-vireo.conflist")] = string(network) + "\n"
	multus, err := json.MarshalIndent(r.multusConfig(n), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode what Multus does on %s: %w", n.Name, err)
	}
	r.files[r.layout.Config(n.Name+"-multus.conf")] = string(multus) + "\n"
	for file, content := range map[string]any{"-kubelet.yaml": r.kubeletConfig(n), "-proxy.yaml": r.proxyConfig(n)} {
		text, err := yaml.Marshal(content)
		if err != nil {
			return nil, fmt.Errorf("encode %s%s: %w", n.Name, file, err)
		}
		r.files[r.layout.Config(n.Name+file)] = string(text)
	}
	components := []Component{r.holder(n), r.containerd(n), r.kubelet(n), r.proxy(n)}
	if r.facts.hasDriver() {
		components = append(components, r.nodeDriver(n))
	}
	return components, nil
}

func (r renderer) nodeComponent(n plan.Node, program string, probe Probe, command ...string) Component {
	return Component{
		Name: n.Name + "/" + program, Node: n.Name, Cgroup: n.SystemCgroup,
		// containerd looks for its shim and runc in its PATH.
		Path: r.facts.Containerd + ":" + SystemPath, Probe: probe, Command: command,
	}
}

// Holder is the component that keeps a node's namespaces.
func Holder(node string) string { return node + "/holder" }

// holder creates the node's namespaces and stays in them. Mounts of the host
// propagate to the node, but not vice versa: the node's mounts end with its
// namespace.
func (r renderer) holder(n plan.Node) Component {
	return r.nodeComponent(n, "holder", Probe{},
		"/usr/bin/unshare", "--mount", "--uts", "--net", "--propagation", "slave", "--",
		"/bin/sh", r.layout.Config(n.Name+"-init.sh"))
}

// initScript is the script that the holder runs before it sleeps.
func (r renderer) initScript(n plan.Node) string {
	var s strings.Builder
	line := func(format string, arguments ...any) { fmt.Fprintf(&s, format+"\n", arguments...) }
	line("set -eu")
	line("hostname %s", n.Name)
	line("# Shared, so that volumes which are mounted later reach containers that asked for it.")
	line("mount --make-rshared /")
	line("# Inside of the node everything is where it is on a machine of its own.")
	line("mount -t tmpfs -o mode=755,nosuid,nodev tmpfs /run")
	line("mkdir -p /run/lock /run/netns")
	for _, m := range layout.NodeMounts() {
		// A bind mount is a peer of its source. If it were not in a peer group of
		// its own, each volume would be mounted twice.
		line("mount --bind %s %s", r.layout.Node(n.Name, m.Name), m.Target)
		line("mount --make-private %s", m.Target)
		line("mount --make-shared %s", m.Target)
	}
	line("ip link set lo up")
	line("echo 1 > /proc/sys/net/ipv4/ip_forward")
	if r.facts.BridgeNetfilter {
		line("# A Pod's packets to a Service whose Pod is on the same bridge pass kube-proxy's rules both ways.")
		line("echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables")
	}
	line(": > %s", r.layout.Node(n.Name, "ready"))
	line("exec %s", r.layout.Binary("pause"))
	return s.String()
}

func (r renderer) containerd(n plan.Node) Component {
	return r.nodeComponent(n, "containerd", Probe{Socket: ContainerdSocket},
		filepath.Join(r.facts.Containerd, "containerd"), "--config", r.layout.Config(n.Name+"-containerd.toml"))
}

// containerdConfig makes the user of a container the owner of its block volumes,
// as every cluster that runs virtual machines without root has to.
func (r renderer) containerdConfig() string {
	return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = %q

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = %t
  device_ownership_from_security_context = true

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = [%q, %q]
  conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = %q
  SystemdCgroup = false
`, ContainerdSocket, image.Pause, !r.facts.MayAdjustOOM, r.facts.CNI, r.facts.Multus, r.facts.Runc)
}

func (r renderer) networkConfig(n plan.Node) any {
	return map[string]any{
		"cniVersion": "1.0.0",
		"name":       "vireo",
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true, "mtu": plan.MTU,
				"ipam": map[string]any{
					"type":   "host-local",
					"ranges": []any{[]any{map[string]any{"subnet": n.PodCIDR.String(), "gateway": n.PodGateway.String()}}},
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
		},
	}
}

func (r renderer) kubelet(n plan.Node) Component {
	return r.nodeComponent(n, "kubelet",
		Probe{URL: fmt.Sprintf("https://%s:10250/healthz", n.IP), Certificate: "apiserver-kubelet-client"},
		filepath.Join(r.facts.Kubernetes, "kubelet"),
		"--config="+r.layout.Config(n.Name+"-kubelet.yaml"),
		"--kubeconfig="+r.layout.Kubeconfig(n.Name+"-kubelet"),
		"--hostname-override="+n.Name,
		"--node-ip="+n.IP.String(),
		"--root-dir=/var/lib/kubelet",
	)
}

func (r renderer) kubeletConfig(n plan.Node) any {
	l := r.layout
	settings := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": l.PKI("ca.crt")},
		},
		"authorization":            map[string]any{"mode": "Webhook"},
		"tlsCertFile":              l.PKI(n.Name + "-kubelet-server.crt"),
		"tlsPrivateKeyFile":        l.PKI(n.Name + "-kubelet-server.key"),
		"address":                  n.IP.String(),
		"containerRuntimeEndpoint": "unix://" + ContainerdSocket,
		"clusterDNS":               []string{r.plan.DNSService.String()},
		"clusterDomain":            "cluster.local",
		// The host's resolv.conf may contain a resolver on its loopback address.
		"resolvConf":      l.Config("resolv.conf"),
		"cgroupDriver":    "cgroupfs",
		"cgroupRoot":      n.Cgroup,
		"failCgroupV1":    false,
		"failSwapOn":      false,
		"volumePluginDir": "/var/lib/kubelet/volume-plugins",
		// The host's disk is also used by other programs, and a garbage-collected
		// image cannot be pulled again.
		"evictionHard":                map[string]any{"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"makeIPTablesUtilChains":      false,
	}
	if r.facts.hasDriver() {
		// A kubelet mounts an attached volume after the next write of its node's status, and expands a filesystem when it
		// next synchronizes the Pod. The defaults are 10 s and more than a minute.
		settings["nodeStatusUpdateFrequency"] = "1s"
		settings["nodeStatusReportFrequency"] = "5m"
		settings["syncFrequency"] = "10s"
	}
	if r.facts.ExclusiveCPUs {
		settings["cpuManagerPolicy"] = "static"
		settings["reservedSystemCPUs"] = "0"
	}
	return settings
}

func (r renderer) proxy(n plan.Node) Component {
	return r.nodeComponent(n, "kube-proxy", Probe{URL: fmt.Sprintf("http://%s:10256/healthz", n.IP)},
		filepath.Join(r.facts.Kubernetes, "kube-proxy"),
		"--config="+r.layout.Config(n.Name+"-proxy.yaml"),
	)
}

func (r renderer) proxyConfig(n plan.Node) any {
	return map[string]any{
		"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
		"kind":             "KubeProxyConfiguration",
		"clientConnection": map[string]any{"kubeconfig": r.layout.Kubeconfig(n.Name + "-proxy")},
		// All of its rules are in tables of the node's own network namespace.
		"mode":               "nftables",
		"nftables":           map[string]any{"masqueradeAll": !r.facts.BridgeNetfilter},
		"clusterCIDR":        r.plan.PodCIDR.String(),
		"hostnameOverride":   n.Name,
		"healthzBindAddress": n.IP.String() + ":10256",
		"metricsBindAddress": "127.0.0.1:10249",
		// 0 does not change the machine's connection tracking.
		"conntrack": map[string]any{
			"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
		},
	}
}
