// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtctl is the command line for virtual machines. Each command has a package or a file.
package virtctl

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"

	"github.com/vireo-project/vireo/internal/component/version"
	"github.com/vireo-project/vireo/internal/virtctl/adm"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/console"
	"github.com/vireo-project/vireo/internal/virtctl/create"
	"github.com/vireo-project/vireo/internal/virtctl/credentials"
	"github.com/vireo-project/vireo/internal/virtctl/explain"
	"github.com/vireo-project/vireo/internal/virtctl/expose"
	"github.com/vireo-project/vireo/internal/virtctl/guestfs"
	"github.com/vireo-project/vireo/internal/virtctl/imageupload"
	"github.com/vireo-project/vireo/internal/virtctl/inspect"
	"github.com/vireo-project/vireo/internal/virtctl/lifecycle"
	"github.com/vireo-project/vireo/internal/virtctl/memorydump"
	"github.com/vireo-project/vireo/internal/virtctl/portforward"
	"github.com/vireo-project/vireo/internal/virtctl/ssh"
	"github.com/vireo-project/vireo/internal/virtctl/usbredir"
	"github.com/vireo-project/vireo/internal/virtctl/vmexport"
	"github.com/vireo-project/vireo/internal/virtctl/vnc"
)

// Groups of commands in the help.
const (
	groupLifecycle = "lifecycle"
	groupConnect   = "connect"
	groupInspect   = "inspect"
	groupCreate    = "create"
	groupOther     = "other"
)

// Run runs the program with its arguments, the first of which is its name. It returns the exit code.
func Run(ctx context.Context, arguments []string) int {
	c := cli.New(arguments[0], genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	return Execute(ctx, c, arguments[1:])
}

// Execute runs the command of the arguments and returns the exit code.
func Execute(ctx context.Context, c *cli.CLI, arguments []string) int {
	root := Command(c)
	root.SetArgs(arguments)
	err := root.ExecuteContext(ctx)
	var exit cli.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	default:
		_, _ = fmt.Fprintln(c.ErrOut, c.Failure(err))
		return 1
	}
}

// Command returns the root command.
func Command(c *cli.CLI) *cobra.Command {
	root := &cobra.Command{
		Use:           strings.ReplaceAll(c.Program, " ", "-"),
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: c.Program},
		Short:         c.Program + " controls virtual machines on your Kubernetes cluster.",
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.ErrOut)
	c.Flags.AddFlags(root.PersistentFlags())
	addVerbosity(root)
	for _, group := range []cobra.Group{
		{ID: groupLifecycle, Title: "Start, stop and change:"},
		{ID: groupConnect, Title: "Connect to a guest:"},
		{ID: groupInspect, Title: "Inspect and troubleshoot:"},
		{ID: groupCreate, Title: "Create:"},
		{ID: groupOther, Title: "Other:"},
	} {
		root.AddGroup(&group)
	}
	add(root, groupLifecycle,
		lifecycle.Start(c), lifecycle.Stop(c), lifecycle.Restart(c), lifecycle.Pause(c), lifecycle.Unpause(c),
		lifecycle.SoftReboot(c), lifecycle.Reset(c), lifecycle.Migrate(c), lifecycle.MigrateCancel(c),
		lifecycle.EvacuateCancel(c),
		lifecycle.AddVolume(c), lifecycle.RemoveVolume(c))
	add(root, groupConnect, console.Command(c), vnc.Command(c), ssh.Command(c), ssh.SCP(c), portforward.Command(c),
		expose.Command(c), usbredir.Command(c))
	add(root, groupInspect, explain.Command(c), inspect.OSInfo(c), inspect.UserList(c), inspect.FilesystemList(c),
		inspect.Expand(c), inspect.ObjectGraph(c), inspect.PermittedDevices(c))
	add(root, groupCreate, create.Command(c), imageupload.Command(c), vmexport.Command(c), memorydump.Command(c),
		guestfs.Command(c), credentials.Command(c))
	add(root, groupOther, adm.Command(c), versionCommand(c), optionsCommand(c))
	root.SetHelpCommandGroupID(groupOther)
	root.SetCompletionCommandGroupID(groupOther)
	root.SetUsageTemplate(usageTemplate)
	return root
}

func add(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, cmd := range commands {
		cmd.GroupID = group
		root.AddCommand(cmd)
	}
}

// addVerbosity adds klog's flag -v, by which client-go logs its requests.
func addVerbosity(root *cobra.Command) {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	verbosity := flags.Lookup("v")
	verbosity.Usage = "How much to log: 6 shows requests, 8 their contents."
	root.PersistentFlags().AddGoFlag(verbosity)
}

// optionsCommand lists the flags that all commands have. The help of each command omits them.
func optionsCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "options",
		Short: "List the flags that all commands have.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.Out, "These options can be given to every command:\n\n%s", cmd.InheritedFlags().FlagUsages())
			return err
		},
	}
	return cmd
}

// usageTemplate is cobra's template with the examples before the flags, as in kubectl, and without the flags that all
// commands have.
const usageTemplate = `Usage:{{if .Runnable}}
  {{.UseLine}}{{end}}{{if and .HasAvailableSubCommands .HasParent}}
  {{.CommandPath}} [command]{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{if eq (len .Groups) 0}}

Available Commands:{{range $cmds}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{else}}{{range $group := .Groups}}

{{.Title}}{{range $cmds}}{{if (and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help")))}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{end}}{{if and .HasAvailableLocalFlags .HasParent}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}

{{if .HasAvailableSubCommands}}Use "{{.CommandPath}} [command] --help" for more about a command.
{{end}}Use "{{.Root.DisplayName}} options" for the flags that every command has.
`

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
					return fmt.Errorf("error reading the version of the server: %w", err)
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
