// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
)

// Namespace is a Pod's network namespace. It is an open descriptor, so that it stays the same namespace even if the
// process through which it was opened exits and its id is reused.
type Namespace struct{ file *os.File }

// ErrNodesNamespace means that a namespace is not a Pod's: changes there would disconnect the node from its network.
var ErrNodesNamespace error = &brokerapi.Error{
	Code:    brokerapi.CodeNodesNetwork,
	Message: "it is the node's own network namespace, or the broker's: a launcher Pod has one of its own",
}

// nodeProcesses are processes whose network no launcher Pod may share: the node's first one (the broker is in the
// node's process namespace), and the broker itself.
var nodeProcesses = []string{"/proc/1", "/proc/self"}

// OpenNamespaceFile opens a network namespace by a path such as /proc/<pid>/ns/net. It needs CAP_SYS_PTRACE. The error
// wraps ErrNodesNamespace if it is the node's or the broker's own, and it is another error if they cannot be compared.
func OpenNamespaceFile(path string) (*Namespace, error) {
	file, err := os.Open(path) //nolint:gosec // a path in /proc made of a process id
	if err != nil {
		return nil, fmt.Errorf("open the Pod's network namespace: %w", err)
	}
	namespace := &Namespace{file: file}
	for _, process := range nodeProcesses {
		same, err := namespace.isOf(process)
		if err == nil && same {
			err = ErrNodesNamespace
		}
		if err != nil {
			_ = file.Close()
			return nil, fmt.Errorf("open the Pod's network namespace: %w", err)
		}
	}
	return namespace, nil
}

// isOf reports whether the namespace is that of a process, given its directory in /proc.
func (n *Namespace) isOf(process string) (bool, error) {
	var own, other unix.Stat_t
	if err := unix.Fstat(int(n.file.Fd()), &own); err != nil {
		return false, err
	}
	switch err := unix.Stat(process+"/ns/net", &other); {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		// A security module may deny access to the namespaces of the node's processes.
		return n.hasTableOf(process)
	case err != nil:
		return false, fmt.Errorf("compare it with that of %s: %w", process, err)
	}
	return own.Ino == other.Ino && own.Dev == other.Dev, nil
}

// hasTableOf reports whether the namespace is that of a process by comparing files that every process may read: the
// table of interfaces has one inode for each namespace. Source: Linux fs/proc/proc_net.c (proc_net_ns_init) and
// generic.c (proc_alloc_inum).
func (n *Namespace) hasTableOf(process string) (bool, error) {
	var own, other unix.Stat_t
	err := n.Do(func() error { return unix.Stat("/proc/thread-self/net/dev", &own) })
	if err := errors.Join(err, unix.Stat(process+"/net/dev", &other)); err != nil {
		return false, fmt.Errorf("compare it with that of %s: %w", process, err)
	}
	return own.Ino == other.Ino && own.Dev == other.Dev, nil
}

// Close closes the descriptor.
func (n *Namespace) Close() error { return n.file.Close() }

// Do calls a function in the namespace, on a thread that is not used again: no other goroutine ever runs in a Pod's
// namespace.
func (n *Namespace) Do(inside func() error) error {
	return podprocess.OnDisposableThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the Pod's network namespace: %w", err)
		}
		return inside()
	})
}

// verbs are the verbs about the networks of launcher Pods.
type verbs struct {
	pods *pods.Pods
	// limit limits the requests that enter a Pod's network namespace.
	limit *server.Limiter
}

// Verbs returns the verbs about the networks of launcher Pods.
func Verbs(of *pods.Pods) server.Verbs {
	v := verbs{pods: of, limit: server.NewLimiter(1, 16, "the network of the launcher Pod is being changed: retry")}
	return server.Verbs{
		brokerapi.NetworkState:  server.With(v.networkState),
		brokerapi.ChangeNetwork: server.With(v.changeNetwork),
		brokerapi.OpenRouter:    server.With(v.openRouter),
	}
}

// networkState describes the Pod's links.
func (v verbs) networkState(pod string, _ server.None) (server.Task, error) {
	return v.inNetwork(pod, func(_ context.Context, namespace *Namespace) (server.Output, error) {
		links, err := Links(namespace)
		return server.Output{Result: networkapi.NetworkStateResult{Links: links}}, err
	}), nil
}

// changeNetwork changes the Pod's network step by step.
func (v verbs) changeNetwork(pod string, a networkapi.ChangeNetworkArguments) (server.Task, error) {
	return v.inNetwork(pod, func(ctx context.Context, namespace *Namespace) (server.Output, error) {
		return server.Output{}, Change(ctx, namespace, a.Steps)
	}), Check(a.Steps)
}

// openRouter opens a socket for router advertisements to the guest.
func (v verbs) openRouter(pod string, a networkapi.OpenRouterArguments) (server.Task, error) {
	if !strings.HasPrefix(a.Bridge, layout.BridgePrefix) {
		return server.Task{}, brokerapi.Invalid("%.32q is no bridge of a guest", a.Bridge)
	}
	return v.inNetwork(pod, func(_ context.Context, namespace *Namespace) (server.Output, error) {
		socket, result, err := OpenRouter(namespace, a.Bridge)
		return server.Output{Result: result, File: socket}, err
	}), CheckLinkName(a.Bridge)
}

