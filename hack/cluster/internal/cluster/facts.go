// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/hack/cluster/internal/config"
	"github.com/vireo-project/vireo/hack/cluster/internal/plan"
)

// cniPlugins is the directory of Debian's package.
const cniPlugins = "/usr/lib/cni"

// need is a program or file, and the Debian package that contains it.
type need struct{ what, pkg string }

func needs(o Options) []need {
	list := []need{
		{"runc", "runc"},
		{"ip", "iproute2"},
		{"nft", "nftables"},
		{"iptables", "iptables"},
		{"unshare", "util-linux"},
		{"nsenter", "util-linux"},
		{"mount", "mount"},
		{"losetup", "mount"},
		{"hostname", "hostname"},
		{filepath.Join(cniPlugins, "bridge"), "containernetworking-plugins"},
		{filepath.Join(cniPlugins, "host-local"), "containernetworking-plugins"},
		{filepath.Join(cniPlugins, "portmap"), "containernetworking-plugins"},
		{filepath.Join(cniPlugins, "loopback"), "containernetworking-plugins"},
	}
	if o.CSIDriver != "" {
		list = append(list, need{"mkfs.xfs", "xfsprogs"}, need{"xfs_growfs", "xfsprogs"})
	}
	return list
}

// missingPackages returns an error that names the packages to install.
func missingPackages(list []need, found func(string) error) error {
	var packages []string
	seen := map[string]bool{}
	for _, n := range list {
		if found(n.what) != nil && !seen[n.pkg] {
			seen[n.pkg] = true
			packages = append(packages, n.pkg)
		}
	}
	if len(packages) == 0 {
		return nil
	}
	return fmt.Errorf("programs are missing: apt-get install --no-install-recommends %s", strings.Join(packages, " "))
}

func lookPath(name string) error {
	_, err := exec.LookPath(name)
	return err
}

// facts reads the properties of the host.
func facts(o Options) (config.Facts, error) {
	if o.ExclusiveCPUs && o.Plan.Nodes > 1 {
		return config.Facts{}, errors.New("--exclusive-cpus is for one node: several kubelets would give away the same CPUs")
	}
	if err := missingPackages(needs(o), lookPath); err != nil {
		return config.Facts{}, err
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return config.Facts{}, fmt.Errorf("find runc: %w", err)
	}
	mayAdjust, err := haveCapability(unix.CAP_SYS_RESOURCE)
	if err != nil {
		return config.Facts{}, err
	}
	_, err = os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables")
	return config.Facts{
		Kubernetes: o.Kubernetes, Etcd: o.Etcd, Containerd: o.Containerd, CoreDNS: o.CoreDNS, Multus: o.Multus,
		CSIDriver: o.CSIDriver, CSISidecars: o.CSISidecars, ExclusiveCPUs: o.ExclusiveCPUs,
		Runc: runc, CNI: cniPlugins, MayAdjustOOM: mayAdjust, BridgeNetfilter: err == nil,
	}, nil
}

func haveCapability(capability int) (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, fmt.Errorf("read our capabilities: %w", err)
	}
	return data[capability/32].Effective&(1<<(capability%32)) != 0, nil
}

// conflicts returns an error if a plan overlaps with networks or interfaces of the host.
func (m *Machine) conflicts(p plan.Plan) error {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list the routes: %w", err)
	}
	var taken []netip.Prefix
	for _, route := range routes {
		if route.Dst == nil {
			continue
		}
		if prefix, err := netip.ParsePrefix(route.Dst.String()); err == nil {
			taken = append(taken, prefix)
		}
	}
	errs := []error{p.Conflict(taken)}
	for _, name := range links(p) {
		if _, err := netlink.LinkByName(name); err == nil {
			errs = append(errs, fmt.Errorf(
				"the machine has an interface %s that this program has no record of: remove it, if it is of a former cluster, with: ip link delete %s", name, name))
		}
	}
	if m.tree.Exists(plan.Cgroup) {
		errs = append(errs, fmt.Errorf("the machine has a control group %s that this program has no record of", plan.Cgroup))
	}
	return errors.Join(errs...)
}

// links returns the interfaces that a plan creates on the host.
func links(p plan.Plan) []string {
	names := make([]string, 0, 1+len(p.Nodes))
	names = append(names, plan.Bridge)
	for _, n := range p.Nodes {
		names = append(names, n.Link)
	}
	return names
}
