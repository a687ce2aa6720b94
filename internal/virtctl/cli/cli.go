// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package cli is what virtctl's commands share: the flags and streams that kubectl's users expect, the way to the cluster, and
// how objects and errors are shown.
package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/version"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// Scheme has the types that the commands read and write.
var Scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(clientgoscheme.AddToScheme(Scheme))
	utilruntime.Must(v1.AddToScheme(Scheme))
	utilruntime.Must(cdi.AddToScheme(Scheme))
}

// CLI is one run of virtctl.
type CLI struct {
	genericiooptions.IOStreams
	// Program is how the user calls it: "virtctl" or "kubectl virt".
	Program string
	// Flags are kubectl's: kubeconfig, context, namespace, impersonation and so on.
	Flags *genericclioptions.ConfigFlags
}

// New makes a CLI that was called by the name argv0.
func New(argv0 string, streams genericiooptions.IOStreams) *CLI {
	return &CLI{
		IOStreams: streams,
		Program:   ProgramName(argv0),
		Flags:     genericclioptions.NewConfigFlags(true).WithDiscoveryBurst(300).WithDiscoveryQPS(50),
	}
}

// ProgramName says how a user calls the program of this file name: kubectl runs its plugin virt as kubectl-virt.
func ProgramName(argv0 string) string {
	base := strings.TrimSuffix(filepath.Base(argv0), ".exe")
	if host, isPlugin := strings.CutSuffix(base, "-virt"); isPlugin {
		return host + " virt"
	}
	return "virtctl"
}

// Examples puts the program's name into the examples of a command, where they say virtctl. Each line is indented.
func (c *CLI) Examples(text string) string {
	lines := strings.Split(strings.TrimSpace(c.Says(text)), "\n")
	for i, line := range lines {
		if line = strings.TrimRight(line, " \t"); line != "" {
			line = "  " + line
		}
		lines[i] = line
	}
	return strings.Join(lines, "\n")
}

// Says puts the program's name into a text that says virtctl.
func (c *CLI) Says(text string) string { return strings.ReplaceAll(text, "virtctl", c.Program) }

// Namespace is the one that the flags, or else the context, choose.
func (c *CLI) Namespace() (string, error) {
	namespace, _, err := c.Flags.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}

func (c *CLI) config() (*rest.Config, error) {
	config, err := c.Flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.UserAgent = "virtctl/" + version.Version
	// Not protobuf, which -v 8 could not show.
	config.ContentType = "application/json"
	// As kubectl prints them.
	config.WarningHandler = rest.NewWarningWriter(c.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	return config, nil
}

// Objects reads and writes objects of the cluster.
func (c *CLI) Objects() (client.Client, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	mapper, err := c.Flags.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	// With no log it asks for controller-runtime's, which prints a stack trace where nobody has set it.
	return client.New(config, client.Options{Scheme: Scheme, Mapper: mapper, Log: klog.Background()})
}

// Config is the way to the cluster, for what Objects and Subresources cannot do.
func (c *CLI) Config() (*rest.Config, error) { return c.config() }

// Subresources asks for the verbs of VMs and instances.
func (c *CLI) Subresources() (*subresources.Client, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	return subresources.New(config)
}

// Instance is the instance that a command's argument names, and the way to its verbs.
func (c *CLI) Instance(argument string) (*subresources.Client, subresources.Object, error) {
	return c.target(argument, subresources.VirtualMachineInstances)
}

// VM is the VM that a command's argument names, and the way to its verbs.
func (c *CLI) VM(argument string) (*subresources.Client, subresources.Object, error) {
	return c.target(argument, subresources.VirtualMachines)
}

// target takes a name, also as kubectl prints it: vm/NAME or vmi/NAME. The instance of a VM has the VM's name.
func (c *CLI) target(argument, resource string) (*subresources.Client, subresources.Object, error) {
	name := argument
	if kind, rest, found := strings.Cut(argument, "/"); found {
		if _, err := Resource(kind); err != nil {
			return nil, subresources.Object{}, err
		}
		name = rest
	}
	if name == "" || strings.Contains(name, "/") {
		return nil, subresources.Object{}, fmt.Errorf("%q is not a name: give the name alone and the namespace with -n", argument)
	}
	namespace, err := c.Namespace()
	if err != nil {
		return nil, subresources.Object{}, err
	}
	api, err := c.Subresources()
	return api, subresources.Object{Namespace: namespace, Resource: resource, Name: name}, err
}

// Resource is the resource of a kind as people write it: vm, VMs, virtualmachineinstance and so on.
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

// OneArgument refuses everything but one argument, and says what it is.
func (c *CLI) OneArgument(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch len(args) {
		case 1:
			return nil
		case 0:
			return fmt.Errorf("the name of the %s is missing, see: %s --help", what, cmd.CommandPath())
		default:
			return fmt.Errorf("one %s at a time, and not %q, see: %s --help", what, args, cmd.CommandPath())
		}
	}
}
