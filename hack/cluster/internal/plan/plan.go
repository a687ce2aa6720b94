// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package plan decides the names and addresses of a cluster: plain data from
// which everything else is rendered.
package plan

import (
	"errors"
	"fmt"
	"net/netip"
)

const (
	// Bridge is the interface of the machine to which the nodes are connected.
	Bridge = "vireo0"
	// BridgeHardware is its hardware address: a locally administered one, "Vireo" in ASCII.
	BridgeHardware = "0a:56:69:72:65:6f"
	// Cgroup is the control group of all processes of the cluster.
	Cgroup = "/vireo-cluster"
	// HostCgroup is the control group of the control plane.
	HostCgroup = Cgroup + "/host"
	// MaxNodes is the maximum number of nodes, which must fit into the /24.
	MaxNodes = 20
	// MTU is the MTU of the bridge, of the nodes' interfaces and of Pods. They
	// are the same, because packets between Pods are not encapsulated.
	MTU = 1500

	firstNodeHost = 11
)

// Options are what a user may choose.
type Options struct {
	// Nodes is the number of nodes.
	Nodes int
	// NodeCIDR is the /24 with the addresses of the bridge and of the nodes.
	NodeCIDR netip.Prefix
	// PodCIDR is a /16; each node has a /24 of it.
	PodCIDR netip.Prefix
	// ServiceCIDR is the range of Services.
	ServiceCIDR netip.Prefix
}

// Defaults returns the default options.
func Defaults() Options {
	return Options{
		Nodes:       1,
		NodeCIDR:    netip.MustParsePrefix("10.200.0.0/24"),
		PodCIDR:     netip.MustParsePrefix("10.244.0.0/16"),
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
	}
}

// Plan contains the names and addresses of a cluster.
type Plan struct {
	// Host is the machine's address on the bridge: the control plane listens here.
	Host netip.Addr `json:"host"`
	// NodeCIDR, PodCIDR and ServiceCIDR are the options'.
	NodeCIDR    netip.Prefix `json:"nodeCIDR"`
	PodCIDR     netip.Prefix `json:"podCIDR"`
	ServiceCIDR netip.Prefix `json:"serviceCIDR"`
	// APIService and DNSService are the addresses of Services kubernetes and kube-dns.
	APIService netip.Addr `json:"apiService"`
	DNSService netip.Addr `json:"dnsService"`
	// Nodes in order of their index.
	Nodes []Node `json:"nodes"`
}

// Node contains the names and addresses of a node.
type Node struct {
	// Name is the node's name, its host name and the name of its directory.
	Name string `json:"name"`
	// IP is its address on the bridge.
	IP netip.Addr `json:"ip"`
	// PodCIDR is the range of its Pods, PodGateway the node's address in it.
	PodCIDR    netip.Prefix `json:"podCIDR"`
	PodGateway netip.Addr   `json:"podGateway"`
	// Link is the machine's end of the virtual Ethernet pair to the node.
	Link string `json:"link"`
	// Cgroup is the root of the node's Pods, SystemCgroup that of its own processes.
	Cgroup       string `json:"cgroup"`
	SystemCgroup string `json:"systemCgroup"`
}

// New validates the options and returns the plan.
func New(o Options) (Plan, error) {
	if err := o.validate(); err != nil {
		return Plan{}, err
	}
	p := Plan{
		Host:        host(o.NodeCIDR, 1),
		NodeCIDR:    o.NodeCIDR.Masked(),
		PodCIDR:     o.PodCIDR.Masked(),
		ServiceCIDR: o.ServiceCIDR.Masked(),
		APIService:  host(o.ServiceCIDR, 1),
		DNSService:  host(o.ServiceCIDR, 10),
	}
	for i := range o.Nodes {
		name := fmt.Sprintf("node%d", i+1)
		pods := subnet(o.PodCIDR, i+1)
		p.Nodes = append(p.Nodes, Node{
			Name:         name,
			IP:           host(o.NodeCIDR, firstNodeHost+i),
			PodCIDR:      pods,
			PodGateway:   host(pods, 1),
			Link:         Link(name),
			Cgroup:       Cgroup + "/" + name,
			SystemCgroup: Cgroup + "/" + name + "/system",
		})
	}
	return p, nil
}

// Link returns the name of the machine's end of the virtual Ethernet pair to a node.
func Link(node string) string { return "vireo-" + node }

func (o Options) validate() error {
	if o.Nodes < 1 || o.Nodes > MaxNodes {
		return fmt.Errorf("%d nodes were requested: 1 to %d are possible", o.Nodes, MaxNodes)
	}
	ranges := []struct {
		name   string
		prefix netip.Prefix
		bits   int
	}{
		{"node", o.NodeCIDR, 24}, {"Pod", o.PodCIDR, 16}, {"Service", o.ServiceCIDR, 16},
	}
	var errs []error
	for i, r := range ranges {
		if !r.prefix.IsValid() || !r.prefix.Addr().Is4() || r.prefix.Bits() != r.bits {
			errs = append(errs, fmt.Errorf("the %s range %s is not an IPv4 /%d", r.name, r.prefix, r.bits))
			continue
		}
		for _, other := range ranges[:i] {
			if other.prefix.IsValid() && other.prefix.Overlaps(r.prefix) {
				errs = append(errs, fmt.Errorf("the %s range %s overlaps the %s range %s", r.name, r.prefix, other.name,
					other.prefix))
			}
		}
	}
	return errors.Join(errs...)
}

// Conflict returns an error if a network of the host overlaps with the plan. The
// default route is not a conflict.
func (p Plan) Conflict(machine []netip.Prefix) error {
	var errs []error
	for _, planned := range []netip.Prefix{p.NodeCIDR, p.PodCIDR, p.ServiceCIDR} {
		for _, existing := range machine {
			if existing.Bits() > 0 && existing.Overlaps(planned) {
				errs = append(errs, fmt.Errorf(
					"the machine has a route to %s, which overlaps the cluster's %s: choose other ranges with --node-cidr, --pod-cidr, --service-cidr", existing, planned))
			}
		}
	}
	return errors.Join(errs...)
}

// host returns the n-th address of the prefix.
func host(p netip.Prefix, n int) netip.Addr {
	b := p.Masked().Addr().As4()
	b[3] += byte(n)
	return netip.AddrFrom4(b)
}

// subnet returns the n-th /24 of a /16.
func subnet(p netip.Prefix, n int) netip.Prefix {
	b := p.Masked().Addr().As4()
	b[2] += byte(n)
	return netip.PrefixFrom(netip.AddrFrom4(b), 24)
}
