// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package manager wires virt-controller: one controller-runtime manager with every reconciler and every webhook,
// its cache, its certificates and its log. It decides nothing about VMs.
package manager

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/rules"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Options are virt-controller's flags. Names and defaults are KubeVirt's where KubeVirt has them.
type Options struct {
	LauncherImage string
	HandlerImage  string
	BrokerImage   string
	APIImage      string
	// GuestfsImage is the image of libguestfs-tools; empty if there is none.
	GuestfsImage string
	// ExporterImage and ExportProxyImage are the images of virt-exportserver and virt-exportproxy; empty if there are
	// none.
	ExporterImage    string
	ExportProxyImage string
	// Namespace is the install namespace.
	Namespace string
	// PodName is the name of the Pod in which the process runs, which must be unique; empty outside of one.
	PodName     string
	KubeletRoot string
	// BindAddress and Port are where the metrics are served.
	BindAddress string
	Port        int
	HealthPort  int
	WebhookPort int
	// WebhookService is the Service of the webhooks, and MutatingWebhooks and ValidatingWebhooks are the names of their
	// configurations.
	WebhookService     string
	MutatingWebhooks   string
	ValidatingWebhooks string
	LeaderElection     bool
	// MetricsAuthorization restricts the metrics of all components to clients that may get the URL /metrics.
	MetricsAuthorization bool
	// LiveMetadata are the annotations and labels that are copied from a VM's template to its running launcher Pod.
	LiveMetadata podspec.LiveMetadata
	// RunbookURL is a template of the addresses of runbooks of alerts, with one %s for the alert's name.
	RunbookURL string
	// Verbosity is the minimum log verbosity. The KubeVirt object can raise it at run time.
	Verbosity int

	// Clock replaces the time by which CAs are rotated and certificates signed, in tests.
	Clock clock.PassiveClock
	// SkipNameValidation is for tests that start several managers in a process, whose reconcilers have the same names.
	SkipNameValidation bool
}

const (
	defaultNamespace = "kubevirt"
	// Environment variables with the images of this build, which the Deployment sets.
	launcherImageEnv = "VIRT_LAUNCHER_IMAGE"
	handlerImageEnv  = "VIRT_HANDLER_IMAGE"
	brokerImageEnv   = "VIRT_BROKER_IMAGE"
	apiImageEnv      = "VIRT_API_IMAGE"
	guestfsImageEnv  = "LIBGUESTFS_TOOLS_IMAGE"
	exporterImageEnv = "VIRT_EXPORTSERVER_IMAGE"
	proxyImageEnv    = "VIRT_EXPORTPROXY_IMAGE"
	namespaceEnv     = "POD_NAMESPACE"
	podNameEnv       = "POD_NAME"
	// runbookEnv is KubeVirt's variable.
	runbookEnv = "RUNBOOK_URL_TEMPLATE"
)

