// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package create implements the commands that print manifests of virtual machines, instance types, preferences and clones.
package create

import (
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// randomLength is the length of the random part of a name.
const randomLength = 5

// Command returns the command create.
func Command(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a manifest for the specified Kind.",
		Long:  "Print the manifest of an object, for kubectl apply. Nothing is changed in the cluster.",
		Example: c.Examples(`
# Create a virtual machine from an image and start it:
virtctl create vm --name=myvm --volume-containerdisk=src:quay.io/containerdisks/fedora:latest | kubectl apply -f -`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(vmCommand(c), instancetypeCommand(c), preferenceCommand(c), cloneCommand(c))
	return cmd
}

// nameOr returns the name, or a random one if it is empty.
func nameOr(name, prefix string) string {
	if name == "" {
		return prefix + rand.String(randomLength)
	}
	return name
}

// explicitNamespace returns the namespace if the user specified one, and "" otherwise, so that the manifest can be applied to any
// namespace.
func explicitNamespace(c *cli.CLI) (string, error) {
	namespace, overridden, err := c.Flags.ToRawKubeConfigLoader().Namespace()
	if err != nil || !overridden {
		return "", err
	}
	return namespace, nil
}

// printManifest prints an object without its status and empty fields.
func printManifest(c *cli.CLI, output *cli.Output, object any) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	delete(content, "status")
	prune(content)
	return output.Print(c.Out, content)
}

// prune removes null values and empty metadata, which are never omitted from KubeVirt's types.
func prune(content map[string]any) {
	for key, value := range content {
		switch v := value.(type) {
		case nil:
			delete(content, key)
		case map[string]any:
			prune(v)
			if key == "metadata" && len(v) == 0 {
				delete(content, key)
			}
		case []any:
			for _, item := range v {
				if m, ok := item.(map[string]any); ok {
					prune(m)
				}
			}
		}
	}
}
