// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package lifecycle

import (
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// Pause returns the command pause.
func Pause(c *cli.CLI) *cobra.Command {
	return suspension{
		verb: "pause", doing: "pausing",
		short: "Pause a virtual machine: stop its CPUs and keep its memory.",
		body:  func(dry []string) any { return v1.PauseOptions{DryRun: dry} },
	}.command(c)
}

// Unpause returns the command unpause.
func Unpause(c *cli.CLI) *cobra.Command {
	return suspension{
		verb: "unpause", doing: "unpausing",
		short: "Resume a paused virtual machine.",
		body:  func(dry []string) any { return v1.UnpauseOptions{DryRun: dry} },
	}.command(c)
}

// suspension is pause or unpause.
type suspension struct {
	verb, doing, short string
	body               func(dry []string) any
}

func (s suspension) command(c *cli.CLI) *cobra.Command {
	var dry dryRun
	cmd := &cobra.Command{
		Use:   s.verb + " vm|vmi (VM)|(VMI)",
		Short: s.short,
		Example: c.Examples(fmt.Sprintf(`
# %[1]s a virtual machine called 'myvm':
virtctl %[1]s vm myvm

# %[1]s an instance that has no VM:
virtctl %[1]s vmi myvmi`, s.verb)),
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.CompleteKindAndName,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := kindAndName(args)
			if err != nil {
				return err
			}
			api, vmi, err := c.Instance(name)
			if err != nil {
				return err
			}
			err = api.Put(cmd.Context(), vmi, s.verb, s.body(dry.options(c.Out)))
			if apierrors.IsNotFound(err) {
				return fmt.Errorf("error %s VirtualMachineInstance %s: %w\nA VM that is stopped has no instance. See: %s explain %s",
					s.doing, vmi.Name, err, c.Program, vmi.Name)
			}
			if err != nil {
				return fmt.Errorf("error %s VirtualMachineInstance %s: %w", s.doing, vmi.Name, err)
			}
			return scheduled(c, vmi, s.verb)
		},
	}
	dry.addTo(cmd)
	return cmd
}

// kindAndName parses "vm NAME", as in KubeVirt, and "vm/NAME" or "NAME", as in kubectl.
func kindAndName(args []string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	if _, err := cli.Resource(args[0]); err != nil {
		return "", err
	}
	return args[1], nil
}
