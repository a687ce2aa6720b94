// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/component/version"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// versions is the output of version -o.
type versions struct {
	Client version.Info  `json:"clientVersion"`
	Server *version.Info `json:"serverVersion,omitempty"`
}

func versionCommand(c *cli.CLI) *cobra.Command {
	var clientOnly bool
	output := cli.Output{}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the client and server version information.",
		Example: c.Examples(`
# Print the client and server versions for the current context:
virtctl version

# Print the client version only, without a request to the cluster:
virtctl version --client`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Client: version.Get()}
			if !output.IsSet() {
				_, _ = fmt.Fprintf(c.Out, "Client Version: %s\n", v.Client)
			}
			if !clientOnly {
				api, err := c.Subresources()
				if err != nil {
					return err
				}
				v.Server = &version.Info{}
				if err := api.GetGroup(cmd.Context(), "version", v.Server); err != nil {
					return fmt.Errorf("error asking the server for its version: %w", err)
				}
			}
			if output.IsSet() {
				return output.Print(c.Out, v)
			}
			if v.Server != nil {
				_, _ = fmt.Fprintf(c.Out, "Server Version: %s\n", v.Server)
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&clientOnly, "client", "c", false, "Client version only (no server required).")
	output.AddTo(cmd, "")
	return cmd
}
