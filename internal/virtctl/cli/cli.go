// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package cli contains what virtctl's commands share: kubectl's flags, streams, clients of the cluster, and the output
// of objects and errors.
package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/version"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// Scheme contains the types that the commands read and write.
var Scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(clientgoscheme.AddToScheme(Scheme))
	utilruntime.Must(v1.AddToScheme(Scheme))
	utilruntime.Must(cdi.AddToScheme(Scheme))
	utilruntime.Must(exportv1.AddToScheme(Scheme))
}

// CLI is one run of virtctl.
type CLI struct {
	genericiooptions.IOStreams
	// Program is how the user calls it: "virtctl" or "kubectl virt".
	Program string
	// Flags are kubectl's: kubeconfig, context, namespace, impersonation and so on.
	Flags *genericclioptions.ConfigFlags
}

// New returns the CLI of a program that was run as argv0.
func New(argv0 string, streams genericiooptions.IOStreams) *CLI {
	return &CLI{
		IOStreams: streams,
		Program:   ProgramName(argv0),
		Flags:     genericclioptions.NewConfigFlags(true).WithDiscoveryBurst(300).WithDiscoveryQPS(50),
	}
}

// ProgramName returns how users call the program with this file name: kubectl runs kubectl-virt as its plugin virt.
func ProgramName(argv0 string) string {
	base := strings.TrimSuffix(filepath.Base(argv0), ".exe")
	if host, isPlugin := strings.CutSuffix(base, "-virt"); isPlugin {
		return host + " virt"
	}
	return "virtctl"
}

// Examples replaces virtctl by the program's name in the examples of a command, and indents each line.
func (c *CLI) Examples(text string) string {
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(text, "virtctl", c.Program)), "\n")
	for i, line := range lines {
		if line = strings.TrimRight(line, " \t"); line != "" {
			line = "  " + line
		}
		lines[i] = line
	}
	return strings.Join(lines, "\n")
}

// Namespace returns the namespace of the flags, or else that of the kubeconfig's context.
func (c *CLI) Namespace() (string, error) {
	namespace, _, err := c.Flags.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}

// Config returns the configuration of clients of the cluster, for requests that Objects and Subresources do not
// support.
func (c *CLI) Config() (*rest.Config, error) {
	config, err := c.Flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.UserAgent = "virtctl/" + version.Version
	// A user sends few requests, and the API server has its own limits. With a limit here, a wait would end with an
	// error about the limit instead of the state for which it waited.
	config.QPS = -1
	// JSON, because -v 8 could not show protobuf.
	config.ContentType = "application/json"
	// Warnings are printed as kubectl prints them.
	config.WarningHandler = rest.NewWarningWriter(c.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	return config, nil
}

// ClusterFlags returns the flags with which another run of virtctl uses the same cluster as the same user.
func (c *CLI) ClusterFlags() []string {
	var flags []string
	for _, flag := range []struct {
		name  string
		value *string
	}{
		{"kubeconfig", c.Flags.KubeConfig}, {"context", c.Flags.Context}, {"cluster", c.Flags.ClusterName},
		{"user", c.Flags.AuthInfoName},
		{"server", c.Flags.APIServer}, {"certificate-authority", c.Flags.CAFile}, {"client-certificate", c.Flags.CertFile},
		{"client-key", c.Flags.KeyFile}, {"tls-server-name", c.Flags.TLSServerName}, {"as", c.Flags.Impersonate},
	} {
		if flag.value != nil && *flag.value != "" {
			flags = append(flags, "--"+flag.name+"="+*flag.value)
		}
	}
	if c.Flags.Insecure != nil && *c.Flags.Insecure {
		flags = append(flags, "--insecure-skip-tls-verify")
	}
	return flags
}

// Objects returns a client of the cluster's objects.
func (c *CLI) Objects() (client.Client, error) {
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	mapper, err := c.Flags.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	// The default is controller-runtime's logger, which prints a stack trace if it was not set.
	return client.New(config, client.Options{Scheme: Scheme, Mapper: mapper, Log: klog.Background()})
}

// Subresources returns a client of the subresources of VMs and instances.
func (c *CLI) Subresources() (*subresources.Client, error) {
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	return subresources.New(config)
}

// Instance returns the instance that a command's argument names, and a client of its subresources.
func (c *CLI) Instance(argument string) (*subresources.Client, subresources.Object, error) {
	return c.target(argument, subresources.VirtualMachineInstances)
}

// VM returns the VM that a command's argument names, and a client of its subresources.
func (c *CLI) VM(argument string) (*subresources.Client, subresources.Object, error) {
	return c.target(argument, subresources.VirtualMachines)
}

// target parses NAME, vm/NAME or vmi/NAME. The instance of a VM has the VM's name, so the kind does not matter.
func (c *CLI) target(argument, resource string) (*subresources.Client, subresources.Object, error) {
	name := argument
	if kind, rest, found := strings.Cut(argument, "/"); found {
		if _, err := Resource(kind); err != nil {
			return nil, subresources.Object{}, err
		}
		name = rest
	}
	if name == "" || strings.Contains(name, "/") {
		return nil, subresources.Object{},
			fmt.Errorf("%q is not a name: specify only the name, and the namespace with -n", argument)
	}
	namespace, err := c.Namespace()
	if err != nil {
		return nil, subresources.Object{}, err
	}
	api, err := c.Subresources()
	return api, subresources.Object{Namespace: namespace, Resource: resource, Name: name}, err
}

// Resource returns the resource for a kind as users write it, such as vm, VMs or virtualmachineinstance.
func Resource(kind string) (string, error) {
	kind, _, _ = strings.Cut(strings.ToLower(kind), ".")
	switch kind {
	case "vm", "vms", "virtualmachine", "virtualmachines":
		return subresources.VirtualMachines, nil
	case "vmi", "vmis", "virtualmachineinstance", "virtualmachineinstances":
		return subresources.VirtualMachineInstances, nil
	}
	return "", fmt.Errorf("unsupported resource type %q: it is vm or vmi", kind)
}

// OneArgument accepts exactly one argument. description describes the argument in errors.
func (c *CLI) OneArgument(description string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch len(args) {
		case 1:
			return nil
		case 0:
			return fmt.Errorf("the name of the %s is missing, see: %s --help", description, cmd.CommandPath())
		default:
			return fmt.Errorf("one %s at a time, and not %q, see: %s --help", description, args, cmd.CommandPath())
		}
	}
}

