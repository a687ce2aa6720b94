// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package ssh

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

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
	cmd.Flags().BoolVar(&t.preserve, "preserve", false, "Preserve modification times, access times and modes of the files.")
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
	if !found || len(target) < 2 || strings.HasPrefix(target, ".") || strings.HasPrefix(target, "/") || strings.HasPrefix(target, "~") {
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
