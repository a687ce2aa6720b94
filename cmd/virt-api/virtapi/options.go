// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtapi assembles virt-api: the server of subresources.kubevirt.io, its certificates and its logger.
package virtapi

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"

	"k8s.io/utils/clock"

	"github.com/vireo-project/vireo/internal/agentapi"
)

const (
	// namespaceEnv is the environment variable with the install namespace, which the Deployment sets.
	namespaceEnv = "POD_NAMESPACE"
	// defaultTrust is where the Deployment mounts the ConfigMap of CA certificates.
	defaultTrust = "/etc/virt-api/trust"
)

// Options are virt-api's flags. Names and defaults are KubeVirt's where KubeVirt has them.
type Options struct {
	// Address and Port are where virt-api listens.
	Address string
	Port    int
	// ConsoleServerPort is the port of the agents.
	ConsoleServerPort int
	// Namespace is the install namespace.
	Namespace string
	// TrustDirectory contains the CA certificates, one file for each role.
	TrustDirectory string
	// GuestfsImage is the image of libguestfs-tools; empty if there is none.
	GuestfsImage string
	// MetricsAuthorization restricts the metrics to clients that may get the URL /metrics.
	MetricsAuthorization bool
	// Kubeconfig is that of the API server; empty means the in-cluster configuration.
	Kubeconfig string
	// Verbosity is the minimum log verbosity. The KubeVirt object can raise it at run time.
	Verbosity int

	// Listener replaces Address and Port in tests, and Clock the time by which certificates are verified and renewed.
	Listener net.Listener
	Clock    clock.WithTicker
}

// BindFlags adds the options to a flag set.
func (o *Options) BindFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.Address, "listen", "0.0.0.0", "IP address on which virt-api serves")
	fs.IntVar(&o.Port, "port", 8443, "HTTPS port of the API")
	fs.IntVar(&o.ConsoleServerPort, "console-server-port", agentapi.ConsolePort, "port on which virt-handler serves requests for subresources")
	fs.StringVar(&o.Namespace, "install-namespace", os.Getenv(namespaceEnv),
		"namespace of the KubeVirt object and of the virt-handler Pods; the default is the environment variable "+namespaceEnv)
	fs.StringVar(&o.TrustDirectory, "trust-dir", defaultTrust, "directory with the CA certificates, one file for each role")
	fs.StringVar(&o.GuestfsImage, "guestfs-image", "", "image of libguestfs-tools, which virtctl guestfs runs; empty if there is none")
	fs.BoolVar(&o.MetricsAuthorization, "metrics-authorization", false, "serve the metrics only to clients that may get the URL /metrics")
	fs.IntVar(&o.Verbosity, "v", 0, "minimum log verbosity; "+
		"spec.configuration.developerConfiguration.logVerbosity.virtAPI of the KubeVirt object can raise it")
}

// Validate returns an error for each missing or invalid option.
func (o *Options) Validate() error {
	var errs []error
	if o.Namespace == "" {
		errs = append(errs, fmt.Errorf("the install namespace is not known: set --install-namespace or %s", namespaceEnv))
	}
	if net.ParseIP(o.Address) == nil {
		errs = append(errs, fmt.Errorf("--listen is %q: it must be an IP address", o.Address))
	}
	for flag, port := range map[string]int{"port": o.Port, "console-server-port": o.ConsoleServerPort} {
		if port < 1 || port > 65535 {
			errs = append(errs, fmt.Errorf("--%s is %d: it must be a port from 1 to 65535", flag, port))
		}
	}
	return errors.Join(errs...)
}
