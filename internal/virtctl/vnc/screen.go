// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vnc

import (
	"context"
	"fmt"
	"net/url"
	"os"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// screen is an instance's screen.
type screen struct {
	api      *subresources.Client
	vmi      subresources.Object
	preserve bool
}

func (s *screen) open(ctx context.Context) (*subresources.Stream, error) {
	var parameters url.Values
	if s.preserve {
		parameters = url.Values{"preserveSession": {"true"}}
	}
	stream, err := s.api.Stream(ctx, s.vmi, []string{"vnc"}, parameters)
	if err != nil {
		return nil, fmt.Errorf("can't access VMI %s: %w", s.vmi.Name, err)
	}
	return stream, nil
}

func screenshot(c *cli.CLI) *cobra.Command {
	var file string
	var moveCursor bool
	cmd := &cobra.Command{
		Use:   "screenshot (VMI)",
		Short: "Create a VNC screenshot of a virtual machine instance.",
		Example: c.Examples(`
# Store the screen of 'testvmi' as an image:
virtctl vnc screenshot testvmi --file=screen.png

# Display it:
virtctl vnc screenshot testvmi -f - | display`),
		Args:              c.OneArgument("VMI"),
		ValidArgsFunction: c.CompleteInstances,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, vmi, err := c.Instance(args[0])
			if err != nil {
				return err
			}
			parameters := url.Values{"moveCursor": {fmt.Sprint(moveCursor)}}
			image, err := api.GetRaw(cmd.Context(), vmi, "vnc/screenshot", parameters)
			if err != nil {
				return fmt.Errorf("can't access VMI %s: %w", vmi.Name, err)
			}
			if file == "-" {
				_, err = c.Out.Write(image)
				return err
			}
			return os.WriteFile(file, image, 0o600)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "Where to store the screenshot in PNG format; - is the standard output.")
	cmd.Flags().BoolVarP(&moveCursor, "move-cursor", "m", false, "Move the cursor first, which turns on a blanked screen.")
	_ = cmd.MarkFlagRequired("file")
	return cmd
}
