// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package lifecycle

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// Migrate returns the command migrate.
func Migrate(c *cli.CLI) *cobra.Command {
	var dry dryRun
	var selector map[string]string
	cmd := &cobra.Command{
		Use:   "migrate (VM)",
		Short: "Migrate a virtual machine to another node while it runs.",
		Example: c.Examples(`
# Migrate a virtual machine called 'myvm' to a node that the scheduler chooses:
virtctl migrate myvm

# Migrate it to a node with a label. The VM's own node selector and affinity apply as well:
virtctl migrate myvm --addedNodeSelector=kubernetes.io/hostname=node2`),
		Args:              c.OneArgument("VM"),
		ValidArgsFunction: c.CompleteVMs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return change(cmd, c, args[0], "migrate", "migrating", func() any {
				return v1.MigrateOptions{DryRun: dry.options(c.Out), AddedNodeSelector: selector}
			})
		},
	}
	cmd.Flags().StringToStringVar(&selector, "addedNodeSelector", nil,
		"Labels (key=value,…) that the target node must have, for this migration only.")
	dry.addTo(cmd)
	return cmd
}

// MigrateCancel returns the command migrate-cancel.
func MigrateCancel(c *cli.CLI) *cobra.Command {
	var dry dryRun
	cmd := &cobra.Command{
		Use:   "migrate-cancel (VM)",
		Short: "Cancel the migration of a virtual machine.",
		Example: c.Examples(`
# Cancel the migration of a virtual machine called 'myvm':
virtctl migrate-cancel myvm`),
		Args:              c.OneArgument("VM"),
		ValidArgsFunction: c.CompleteVMs,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, vm, err := c.VM(args[0])
			if err != nil {
				return err
			}
			objects, err := c.Objects()
			if err != nil {
				return err
			}
			key := client.ObjectKey{Namespace: vm.Namespace, Name: vm.Name}
			if err := cancelMigration(cmd.Context(), objects, key, dry.options(c.Out)); err != nil {
				return err
			}
			return scheduled(c, vm, "migrate-cancel")
		},
	}
	dry.addTo(cmd)
	return cmd
}

// cancelMigration deletes the instance's unfinished migration. There is at most one.
func cancelMigration(ctx context.Context, objects client.Client, vmi client.ObjectKey, dry []string) error {
	migrations := &v1.VirtualMachineInstanceMigrationList{}
	if err := objects.List(ctx, migrations, client.InNamespace(vmi.Namespace)); err != nil {
		return fmt.Errorf("error fetching the list of migrations: %w", err)
	}
	for i := range migrations.Items {
		migration := &migrations.Items[i]
		if migration.Spec.VMIName != vmi.Name || migration.IsFinal() {
			continue
		}
		if err := objects.Delete(ctx, migration, &client.DeleteOptions{DryRun: dry}); err != nil {
			return fmt.Errorf("error canceling migration %s of VirtualMachine %s: %w", migration.Name, vmi.Name, err)
		}
		return nil
	}
	return fmt.Errorf("found no migration to cancel for %s", vmi.Name)
}

// EvacuateCancel returns the command evacuate-cancel.
func EvacuateCancel(c *cli.CLI) *cobra.Command {
	var dry dryRun
	cmd := &cobra.Command{
		Use:   "evacuate-cancel vm|vmi (VM)|(VMI)",
		Short: "Cancel the evacuation of a virtual machine from its node.",
		Example: c.Examples(`
# Cancel the evacuation of a virtual machine:
virtctl evacuate-cancel vm myvm

# Cancel the evacuation of a virtual machine instance:
virtctl evacuate-cancel vmi myvmi`),
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.CompleteKindAndName,
		RunE: func(cmd *cobra.Command, args []string) error {
			resource, err := cli.Resource(args[0])
			if err != nil {
				return err
			}
			api, object, err := c.VM(args[1])
			if err != nil {
				return err
			}
			object.Resource = resource
			options := v1.EvacuateCancelOptions{DryRun: dry.options(c.Out)}
			if err := api.Put(cmd.Context(), object, "evacuate/cancel", options); err != nil {
				return fmt.Errorf("error canceling evacuation for %s %s/%s: %w", object.Kind(), object.Namespace, object.Name, err)
			}
			_, err = fmt.Fprintf(c.Out, "%s %s/%s was canceled evacuation\n", object.Kind(), object.Namespace, object.Name)
			return err
		},
	}
	dry.addTo(cmd)
	return cmd
}
