// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// Output is the flag -o of commands that print something for programs.
type Output struct{ format string }

// AddTo adds the flag. The default may be empty, if the command has a form of its own for people.
func (o *Output) AddTo(cmd *cobra.Command, format string) {
	cmd.Flags().StringVarP(&o.format, "output", "o", format, "Output format: json or yaml.")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

// Set chooses a format, for a command with a flag of its own.
func (o *Output) Set(format string) { o.format = format }

// IsSet says that a format was chosen.
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

// PrintJSON writes JSON of the server's in the format, with its fields in their order. A guest may have had a hand in it.
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
