// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package agent sets up virt-handler: a controller-runtime manager with the VMI reconciler, the connections to launchers, the
// device plugins and the reports about the node.
package agent

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agentapi"
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
	// PodIP is the address to serve metrics on; empty means all.
	PodIP string
	// Port is the port of the metrics, HealthPort that of the probes.
	Port, HealthPort int
	// ConsoleServerPort is the port of the server for virt-api.
	ConsoleServerPort int
	// MigrationPort is the port of the server for other agents.
	MigrationPort int
	// TrustDir has the certificates of the authorities, one file for each role.
	TrustDir string
	// Namespace is the install namespace.
	Namespace string
	// KubeletRoot is the kubelet's root directory.
	KubeletRoot string
	// DevDir is the agent's path of the node's /dev.
	DevDir string
	// PrivateDir is a private directory in memory, for sockets and for media while they are created.
	PrivateDir string
	// CapabilitiesDir has the capabilities that libvirt of the launcher image reports for the node.
	CapabilitiesDir string
	// MaxDevices is how many guests the node may run.
	MaxDevices int
	// Verbosity is the least verbosity of the log. The KubeVirt object can raise it live.
	Verbosity int
}

// BindFlags adds the options to a flag set.
func (o *Options) BindFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.Node, "hostname-override", os.Getenv(nodeEnv), "name of the node; environment "+nodeEnv)
	fs.StringVar(&o.PodIP, "pod-ip-address", os.Getenv(podIPEnv), "address to serve metrics on, empty for all; environment "+podIPEnv)
	fs.IntVar(&o.Port, "port", 8443, "port of the metrics, over TLS, for users who may get /metrics")
	fs.IntVar(&o.HealthPort, "health-port", 8081, "port of /healthz and /readyz")
	fs.IntVar(&o.ConsoleServerPort, "console-server-port", agentapi.ConsolePort, "port of consoles and the like, over TLS, for virt-api")
	fs.IntVar(&o.MigrationPort, "migration-port", agentapi.MigrationPort, "port of migrations, over TLS, for the agents of other nodes")
	fs.StringVar(&o.TrustDir, "trust-dir", "/etc/virt-handler/trust", "directory with the certificates of the authorities, one file for each role")
	fs.StringVar(&o.Namespace, "install-namespace", envOr(namespaceEnv, "kubevirt"),
		"namespace of the KubeVirt object; environment "+namespaceEnv)
	fs.StringVar(&o.KubeletRoot, "kubelet-root", "/var/lib/kubelet", "root directory of the kubelet")
	fs.StringVar(&o.DevDir, "dev-dir", "/host-dev", "this process's path of the node's /dev")
	fs.StringVar(&o.PrivateDir, "private-dir", "/var/run/kubevirt-private", "private directory in memory")
	fs.StringVar(&o.CapabilitiesDir, "capabilities-dir", "/var/lib/kubevirt-node-labeller",
		"directory with capabilities.xml and domcapabilities.xml of the launcher image's libvirt")
	fs.IntVar(&o.MaxDevices, "max-devices", 1000, "how many VMs the node may have")
	fs.IntVar(&o.Verbosity, "v", 0, "least verbosity of the log; "+
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
	if o.MaxDevices < 1 {
		errs = append(errs, fmt.Errorf("--max-devices is %d: give at least 1", o.MaxDevices))
	}
	return errors.Join(errs...)
}

func (o *Options) podsDir() string { return filepath.Join(o.KubeletRoot, "pods") }

func (o *Options) podResourcesDir() string { return filepath.Join(o.KubeletRoot, "pod-resources") }

func (o *Options) pluginDir() string { return filepath.Join(o.KubeletRoot, "device-plugins") }

// podFiles returns access to the files of a launcher Pod.
func (o *Options) podFiles(p *hypervisor.Process) facts.PodFiles {
	return facts.PodFiles{Process: p, NodeDev: o.DevDir}
}

func (o *Options) metricsAddress() string { return net.JoinHostPort(o.PodIP, strconv.Itoa(o.Port)) }

func envOr(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
