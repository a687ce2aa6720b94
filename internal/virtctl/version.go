// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/version"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// build is what a program says of itself: KubeVirt's version.Info.
type build struct {
	GitVersion   string `json:"gitVersion"`
	GitCommit    string `json:"gitCommit"`
	GitTreeState string `json:"gitTreeState"`
	BuildDate    string `json:"buildDate"`
	GoVersion    string `json:"goVersion"`
	Compiler     string `json:"compiler"`
	Platform     string `json:"platform"`
}

// String is KubeVirt's form, which scripts take apart.
func (b build) String() string {
	return fmt.Sprintf("version.Info{GitVersion:%q, GitCommit:%q, GitTreeState:%q, BuildDate:%q, GoVersion:%q, Compiler:%q, Platform:%q}",
		b.GitVersion, b.GitCommit, b.GitTreeState, b.BuildDate, b.GoVersion, b.Compiler, b.Platform)
}

// versions is what version -o prints.
type versions struct {
	Client build  `json:"clientVersion"`
	Server *build `json:"serverVersion,omitempty"`
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

# The client's alone, without asking a cluster:
virtctl version --client`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Client: build{
				GitVersion: version.Version, GoVersion: runtime.Version(), Compiler: runtime.Compiler,
				Platform: runtime.GOOS + "/" + runtime.GOARCH,
			}}
			if !output.IsSet() {
				_, _ = fmt.Fprintf(c.Out, "Client Version: %s\n", v.Client)
			}
			if !clientOnly {
				api, err := c.Subresources()
				if err != nil {
					return err
				}
				v.Server = &build{}
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