// inNetwork returns a task in the network namespace of the Pod's libvirtd, opened through its descriptor, as its pid
// may have been reused. The node's own network is refused.
func (v verbs) inNetwork(pod string, do func(context.Context, *Namespace) (server.Output, error)) server.Task {
	return server.OfLibvirtd(v.pods, v.limit, pod, func(ctx context.Context, libvirtd *os.File) (server.Output, error) {
		namespace, err := OpenNamespaceFile(podprocess.Reopen(libvirtd) + "/ns/net")
		if err != nil {
			return server.Output{}, err
		}
		defer func() { _ = namespace.Close() }()
		return do(ctx, namespace)
	})
}

const (
	// routerSolicitation is the type of ICMPv6 message that a guest sends to find its gateway (RFC 4861, 4.1).
	routerSolicitation = 133
	// ndHops is the only hop limit with which a neighbor accepts a message of router discovery.
	ndHops = 255
)

var allRouters = net.ParseIP("ff02::2")

// OpenRouter opens a socket for router discovery on a bridge of a Pod, and describes the bridge. It returns no socket
// if the Pod has no IPv6. The socket sends and receives on the bridge only, and receives solicitations only. Call it
// after the guest was connected; it needs CAP_NET_RAW.
func OpenRouter(namespace *Namespace, name string) (*os.File, networkapi.OpenRouterResult, error) {
	var socket *os.File
	var result networkapi.OpenRouterResult
	err := namespace.Do(func() error {
		bridge, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		list, err := addresses(bridge)
		if err != nil || !slices.ContainsFunc(list, func(address netip.Prefix) bool { return address.Addr().Is6() }) {
			return err
		}
		result.MAC, result.MTU = bridge.Attrs().HardwareAddr, bridge.Attrs().MTU
		socket, err = listenRouter(bridge.Attrs())
		return err
	})
	if err != nil {
		return nil, networkapi.OpenRouterResult{}, fmt.Errorf("open a socket to advertise the guest's IPv6 gateway: %w", err)
	}
	return socket, result, nil
}

// listenRouter opens a socket for router discovery on a bridge. The kernel sets the checksum.
func listenRouter(bridge *netlink.LinkAttrs) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMPV6)
	if err != nil {
		return nil, err
	}
	group := &unix.IPv6Mreq{Interface: uint32(bridge.Index)}
	copy(group.Multiaddr[:], allRouters)
	// The kernel passes on solicitations only: set bits block (RFC 3542, 3.2).
	filter := &unix.ICMPv6Filter{}
	for i := range filter.Data {
		filter.Data[i] = math.MaxUint32
	}
	filter.Data[routerSolicitation/32] &^= 1 << (routerSolicitation % 32)
	socket := os.NewFile(uintptr(fd), "router")
	err = errors.Join(
		unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, filter),
		unix.BindToDevice(fd, bridge.Name),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, ndHops),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ndHops),
		unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, group))
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return socket, nil
}

// dhcpPort is the lower of the ports that the launcher binds to (67 and 547).
const dhcpPort = 67

// setting is one of the kernel's settings, and the only value that the broker gives it.
type setting struct {
	// name is its path, with the name of a link if it is one of a link.
	name   string
	ofLink bool
	value  int
	// from reports whether a value is to be changed. Without it, any other value is.
	from func(now int) bool
}

var settings = map[networkapi.Setting]setting{
	networkapi.ForwardIPv4:   {name: "ipv4/ip_forward", value: 1},
	networkapi.ForwardIPv6:   {name: "ipv6/conf/all/forwarding", value: 1},
	networkapi.IgnoreARP:     {name: "ipv4/conf/%s/arp_ignore", ofLink: true, value: 1},
	networkapi.RouteLoopback: {name: "ipv4/conf/%s/route_localnet", ofLink: true, value: 1},
	// Forwarding makes the kernel ignore router advertisements unless this is 2, and the Pod may have its default route
	// from one.
	networkapi.AcceptRA: {name: "ipv6/conf/%s/accept_ra", ofLink: true, value: 2,
		from: func(now int) bool { return now == 1 }},
	// A process that does not run as root has no capability for these ports, unless its file has. Many container
	// runtimes allow them already.
	networkapi.DHCPPorts: {name: "ipv4/ip_unprivileged_port_start", value: dhcpPort,
		from: func(now int) bool { return now > dhcpPort }},
}

// apply changes a setting, unless it is as it should be, in a procfs that the calling thread has mounted: the files
// below sys/net are those of its network namespace. A kernel without IPv6 has no settings of it.
func apply(procfs *os.File, which networkapi.Setting, link string) error {
	to := settings[which]
	name := "sys/net/" + to.name
	if to.ofLink {
		name = fmt.Sprintf(name, link)
	}
	text, err := podprocess.Read(procfs, name)
	if which == networkapi.AcceptRA && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	now, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || now == to.value || to.from != nil && !to.from(now) {
		return err
	}
	file, err := podprocess.OpenAt(procfs, name, unix.O_WRONLY, podprocess.Beneath)
	if err != nil {
		return err
	}
	_, err = file.WriteString(strconv.Itoa(to.value))
	return errors.Join(err, file.Close())
}