// BindFlags adds the options to a flag set. Environment variables are the defaults of those that have one.
func (o *Options) BindFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.LauncherImage, "launcher-image", os.Getenv(launcherImageEnv),
		"image of virt-launcher, unless the KubeVirt object names a registry or a tag; the default is the environment variable "+launcherImageEnv)
	fs.StringVar(&o.HandlerImage, "handler-image", os.Getenv(handlerImageEnv),
		"image of virt-handler, unless the KubeVirt object names a registry or a tag; the default is the environment variable "+handlerImageEnv)
	fs.StringVar(&o.BrokerImage, "broker-image", os.Getenv(brokerImageEnv),
		"image of virt-broker, unless the KubeVirt object names a registry or a tag; the default is the environment variable "+brokerImageEnv)
	fs.StringVar(&o.APIImage, "api-image", os.Getenv(apiImageEnv),
		"image of virt-api, unless the KubeVirt object names a registry or a tag; the default is the environment variable "+
			apiImageEnv)
	fs.StringVar(&o.GuestfsImage, "guestfs-image", os.Getenv(guestfsImageEnv),
		"image of libguestfs-tools, which virtctl guestfs runs, unless the KubeVirt object names a registry or a tag; empty if there is none; "+
			"the default is the environment variable "+guestfsImageEnv)
	fs.StringVar(&o.ExporterImage, "exporter-image", os.Getenv(exporterImageEnv),
		"image of virt-exportserver, which serves VirtualMachineExports, unless the KubeVirt object names a registry or a tag; empty if there is none; "+
			"the default is the environment variable "+exporterImageEnv)
	fs.StringVar(&o.ExportProxyImage, "export-proxy-image", os.Getenv(proxyImageEnv),
		"image of virt-exportproxy, unless the KubeVirt object names a registry or a tag; empty if there is none; "+
			"the default is the environment variable "+proxyImageEnv)
	fs.StringVar(&o.Namespace, "install-namespace", envOr(namespaceEnv, defaultNamespace),
		"namespace of the KubeVirt object and of the components; the default is the environment variable "+namespaceEnv+
			", or "+defaultNamespace)
	// Not a flag: the KubeVirt object's flags are the same for all Pods, each of which would be the leader.
	o.PodName = os.Getenv(podNameEnv)
	fs.StringVar(&o.KubeletRoot, "kubelet-root", manifests.DefaultKubeletRoot,
		"root directory of the kubelet on the nodes")
	fs.StringVar(&o.BindAddress, "listen", "", "IP address on which the metrics are served, all addresses if empty")
	fs.IntVar(&o.Port, "port", 8443, "HTTPS port of the metrics")
	fs.BoolVar(&o.MetricsAuthorization, "metrics-authorization", false,
		"serve the metrics of all components only to clients that may get the URL /metrics; by default everyone may, as in KubeVirt")
	fs.IntVar(&o.HealthPort, "health-port", 8081, "HTTP port of /healthz and /readyz")
	fs.IntVar(&o.WebhookPort, "webhook-port", 9443, "HTTPS port of the webhooks")
	fs.StringVar(&o.WebhookService, "webhook-service", "virt-controller-webhook-service",
		"name of the Service of the webhooks")
	fs.StringVar(&o.MutatingWebhooks, "mutating-webhooks", "virt-controller-mutating-webhook-configuration",
		"name of the MutatingWebhookConfiguration whose CA bundle is set")
	fs.StringVar(&o.ValidatingWebhooks, "validating-webhooks", "virt-controller-validating-webhook-configuration",
		"name of the ValidatingWebhookConfiguration whose CA bundle is set")
	fs.BoolVar(&o.LeaderElection, "leader-elect", true, "elect a leader among the replicas; only the leader reconciles")
	fs.Var((*keys)(&o.LiveMetadata.Annotations), "additional-launcher-annotations-sync",
		"comma-separated keys of annotations that are copied from a VM's template to its VMI and its running launcher Pod; "+
			"a key that ends in * is a prefix")
	fs.Var((*keys)(&o.LiveMetadata.Labels), "additional-launcher-labels-sync",
		"comma-separated keys of labels that are copied in the same way")
	fs.StringVar(&o.RunbookURL, "runbook-url-template", envOr(runbookEnv, rules.DefaultRunbookURL),
		"template of the addresses of runbooks in alerts, with one %s for the alert's name; the default is the environment variable "+runbookEnv)
	fs.IntVar(&o.Verbosity, "v", 0,
		"minimum log verbosity; spec.configuration.developerConfiguration.logVerbosity.virtController of the KubeVirt object can raise it")
}

// Validate returns an error for each missing option.
func (o *Options) Validate() error {
	var errs []error
	if o.LauncherImage == "" {
		errs = append(errs, fmt.Errorf("the launcher image is not known: set --launcher-image or %s", launcherImageEnv))
	}
	if o.HandlerImage == "" {
		errs = append(errs, fmt.Errorf("the handler image is not known: set --handler-image or %s", handlerImageEnv))
	}
	if o.BrokerImage == "" {
		errs = append(errs, fmt.Errorf("the image of virt-broker is not known: set --broker-image or %s", brokerImageEnv))
	}
	if o.APIImage == "" {
		errs = append(errs, fmt.Errorf("the image of virt-api is not known: set --api-image or %s", apiImageEnv))
	}
	if o.Namespace == "" {
		errs = append(errs, fmt.Errorf("the install namespace is not known: set --install-namespace or %s", namespaceEnv))
	}
	return errors.Join(append(errs, rules.CheckRunbookURL(o.RunbookURL))...)
}

func (o *Options) images() clusterconfig.Option {
	return clusterconfig.WithImages(clusterconfig.Images{
		Launcher: o.LauncherImage, Handler: o.HandlerImage, Broker: o.BrokerImage, API: o.APIImage, Guestfs: o.GuestfsImage,
		Exporter: o.ExporterImage, ExportProxy: o.ExportProxyImage,
	})
}

func (o *Options) metricsAddress() string {
	return net.JoinHostPort(o.BindAddress, strconv.Itoa(o.Port))
}

// keys is a flag with a comma-separated list. The lists of repeated flags are concatenated.
type keys []string

func (k *keys) String() string { return strings.Join(*k, ",") }

// Set implements flag.Value.
func (k *keys) Set(text string) error {
	for key := range strings.SplitSeq(text, ",") {
		if key = strings.TrimSpace(key); key != "" {
			*k = append(*k, key)
		}
	}
	return nil
}

func envOr(name, fallback string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return fallback
}

// restartsContainers reports whether the cluster supports a container with a restart policy that differs from the
// Pod's. Older API servers reject such a Pod; version 1.34, where the feature is alpha, drops the policy if the feature
// is off. Source: ContainerRestartRules in kubernetes pkg/features/kube_features.go and pkg/apis/core/validation.
func restartsContainers(config *rest.Config) (bool, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return false, fmt.Errorf("cannot get the API server's version: %w", err)
	}
	info, err := client.ServerVersion()
	if err != nil {
		return false, fmt.Errorf("cannot get the API server's version: %w", err)
	}
	return supportsContainerRestarts(info)
}

func supportsContainerRestarts(info *apiversion.Info) (bool, error) {
	server, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return false, fmt.Errorf("cannot read the API server's version: %w", err)
	}
	return server.AtLeast(version.MajorMinor(1, 34)), nil
}
