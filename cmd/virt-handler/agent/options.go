// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package agent sets up virt-handler: a controller-runtime manager with the VMI reconciler, the connections to
// launchers and to virt-broker, and the reports about the node.
package agent

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// Environment variables that the DaemonSet sets: defaults of flags.
const (
	nodeEnv      = "NODE_NAME"
	podIPEnv     = "MY_POD_IP"
	namespaceEnv = "POD_NAMESPACE"
)

// Options are virt-handler's flags. Those that KubeVirt has too have KubeVirt's names and defaults.
type Options struct {
	// Node is the node's name.
	Node string
	// Listen is the IP address on which the metrics and the server for virt-api listen. Empty means all addresses, as in
	// KubeVirt: a port that kubectl forwards is connected to localhost of the Pod.
	Listen string
	// PodIP is the address at which other agents connect to this one.
	PodIP string
	// Port is the port of the metrics, HealthPort that of the probes.
	Port, HealthPort int
	// MetricsAuthorization restricts the metrics to clients that may get the URL /metrics.
	MetricsAuthorization bool
	// ConsoleServerPort is the port of the server for virt-api.
	ConsoleServerPort int
	// MigrationPort is the port of the server for other agents.
	MigrationPort int
	// TrustDir contains the CA certificates, one file for each role.
	TrustDir string
	// Namespace is the install namespace.
	Namespace string
	// KubeletRoot is the kubelet's root directory on the node. Only the broker's socket below it is used.
	KubeletRoot string
	// PrivateDir is a private directory in memory, for sockets and for media while they are created.
	PrivateDir string
	// CapabilitiesDir contains the capabilities of the node, as libvirt of the virt-launcher image reports them.
	CapabilitiesDir string
	// Verbosity is the minimum log verbosity. The KubeVirt object can raise it at run time.
	Verbosity int
}

// BindFlags adds the options to a flag set.
func (o *Options) BindFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.Node, "hostname-override", os.Getenv(nodeEnv),
		"name of the node; the default is the environment variable "+nodeEnv)
	fs.StringVar(&o.Listen, "listen", "",
		"IP address on which the ports for the metrics and for virt-api listen, all addresses if empty")
	fs.StringVar(&o.PodIP, "pod-ip-address", os.Getenv(podIPEnv),
		"IP address at which the virt-handlers of other nodes connect to this one; the default is the environment variable "+
			podIPEnv)
	fs.IntVar(&o.Port, "port", 8443, "HTTPS port of the metrics")
	fs.BoolVar(&o.MetricsAuthorization, "metrics-authorization", false,
		"serve the metrics only to clients that may get the URL /metrics")
	fs.IntVar(&o.HealthPort, "health-port", 8081, "HTTP port of /healthz and /readyz")
	fs.IntVar(&o.ConsoleServerPort, "console-server-port", agentapi.ConsolePort,
		"HTTPS port on which virt-api requests subresources of the node's VMIs, as console and vnc")
	fs.IntVar(&o.MigrationPort, "migration-port", agentapi.MigrationPort,
		"HTTPS port on which the virt-handlers of other nodes request migrations to this node")
	fs.StringVar(&o.TrustDir, "trust-dir", "/etc/virt-handler/trust",
		"directory with the CA certificates, one file for each role")
	fs.StringVar(&o.Namespace, "install-namespace", envOr(namespaceEnv, "kubevirt"),
		"namespace of the KubeVirt object; the default is the environment variable "+namespaceEnv+", or kubevirt")
	fs.StringVar(&o.KubeletRoot, "kubelet-root", "/var/lib/kubelet",
		"root directory of the kubelet on the node, below which virt-broker has its socket")
	fs.StringVar(&o.PrivateDir, "private-dir", "/var/run/kubevirt-private",
		"directory in memory that no other process uses, for sockets and for disks while they are created")
	fs.StringVar(&o.CapabilitiesDir, "capabilities-dir", "/var/lib/kubevirt-node-labeller",
		"directory with capabilities.xml and domcapabilities.xml, which libvirt of the virt-launcher image has written")
	fs.IntVar(&o.Verbosity, "v", 0, "minimum log verbosity; "+
		"spec.configuration.developerConfiguration.logVerbosity.virtHandler of the KubeVirt object can raise it")
}

// Validate returns an error if an option is missing or invalid.
func (o *Options) Validate() error {
	var errs []error
	if o.Node == "" {
		errs = append(errs, fmt.Errorf("the node's name is not known: set --hostname-override or %s", nodeEnv))
	}
	if o.Namespace == "" {
		errs = append(errs, errors.New("the install namespace is not known: set --install-namespace"))
	}
	return errors.Join(errs...)
}

func (o *Options) metricsAddress() string { return net.JoinHostPort(o.Listen, strconv.Itoa(o.Port)) }

func (o *Options) consoleAddress() string {
	return net.JoinHostPort(o.Listen, strconv.Itoa(o.ConsoleServerPort))
}

// migrationAddress is only for other agents, which know the Pod's address.
func (o *Options) migrationAddress() string {
	return net.JoinHostPort(o.PodIP, strconv.Itoa(o.MigrationPort))
}

func envOr(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
