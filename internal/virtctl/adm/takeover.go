// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package adm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/takeover"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// errStops is the exit code if something has to be done before a takeover. The exit code is 1 if no plan was made.
const errStops cli.ExitError = 2

func takeoverCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "takeover",
		Short: "Look at a cluster that KubeVirt manages, before Vireo takes it over.",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(takeoverPlan(c))
	return cmd
}

func takeoverPlan(c *cli.CLI) *cobra.Command {
	var output cli.Output
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "List what stops a takeover, what will change, and what becomes of each running guest.",
		Long: `List what stops a takeover, what will change, and what becomes of each running guest.

Nothing is changed: only objects are read, which needs a user who may read them in all namespaces. The takeover itself
is not implemented yet.

VERDICT is what becomes of a guest: Adopted guests run on, and get Vireo's launcher at their next start; AdoptedOnce
guests run on too, but Vireo cannot start them again as their spec is; StopFirst guests have to be stopped before.

The exit code is 0 if nothing stops a takeover, 2 if something does, and 1 if no plan was made.`,
		Example: c.Examples(`
# Look at the cluster:
virtctl adm takeover plan

# List the guests that have to be stopped first:
virtctl adm takeover plan -o json | jq -r '.guests[] | select(.verdict == "StopFirst") | .namespace + "/" + .name'`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			plan, err := planTakeover(cmd.Context(), c)
			if err != nil {
				return err
			}
			if output.IsSet() {
				err = output.Print(c.Out, plan)
			} else {
				err = printPlan(c, plan)
			}
			if err == nil && len(plan.Stops) > 0 {
				return errStops
			}
			return err
		},
	}
	output.AddTo(cmd, "")
	return cmd
}

// planTakeover reads the cluster and makes the plan.
func planTakeover(ctx context.Context, c *cli.CLI) (*takeover.Plan, error) {
	objects, err := c.Objects()
	if err != nil {
		return nil, err
	}
	cluster := &takeover.Cluster{Served: takeover.Served}
	if cluster.KubeVirt, err = cli.KubeVirt(ctx, objects); err != nil {
		return nil, err
	}
	namespace := cluster.KubeVirt.Namespace
	operator := &appsv1.Deployment{}
	err = objects.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "virt-operator"}, operator)
	switch {
	case err == nil:
		cluster.Operator = operator
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("could not get Deployment %s/virt-operator: %w", namespace, err)
	}
	if err := readServer(c, cluster); err != nil {
		return nil, err
	}
	if err := readObjects(ctx, objects, cluster); err != nil {
		return nil, err
	}
	plan := takeover.Make(cluster)
	return &plan, nil
}

// readServer reads the version and the groups of the API server.
func readServer(c *cli.CLI, cluster *takeover.Cluster) error {
	discovery, err := c.Flags.ToDiscoveryClient()
	if err != nil {
		return err
	}
	server, err := discovery.ServerVersion()
	if err != nil {
		return fmt.Errorf("could not get the version of the API server: %w", err)
	}
	cluster.ServerVersion = server.GitVersion
	groups, err := discovery.ServerGroups()
	if err != nil {
		return fmt.Errorf("could not get the groups of the API server: %w", err)
	}
	for i := range groups.Groups {
		cluster.OpenShift = cluster.OpenShift || groups.Groups[i].Name == "security.openshift.io"
	}
	return nil
}

