// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package ssh

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// transfer is a copy in one direction.
type transfer struct {
	options
	recursive, preserve bool
	local, remote       string
	target              subresources.Object
	upload              bool
}

// SCP makes the command scp.
func SCP(c *cli.CLI) *cobra.Command {
	t := &transfer{}
	cmd := &cobra.Command{
		Use:   "scp (VM|VMI)",
		Short: "SCP files from/to a virtual machine instance.",
		Example: c.Examples(`
# Copy a file to the home directory of user 'jdoe' in 'myvm':
virtctl scp myfile.bin jdoe@vm/myvm:myfile.bin

# A directory and all in it:
virtctl scp --recursive ~/mydir/ jdoe@vm/myvm/mynamespace:./mydir

# From the guest to here:
virtctl scp jdoe@vmi/myvmi:myfile.bin ~/myfile.bin`),
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			t.complete(cmd)
			namespace, err := c.Namespace()
			if err != nil {
				return err
			}
			if err := t.parse(args[0], args[1], namespace); err != nil {
				return err
			}
			if t.options.local {
				return t.runLocal(cmd.Context(), c, "scp", t.target, t.localArguments())
			}
			return t.run(cmd.Context(), c)
		},
	}
	t.addTo(cmd)
	cmd.Flags().BoolVarP(&t.recursive, "recursive", "r", false, "Copy directories with all that is in them.")
	cmd.Flags().BoolVar(&t.preserve, "preserve", false, "Keep modes and times of the files.")
	return cmd
}

// parse finds out which argument is the guest's: the one with a colon after its target.
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

// cutRemote splits target:path. A drive letter of Windows and a path with a slash before its colon are local.
func cutRemote(argument string) (target, path string, isRemote bool) {
	target, path, found := strings.Cut(argument, ":")
	if !found || len(target) < 2 || strings.HasPrefix(target, ".") || strings.HasPrefix(target, "/") || strings.HasPrefix(target, "~") {
		return "", "", false
	}
	return target, path, true
}

func (t *transfer) localArguments() []string {
	var arguments []string
	if t.recursive {
		arguments = append(arguments, "-r")
	}
	if t.preserve {
		arguments = append(arguments, "-p")
	}
	remote := t.localHost(t.target) + ":" + t.remote
	if t.upload {
		return append(arguments, t.local, remote)
	}
	return append(arguments, remote, t.local)
}

// run copies with the client of our own, by the protocol of scp.
func (t *transfer) run(ctx context.Context, c *cli.CLI) error {
	client, err := t.connect(ctx, c, t.target)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	s, err := client.NewSession()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	to, err := s.StdinPipe()
	if err != nil {
		return err
	}
	from, err := s.StdoutPipe()
	if err != nil {
		return err
	}
	s.Stderr = c.ErrOut
	if err := s.Start(t.farCommand()); err != nil {
		return err
	}
	p := newProtocol(from, to, t.preserve)
	if t.upload {
		err = p.send(expandHome(t.local), t.recursive)
	} else {
		err = p.receive(expandHome(t.local), t.recursive)
	}
	_ = to.Close()
	if err != nil {
		return err
	}
	return far(s.Wait())
}

// far is the end of the guest's scp.
func far(err error) error {
	var exit *ssh.ExitError
	if errors.As(err, &exit) && exit.ExitStatus() == 127 {
		return errors.New("the guest has no scp: install its OpenSSH client there, or use --local-ssh, which can do with sftp")
	}
	return exitCode(err)
}

// farCommand is the guest's side of the copy.
func (t *transfer) farCommand() string {
	words := []string{"scp"}
	if t.recursive {
		words = append(words, "-r")
	}
	if t.preserve {
		words = append(words, "-p")
	}
	if t.upload {
		words = append(words, "-t")
	} else {
		words = append(words, "-f")
	}
	return strings.Join(append(words, "--", farPath(t.remote)), " ")
}

// farPath is a path for the guest's shell, which expands ~ and nothing else.
func farPath(path string) string {
	const always = "'"
	quote := func(s string) string { return always + strings.ReplaceAll(s, "'", `'\''`) + always }
	if path == "~" || !strings.HasPrefix(path, "~/") {
		if path == "~" {
			return path
		}
		return quote(path)
	}
	return "~/" + quote(strings.TrimPrefix(path, "~/"))
}
