// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// completionTimeout is how long a press of the tab key may take.
const completionTimeout = 3 * time.Second

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
func (c *CLI) CompleteKindAndName(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
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

// names returns the names of a kind's objects that begin with what was typed; none if the cluster does not respond in time.
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