// readObjects lists what the plan needs, in all namespaces. A kind that the cluster does not have has no objects.
func readObjects(ctx context.Context, objects client.Client, cluster *takeover.Cluster) error {
	vms, vmis := &v1.VirtualMachineList{}, &v1.VirtualMachineInstanceList{}
	migrations, pods := &v1.VirtualMachineInstanceMigrationList{}, &corev1.PodList{}
	policies := &networkingv1.NetworkPolicyList{}
	presets := metadataOf(v1.GroupVersion.WithKind("VirtualMachineInstancePreset"))
	exports := metadataOf(schema.GroupVersionKind{Group: "export.kubevirt.io", Version: "v1beta1",
		Kind: "VirtualMachineExport"})
	crds := &unstructured.UnstructuredList{}
	crds.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1",
		Kind: "CustomResourceDefinitionList"})
	launchers := client.HasLabels{v1.AppLabel}
	for _, kind := range []struct {
		what    string
		list    client.ObjectList
		options []client.ListOption
	}{
		{"VirtualMachines", vms, nil},
		{"VirtualMachineInstances", vmis, nil},
		{"VirtualMachineInstanceMigrations", migrations, nil},
		{"Pods", pods, []client.ListOption{launchers}},
		{"NetworkPolicies", policies, []client.ListOption{client.InNamespace(cluster.KubeVirt.Namespace)}},
		{"VirtualMachineInstancePresets", presets, nil},
		{"VirtualMachineExports", exports, nil},
		{"CustomResourceDefinitions", crds, nil},
	} {
		if err := list(ctx, objects, kind.what, kind.list, kind.options...); err != nil {
			return err
		}
	}
	for _, kind := range takeover.WorkKinds {
		work := &unstructured.UnstructuredList{}
		work.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := list(ctx, objects, kind.Kind+"s", work); err != nil {
			return err
		}
		cluster.Work = append(cluster.Work, work.Items...)
	}
	cluster.VMs, cluster.VMIs, cluster.Migrations, cluster.Pods = vms.Items, vmis.Items, migrations.Items, pods.Items
	cluster.Presets, cluster.Exports = len(presets.Items), len(exports.Items)
	for i := range policies.Items {
		cluster.NetworkPolicies = append(cluster.NetworkPolicies, policies.Items[i].Namespace+"/"+policies.Items[i].Name)
	}
	cluster.StoredVersions = map[string][]string{}
	for i := range crds.Items {
		cluster.StoredVersions[crds.Items[i].GetName()], _, _ = unstructured.NestedStringSlice(crds.Items[i].Object,
			"status", "storedVersions")
	}
	return nil
}

func metadataOf(kind schema.GroupVersionKind) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	return list
}

func list(
	ctx context.Context, objects client.Client, what string, into client.ObjectList, options ...client.ListOption,
) error {
	if err := objects.List(ctx, into, options...); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("could not list %s: %w", what, err)
	}
	return nil
}

// printPlan prints the plan as tables.
func printPlan(c *cli.CLI, plan *takeover.Plan) error {
	w := tabwriter.NewWriter(c.Out, 0, 0, 3, ' ', 0)
	var errs []error
	say := func(format string, args ...any) {
		errs = append(errs, line(w, cli.Plain(fmt.Sprintf(format, args...))))
	}
	findings := func(title string, list []takeover.Finding) {
		if len(list) == 0 {
			return
		}
		say("%s", title)
		for _, f := range list {
			say("  %s: %s", f.Object, f.Message)
		}
		say("")
	}
	say("KubeVirt %s", plan.Version)
	say("")
	findings("To be done before a takeover:", plan.Stops)
	findings("What will change:", plan.Notes)
	counts := map[takeover.Verdict]int{}
	if len(plan.Guests) > 0 {
		errs = append(errs, line(w, "NAMESPACE\tNAME\tNODE\tVERDICT\tREASONS"))
	}
	for i := range plan.Guests {
		g := &plan.Guests[i]
		counts[g.Verdict]++
		errs = append(errs, line(w, strings.Join([]string{g.Namespace, g.Name, g.Node, string(g.Verdict),
			strings.ReplaceAll(cli.Plain(strings.Join(g.Reasons, "; ")), "\n", " ")}, "\t")))
	}
	errs = append(errs, w.Flush())
	_, err := fmt.Fprintf(c.Out, "\n%d running guests: %d run on, %d run on and cannot be started again, %d have to be stopped. "+
		"%d stops.\n", len(plan.Guests), counts[takeover.Adopted], counts[takeover.AdoptedOnce], counts[takeover.StopFirst],
		len(plan.Stops))
	return errors.Join(append(errs, err)...)
}
