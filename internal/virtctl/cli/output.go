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

// Output is the flag -o with the formats json and yaml.
type Output struct{ format string }

// AddTo adds the flag. An empty default means the command's own, human-readable output.
func (o *Output) AddTo(cmd *cobra.Command, format string) {
	cmd.Flags().StringVarP(&o.format, "output", "o", format, "Output format: json or yaml.")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
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

// PrintJSON writes the server's JSON in the format and keeps the order of its fields. It removes control characters, because values may
// come from a guest.
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
