// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package ssh implements the commands ssh and scp, which run the local OpenSSH client with virtctl port-forward as its
// ProxyCommand.
package ssh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/portforward"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// options are the flags that ssh and scp share.
type options struct {
	port         int
	username     string
	identity     string
	knownHosts   string
	localSSH     bool
	localOptions []string
	vsock        bool
	// identitySet and knownHostsSet report whether the user gave the flag. If not, OpenSSH's own default applies.
	identitySet, knownHostsSet bool
}

func (o *options) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&o.username, "username", "l", defaultUsername(), "The user in the guest.")
	flags.StringVarP(&o.identity, "identity-file", "i", "",
		"A private key. By default OpenSSH uses the SSH agent and the keys in ~/.ssh.")
	flags.StringVar(&o.knownHosts, "known-hosts", "",
		"The file of known host keys. By default OpenSSH's own; an empty value disables the check of host keys.")
	flags.IntVarP(&o.port, "port", "p", 22, "The guest's port.")
	flags.StringArrayVarP(&o.localOptions, "local-ssh-opts", "t", nil,
		"An additional option for the local OpenSSH client. Can be repeated.")
	flags.BoolVar(&o.vsock, "vsock", false, "Connect to the instance's VSOCK port.")
	// KubeVirt had this flag up to 1.6, where false chose an SSH client inside virtctl.
	flags.BoolVar(&o.localSSH, "local-ssh", true, "Use the local OpenSSH client.")
	_ = flags.MarkHidden("local-ssh")
}

// complete checks the flags and records which of them the user gave.
func (o *options) complete(c *cli.CLI, cmd *cobra.Command) error {
	if !o.localSSH {
		return fmt.Errorf("--local-ssh=false is not supported: %s has no SSH client of its own. Install OpenSSH and leave out --local-ssh", c.Program)
	}
	if cmd.Flags().Changed("local-ssh") {
		// pflag's MarkDeprecated is not used, because cobra prints its message to the standard output, which belongs to
		// the guest.
		_, _ = fmt.Fprintln(c.ErrOut, "Flag --local-ssh has been deprecated, the local OpenSSH client is always used")
	}
	o.identitySet = cmd.Flags().Changed("identity-file")
	o.knownHostsSet = cmd.Flags().Changed("known-hosts")
	return nil
}

// defaultUsername returns the local user's name, or "" if the environment does not contain it.
func defaultUsername() string {
	for _, variable := range []string{"USER", "USERNAME", "LOGNAME"} {
		if name := os.Getenv(variable); name != "" {
			return name
		}
	}
	return ""
}

// parseTarget parses [user@]type/name[/namespace]. A user in it takes precedence over the flag.
func (o *options) parseTarget(argument, namespace string) (subresources.Object, error) {
	if i := strings.LastIndex(argument, "@"); i >= 0 {
		if i == 0 {
			return subresources.Object{}, errors.New("expected username before '@'")
		}
		o.username, argument = argument[:i], argument[i+1:]
	}
	if argument == "" {
		return subresources.Object{}, errors.New("expected target after '@'")
	}
	// OpenSSH would interpret it as an option.
	if strings.HasPrefix(o.username, "-") {
		return subresources.Object{}, fmt.Errorf("username %q begins with a dash", o.username)
	}
	return portforward.ParseTarget(argument, namespace)
}

// Command returns the command ssh.
func Command(c *cli.CLI) *cobra.Command {
	o := &options{}
	var command string
	cmd := &cobra.Command{
		Use:   "ssh (VM|VMI)",
		Short: "Open a SSH connection to a virtual machine instance.",
		Example: c.Examples(`
# Connect to 'myvm' as user 'jdoe':
virtctl ssh jdoe@vm/myvm

# In another namespace, with a given private key:
virtctl ssh jdoe@vm/myvm/mynamespace --identity-file=~/.ssh/mykey

# Run a command; its exit code is this command's:
virtctl ssh jdoe@vmi/myvmi --command='uname -a'

# With further options of OpenSSH:
virtctl ssh jdoe@vm/myvm --local-ssh-opts='-oStrictHostKeyChecking=no' --local-ssh-opts='-L8080:localhost:80'`),
		Args: c.OneArgument("target"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(c, cmd); err != nil {
				return err
			}
			namespace, err := c.Namespace()
			if err != nil {
				return err
			}
			target, err := o.parseTarget(args[0], namespace)
			if err != nil {
				return err
			}
			arguments := []string{o.host(target)}
			if command != "" {
				arguments = append(arguments, command)
			}
			return o.runOpenSSH(cmd.Context(), c, "ssh", target, arguments)
		},
	}
	o.addTo(cmd)
	cmd.Flags().StringVarP(&command, "command", "c", "", "A command to run in the guest instead of a shell.")
	return cmd
}

// host returns the target as OpenSSH's [user@]host. The host name is KubeVirt's; it has no slash or colon, which scp
// would interpret.
func (o *options) host(target subresources.Object) string {
	host := strings.Join([]string{shortKind(target), target.Name, target.Namespace}, ".")
	if o.username != "" {
		host = o.username + "@" + host
	}
	return host
}

// shortKind returns vm or vmi.
func shortKind(target subresources.Object) string { return strings.ToLower(target.Kind()) }

