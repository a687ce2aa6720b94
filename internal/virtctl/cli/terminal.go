// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Terminal returns the file descriptor of a stream, and whether it is a terminal.
func Terminal(stream any) (fd int, isTerminal bool) {
	file, isFile := stream.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return 0, false
	}
	return int(file.Fd()), true
}

// MakeRaw puts the input into raw mode, in which the program reads every key, including Ctrl+C. restore ends that mode.
// MakeRaw does not change an input that is not a terminal.
func (c *CLI) MakeRaw() (restore func(), err error) {
	fd, isTerminal := Terminal(c.In)
	if !isTerminal {
		return func() {}, nil
	}
	state, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("the terminal cannot be put into raw mode: %w", err)
	}
	return func() { _ = term.Restore(fd, state) }, nil
}

// ReadPassword prompts for a password at the terminal, without echo.
func (c *CLI) ReadPassword(prompt string) (string, error) {
	fd, isTerminal := Terminal(c.In)
	if !isTerminal {
		return "", errors.New("there is no terminal to read a password from")
	}
	_, _ = fmt.Fprint(c.ErrOut, prompt)
	password, err := term.ReadPassword(fd)
	_, _ = fmt.Fprintln(c.ErrOut)
	return string(password), err
}

// Output is the flag -o with the formats json and yaml.
type Output struct{ format string }

// AddTo adds the flag. An empty default means the command's own, human-readable output.
func (o *Output) AddTo(cmd *cobra.Command, format string) {
	cmd.Flags().StringVarP(&o.format, "output", "o", format, "Output format: json or yaml.")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json", "yaml"},
		cobra.ShellCompDirectiveNoFileComp))
}

// Set sets the format, for a command with a flag of its own.
func (o *Output) Set(format string) { o.format = format }

// IsSet reports whether a format was chosen.
func (o *Output) IsSet() bool { return o.format != "" }

// Print writes a value in the format.
func (o *Output) Print(out io.Writer, value any) error {
	var content []byte
	var err error
	switch o.format {
	case "json":
		content, err = json.MarshalIndent(value, "", "  ")
		content = append(content, '\n')
	case "yaml":
		content, err = yaml.Marshal(value)
	default:
		return fmt.Errorf("output format %q is not known: it is json or yaml", o.format)
	}
	if err != nil {
		return err
	}
	_, err = out.Write(content)
	return err
}

// PrintJSON writes the server's JSON in the format and keeps the order of its fields. It removes control characters,
// because values may come from a guest.
func (o *Output) PrintJSON(out io.Writer, content json.RawMessage) error {
	var printed []byte
	var err error
	switch o.format {
	case "json":
		var indented bytes.Buffer
		err = json.Indent(&indented, content, "", "  ")
		printed = append(indented.Bytes(), '\n')
	case "yaml":
		printed, err = yaml.JSONToYAML(content)
	default:
		return fmt.Errorf("output format %q is not known: it is json or yaml", o.format)
	}
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, Plain(string(printed)))
	return err
}

// completionTimeout is how long a press of the tab key may take.
const completionTimeout = 3 * time.Second

// CompleteFirst returns a function that completes the first argument, which is one of the words, and by next those
// after it.
func CompleteFirst(next cobra.CompletionFunc, words ...string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0:
			return words, cobra.ShellCompDirectiveNoFileComp
		case next != nil:
			return next(cmd, args[1:], typed)
		default:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
	}
}

// CompleteVMs completes the name of a VM in a shell.
func (c *CLI) CompleteVMs(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.names(cmd.Context(), "VirtualMachine", typed), cobra.ShellCompDirectiveNoFileComp
}

// CompleteInstances completes the name of an instance in a shell.
func (c *CLI) CompleteInstances(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.names(cmd.Context(), "VirtualMachineInstance", typed), cobra.ShellCompDirectiveNoFileComp
}

// CompleteKindAndName completes vm or vmi, and then a name.
func (c *CLI) CompleteKindAndName(
	cmd *cobra.Command, args []string, typed string,
) ([]string, cobra.ShellCompDirective) {
	switch {
	case len(args) == 0:
		return []string{"vm", "vmi"}, cobra.ShellCompDirectiveNoFileComp
	case len(args) == 1 && strings.HasPrefix(strings.ToLower(args[0]), "vmi"):
		return c.names(cmd.Context(), "VirtualMachineInstance", typed), cobra.ShellCompDirectiveNoFileComp
	case len(args) == 1:
		return c.names(cmd.Context(), "VirtualMachine", typed), cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// names returns the names of a kind's objects that begin with what was typed; none if the cluster does not respond in
// time.
func (c *CLI) names(ctx context.Context, kind, typed string) []string {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	namespace, err := c.Namespace()
	if err != nil {
		return nil
	}
	objects, err := c.Objects()
	if err != nil {
		return nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1.GroupVersion.WithKind(kind + "List"))
	if err := objects.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil
	}
	var names []string
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, typed) {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}