// KubeVirt returns the cluster's KubeVirt object, regardless of its namespace.
func KubeVirt(ctx context.Context, objects client.Client) (*v1.KubeVirt, error) {
	list := &v1.KubeVirtList{}
	if err := objects.List(ctx, list); err != nil {
		return nil, fmt.Errorf("could not list KubeVirt objects across all namespaces: %w", err)
	}
	switch len(list.Items) {
	case 0:
		return nil, errors.New("could not detect a KubeVirt installation: there is no KubeVirt object")
	case 1:
		return &list.Items[0], nil
	default:
		return nil, errors.New("invalid kubevirt installation, more than one KubeVirt object found")
	}
}

// ExitError sets the exit code. Nothing is printed for it.
type ExitError int

// Error implements error.
func (e ExitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Failure returns the text that is printed when a command fails: the error, and what to do about it if that is known.
func (c *CLI) Failure(err error) string {
	text := Plain(err.Error())
	if hint := c.hint(err); hint != "" {
		text += "\n" + hint
	}
	return text
}

func (c *CLI) hint(err error) string {
	var unreachable *net.OpError
	var request *url.Error
	switch {
	case isAPIMissing(err):
		return "The cluster does not serve " + subresources.Group + ". Is KubeVirt's API installed? Check it with:\n" +
			"    kubectl get apiservice v1." + subresources.Group
	case meta.IsNoMatchError(err):
		return "The cluster does not have this kind. The kinds that it has:\n    kubectl api-resources | grep kubevirt.io"
	case apierrors.IsServiceUnavailable(err):
		return "virt-api does not respond. Check it with:\n" +
			"    kubectl get apiservice v1." + subresources.Group + "\n" +
			"    kubectl get pods --all-namespaces --selector kubevirt.io=virt-api"
	case apierrors.IsForbidden(err):
		return "The ClusterRoles kubevirt.io:edit and kubevirt.io:admin grant this permission. What you may do:\n" +
			"    kubectl auth can-i --list | grep kubevirt.io"
	case apierrors.IsUnauthorized(err):
		return "The cluster does not know these credentials. The credentials in use:\n    kubectl config view --minify"
	case errors.As(err, &unreachable) && unreachable.Op == "dial" && errors.As(err, &request):
		return "The cluster cannot be reached. The cluster in use:\n    kubectl config current-context && kubectl cluster-info"
	}
	return ""
}

// isAPIMissing reports whether the cluster does not serve the API at all. A 404 for a missing object names the object.
func isAPIMissing(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	if details == nil || details.Name == "" {
		return true
	}
	return slices.ContainsFunc(details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Type == metav1.CauseTypeUnexpectedServerResponse && strings.Contains(cause.Message, "404 page not found")
	})
}

// Plain removes control characters, including those of escape sequences, and invisible characters from a text, which
// may come from a guest.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsGraphic(r) {
			return r
		}
		return -1
	}, text)
}

// Poll calls done until it returns true or an error, or the context ends: often at first, then every two seconds.
func Poll(ctx context.Context, done func(context.Context) (bool, error)) error {
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 1.5, Steps: 100, Cap: 2 * time.Second}
	return backoff.DelayFunc().Until(ctx, true, false, done)
}