// proxyCommand returns the command with which OpenSSH connects to the target: this program's port-forward, to the same
// cluster.
func (o *options) proxyCommand(c *cli.CLI, program string, target subresources.Object) string {
	words := append([]string{program, "port-forward", "--stdio=true"}, c.ClusterFlags()...)
	if o.vsock {
		words = append(words, "--vsock", "--vsock-tls=false") // SSH itself encrypts the connection.
	}
	words = append(words, shortKind(target)+"/"+target.Name+"/"+target.Namespace, strconv.Itoa(o.port))
	for i, word := range words {
		words[i] = quote(word)
	}
	return strings.Join(words, " ")
}

// quote quotes a word for the shell that runs a ProxyCommand. OpenSSH expands tokens that begin with %.
func quote(word string) string {
	word = strings.ReplaceAll(word, "%", "%%")
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_+=:,./-") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// hostKeyOptions returns the options of OpenSSH for --known-hosts. KubeVirt accepts the flag and ignores it.
func (o *options) hostKeyOptions() []string {
	switch {
	case !o.knownHostsSet:
		return nil
	case o.knownHosts == "":
		return []string{"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=" + os.DevNull}
	default:
		// OpenSSH expects a list of files here, and expands tokens.
		return []string{"-o", `UserKnownHostsFile="` + strings.ReplaceAll(o.knownHosts, "%", "%%") + `"`}
	}
}

// stopTimeout is how long OpenSSH may take to exit after virtctl was interrupted.
const stopTimeout = 5 * time.Second

// runOpenSSH runs ssh or scp. Its exit code becomes virtctl's.
func (o *options) runOpenSSH(
	ctx context.Context, c *cli.CLI, name string, target subresources.Object, arguments []string,
) error {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	all := append([]string{"-o", "ProxyCommand=" + o.proxyCommand(c, program, target)}, o.localOptions...)
	// OpenSSH uses the first value of an option, so the user's own values are first.
	all = append(all, o.hostKeyOptions()...)
	if o.identitySet {
		all = append(all, "-i", o.identity)
	}
	cmd := exec.CommandContext(ctx, name, append(all, arguments...)...) //nolint:gosec // OpenSSH, with the user's arguments
	// OpenSSH restores the terminal when it is terminated by a signal. It could not if it were killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.In, c.Out, c.ErrOut
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return cli.ExitError(exit.ExitCode())
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w: %s %s runs the local OpenSSH client, which must be installed", err, c.Program, name)
	default:
		return err
	}
}

// transfer is one run of scp, to or from the guest.
type transfer struct {
	options
	recursive, preserve bool
	local, remote       string
	target              subresources.Object
	upload              bool
}

// SCP returns the command scp.
func SCP(c *cli.CLI) *cobra.Command {
	t := &transfer{}
	cmd := &cobra.Command{
		Use:   "scp (VM|VMI)",
		Short: "SCP files from/to a virtual machine instance.",
		Example: c.Examples(`
# Copy a file to the home directory of user 'jdoe' in 'myvm':
virtctl scp myfile.bin jdoe@vm/myvm:myfile.bin

# Copy a directory:
virtctl scp --recursive ~/mydir/ jdoe@vm/myvm/mynamespace:./mydir

# Copy a file from the guest:
virtctl scp jdoe@vmi/myvmi:myfile.bin ~/myfile.bin`),
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := t.complete(c, cmd); err != nil {
				return err
			}
			namespace, err := c.Namespace()
			if err != nil {
				return err
			}
			if err := t.parse(args[0], args[1], namespace); err != nil {
				return err
			}
			return t.runOpenSSH(cmd.Context(), c, "scp", t.target, t.arguments())
		},
	}
	t.addTo(cmd)
	cmd.Flags().BoolVarP(&t.recursive, "recursive", "r", false, "Recursively copy entire directories.")
	cmd.Flags().BoolVar(&t.preserve, "preserve", false,
		"Preserve modification times, access times and modes of the files.")
	return cmd
}

// parse parses both arguments. The guest's is the one of the form target:path.
func (t *transfer) parse(from, to, namespace string) error {
	source, sourcePath, sourceRemote := cutRemote(from)
	destination, destinationPath, destinationRemote := cutRemote(to)
	target := source
	switch {
	case sourceRemote && destinationRemote:
		return errors.New("copying from a remote location to another remote location is not supported: go through this machine")
	case !sourceRemote && !destinationRemote:
		return fmt.Errorf("none of the two provided locations seems to be a remote location: %q to %q; a guest's is user@vm/name:path", from, to)
	case sourceRemote:
		t.local, t.remote = to, sourcePath
	default:
		t.local, t.remote, t.upload, target = from, destinationPath, true, destination
	}
	if t.remote == "" {
		t.remote = "."
	}
	var err error
	t.target, err = t.parseTarget(target, namespace)
	return err
}

// cutRemote splits target:path. Drive letters of Windows and paths that begin with a dot, a slash or a tilde are local.
func cutRemote(argument string) (target, path string, isRemote bool) {
	target, path, found := strings.Cut(argument, ":")
	if !found || len(target) < 2 || strings.HasPrefix(target, ".") || strings.HasPrefix(target, "/") ||
		strings.HasPrefix(target, "~") {
		return "", "", false
	}
	return target, path, true
}

// arguments returns the arguments of OpenSSH's scp.
func (t *transfer) arguments() []string {
	var arguments []string
	if t.recursive {
		arguments = append(arguments, "-r")
	}
	if t.preserve {
		arguments = append(arguments, "-p")
	}
	remote := t.host(t.target) + ":" + t.remote
	if t.upload {
		return append(arguments, t.local, remote)
	}
	return append(arguments, remote, t.local)
}
