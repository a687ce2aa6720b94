// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package adm implements the commands for administrators.
package adm

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

const (
	// show is the value of a component's flag that is given without a value.
	show = "show"
	// all means all components.
	all = "all"
	// defaultVerbosity applies to a component for which none is set.
	defaultVerbosity, maxVerbosity = 2, 9
)

// component is a program with a log verbosity of its own.
type component struct {
	name  string
	value func(*v1.LogVerbosity) *uint
}

var components = []component{
	{"virt-api", func(v *v1.LogVerbosity) *uint { return &v.VirtAPI }},
	{"virt-controller", func(v *v1.LogVerbosity) *uint { return &v.VirtController }},
	{"virt-handler", func(v *v1.LogVerbosity) *uint { return &v.VirtHandler }},
	{"virt-launcher", func(v *v1.LogVerbosity) *uint { return &v.VirtLauncher }},
	{"virt-operator", func(v *v1.LogVerbosity) *uint { return &v.VirtOperator }},
}

// Command returns the command adm.
func Command(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adm",
		Short: "Administrate KubeVirt configuration.",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(logVerbosity(c), upgradeCheck(c), clusterProfiler(c), takeoverCommand(c))
	return cmd
}

func logVerbosity(c *cli.CLI) *cobra.Command {
	values := map[string]*string{}
	var reset bool
	cmd := &cobra.Command{
		Use:   "log-verbosity",
		Short: "Show, set or reset the log verbosity of components.",
		Long:  "Show, set or reset the log verbosity of components: 0 to 9, 2 unless it is set. A flag and its value are joined with =.",
		Example: c.Examples(`
# Show the log verbosity of all components:
virtctl adm log-verbosity --all

# Set all to 3 and virt-handler to 7:
virtctl adm log-verbosity --all=3 --virt-handler=7

# Reset all to the default:
virtctl adm log-verbosity --reset`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), c, values, reset) },
	}
	for _, name := range append(names(), all) {
		values[name] = cmd.Flags().String(name, "", "Show or set the log verbosity (0-9) of "+name+".")
		cmd.Flags().Lookup(name).NoOptDefVal = show
	}
	cmd.Flags().BoolVar(&reset, "reset", false, "Reset all components to the default.")
	return cmd
}

func names() []string {
	found := make([]string, 0, len(components)+1)
	for _, c := range components {
		found = append(found, c.name)
	}
	return found
}

// levels returns the levels to set, and whether levels are to be shown. Flags that request both are an error.
func levels(values map[string]*string) (set map[string]uint, shows bool, err error) {
	set = map[string]uint{}
	for name, value := range values {
		switch *value {
		case "":
		case show:
			shows = true
		default:
			level, err := strconv.ParseUint(*value, 10, 8)
			if err != nil || level > maxVerbosity {
				return nil, false, fmt.Errorf("%s: log verbosity must be 0-9, and not %q", name, *value)
			}
			set[name] = uint(level)
		}
	}
	if shows && len(set) > 0 {
		return nil, false, errors.New("only show or set is allowed, not both")
	}
	return set, shows, nil
}

func run(ctx context.Context, c *cli.CLI, values map[string]*string, reset bool) error {
	set, shows, err := levels(values)
	switch {
	case err != nil:
		return err
	case shows && reset:
		return errors.New("only show or reset is allowed, not both")
	case !shows && !reset && len(set) == 0:
		return errors.New("no flag specified - expecting at least one flag, such as --all")
	}
	objects, err := c.Objects()
	if err != nil {
		return err
	}
	kubevirt, err := cli.KubeVirt(ctx, objects)
	if err != nil {
		return err
	}
	if shows {
		return printLevels(c, kubevirt, values)
	}
	return setLevels(ctx, c, objects, kubevirt, set, reset)
}

func printLevels(c *cli.CLI, kubevirt *v1.KubeVirt, values map[string]*string) error {
	current := &v1.LogVerbosity{}
	if developer := kubevirt.Spec.Configuration.DeveloperConfiguration; developer != nil && developer.LogVerbosity != nil {
		current = developer.LogVerbosity
	}
	for _, component := range components {
		if *values[component.name] == "" && *values[all] == "" {
			continue
		}
		level := *component.value(current)
		if level == 0 {
			level = defaultVerbosity
		}
		if _, err := fmt.Fprintf(c.Out, "%s = %d\n", component.name, level); err != nil {
			return err
		}
	}
	return nil
}

func setLevels(
	ctx context.Context, c *cli.CLI, objects client.Client, kubevirt *v1.KubeVirt, set map[string]uint, reset bool,
) error {
	before := kubevirt.DeepCopy()
	configuration := &kubevirt.Spec.Configuration
	if configuration.DeveloperConfiguration == nil {
		configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{}
	}
	developer := configuration.DeveloperConfiguration
	if developer.LogVerbosity == nil || reset {
		developer.LogVerbosity = &v1.LogVerbosity{}
	}
	for _, component := range components {
		if level, found := set[all]; found {
			*component.value(developer.LogVerbosity) = level
		}
		if level, found := set[component.name]; found {
			*component.value(developer.LogVerbosity) = level
		}
	}
	if err := objects.Patch(ctx, kubevirt, optimistic.MergeFrom(before)); err != nil {
		return fmt.Errorf("error patching the KubeVirt object: %w", err)
	}
	if reset {
		_, _ = fmt.Fprintln(c.Out, "successfully reset the verbosity of all KubeVirt components to default (2)")
	}
	if len(set) > 0 {
		_, _ = fmt.Fprintln(c.Out, "successfully set the verbosity of the KubeVirt component(s)")
	}
	return nil
}
