// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package adm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/migration/upgradecheck"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// errNotMigratable is the exit code if some guests cannot be migrated. The exit code is 1 if the check itself failed.
const errNotMigratable cli.ExitError = 2

// upgradeCheckCommand is one run of the command.
type upgradeCheckCommand struct {
	*cli.CLI
	objects client.Client
	output  string
	all     bool
	// namespace limits the check to one namespace. Empty means all.
	namespace string
	// forbidden are the kinds that the user may not list.
	forbidden []string
}

// upgradeReport is what -o json and -o yaml print.
type upgradeReport struct {
	// WorkloadUpdateMethods are those of the KubeVirt object. If there are none, guests keep their launcher until they
	// are restarted.
	WorkloadUpdateMethods []v1.WorkloadUpdateMethod `json:"workloadUpdateMethods"`
	// Checked counts the running guests, NotMigratable those that cannot be migrated, Outdated those with an older
	// launcher.
	Checked       int `json:"checked"`
	NotMigratable int `json:"notMigratable"`
	Outdated      int `json:"outdated"`
	// NotLookedAt are the kinds that the user may not list. Problems that depend on them were not checked.
	NotLookedAt []string `json:"notLookedAt,omitempty"`
	// Guests are those that cannot be migrated, or all.
	Guests []upgradecheck.Finding `json:"guests"`
}

func upgradeCheck(c *cli.CLI) *cobra.Command {
	run := &upgradeCheckCommand{CLI: c}
	cmd := &cobra.Command{
		Use:   "upgrade-check",
		Short: "List the virtual machines that cannot be migrated to a new version while they run, and why.",
		Long: `List the virtual machines that cannot be migrated to a new version while they run, and why.

After an upgrade, a running guest gets the new launcher by a live migration. This command checks for every running
guest what its migration would need: the condition LiveMigratable, another node that fits its node selector,
affinity, tolerations and CPU, and quota for a second Pod in its namespace. Nothing is changed. Whether another node
has enough free CPU and memory is not checked: only the scheduler decides that, at the time of the migration.

ON-UPGRADE is the effect of spec.workloadUpdateStrategy of the KubeVirt object: the guest Migrates, its Pod is
evicted and it ShutsDown, or it Stays with its launcher until it is restarted.

All namespaces are checked, or the one of --namespace. The exit code is 0 if every guest can be migrated, 2 if some
cannot, and 1 if the check failed.`,
		Example: c.Examples(`
# List the guests that cannot be migrated, and why:
virtctl adm upgrade-check

# List all guests of a namespace, and the effect of an upgrade on each:
virtctl adm upgrade-check --namespace=shop --all -o wide

# In a pipeline, stop before the upgrade if a guest cannot be migrated:
virtctl adm upgrade-check && kubectl apply -f kubevirt.yaml`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run.run(cmd.Context()) },
	}
	cmd.Flags().StringVarP(&run.output, "output", "o", "", "Output format: wide, json or yaml.")
	cmd.Flags().BoolVar(&run.all, "all", false, "List the guests that can be migrated as well.")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"wide", "json", "yaml"},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (u *upgradeCheckCommand) run(ctx context.Context) error {
	switch u.output {
	case "", "wide", "json", "yaml":
	default:
		return fmt.Errorf("output format %q is not known: it is wide, json or yaml", u.output)
	}
	if u.Flags.Namespace != nil {
		u.namespace = *u.Flags.Namespace
	}
	var err error
	if u.objects, err = u.Objects(); err != nil {
		return err
	}
	kubevirt, err := cli.KubeVirt(ctx, u.objects)
	if err != nil {
		return err
	}
	findings, err := u.check(ctx, kubevirt)
	if err != nil {
		return err
	}
	report := summarize(findings, u.all)
	report.WorkloadUpdateMethods, report.NotLookedAt = kubevirt.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods,
		u.forbidden
	if err := u.print(&report); err != nil {
		return err
	}
	if report.NotMigratable > 0 {
		return errNotMigratable
	}
	return nil
}

func summarize(findings []upgradecheck.Finding, all bool) upgradeReport {
	stuck := upgradecheck.Stuck(findings)
	report := upgradeReport{Checked: len(findings), NotMigratable: len(stuck), Guests: stuck}
	if all {
		report.Guests = findings
	}
	for i := range findings {
		if findings[i].Outdated {
			report.Outdated++
		}
	}
	return report
}

// check lists the objects that the check needs. It omits kinds that the user may not list, except for the guests
// themselves.
func (u *upgradeCheckCommand) check(ctx context.Context, kubevirt *v1.KubeVirt) ([]upgradecheck.Finding, error) {
	instances, pods := &v1.VirtualMachineInstanceList{}, &corev1.PodList{}
	nodes, quotas, budgets := &corev1.NodeList{}, &corev1.ResourceQuotaList{}, &policyv1.PodDisruptionBudgetList{}
	inNamespace := client.InNamespace(u.namespace)
	if err := u.objects.List(ctx, instances, inNamespace); err != nil {
		return nil, fmt.Errorf("could not list VirtualMachineInstances: %w", err)
	}
	for _, other := range []struct {
		what    string
		list    client.ObjectList
		options []client.ListOption
	}{
		{"Pods", pods, []client.ListOption{inNamespace, client.MatchingLabels{v1.AppLabel: launcherpod.AppLabelValue}}},
		{"Nodes", nodes, nil},
		{"ResourceQuotas", quotas, []client.ListOption{inNamespace}},
		{"PodDisruptionBudgets", budgets, []client.ListOption{inNamespace}},
	} {
		err := u.objects.List(ctx, other.list, other.options...)
		switch {
		case apierrors.IsForbidden(err):
			u.forbidden = append(u.forbidden, other.what)
		case err != nil:
			return nil, fmt.Errorf("could not list %s: %w", other.what, err)
		}
	}
	// Defaults replace invalid values, as in the components. The KubeVirt object's conditions report them.
	config, _ := clusterconfig.FromKubeVirt(kubevirt)
	return upgradecheck.Check(upgradecheck.Observed{
		Pods: config.Pods(), Eviction: config.EvictionStrategy,
		Methods: kubevirt.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods,
		Nodes:   nodes.Items, Quotas: quotas.Items, Budgets: budgets.Items,
	}, guestsOf(instances.Items, pods.Items)), nil
}

func guestsOf(instances []v1.VirtualMachineInstance, pods []corev1.Pod) []upgradecheck.Guest {
	byName := make(map[client.ObjectKey]*corev1.Pod, len(pods))
	for i := range pods {
		byName[client.ObjectKeyFromObject(&pods[i])] = &pods[i]
	}
	guests := make([]upgradecheck.Guest, len(instances))
	for i := range instances {
		vmi := &instances[i]
		guests[i] = upgradecheck.Guest{VMI: vmi, Pod: byName[client.ObjectKey{Namespace: vmi.Namespace,
			Name: podspec.OwnPodName(vmi)}]}
	}
	return guests
}

func (u *upgradeCheckCommand) print(report *upgradeReport) error {
	if u.output == "json" || u.output == "yaml" {
		var output cli.Output
		output.Set(u.output)
		return output.Print(u.Out, report)
	}
	if len(u.forbidden) > 0 {
		_, _ = fmt.Fprintf(u.ErrOut, "You may not list %s: what depends on them was not checked.\n",
			strings.Join(u.forbidden, ", "))
	}
	if err := u.printTable(report); err != nil {
		return err
	}
	return u.printSummary(report)
}

func (u *upgradeCheckCommand) printTable(report *upgradeReport) error {
	if len(report.Guests) == 0 {
		return nil
	}
	wide := u.output == "wide"
	w := tabwriter.NewWriter(u.Out, 0, 0, 3, ' ', 0)
	header := "NAMESPACE\tNAME\tNODE\tMIGRATABLE\tON-UPGRADE\tREASON\tMESSAGE"
	if wide {
		header = "NAMESPACE\tNAME\tNODE\tMIGRATABLE\tON-UPGRADE\tEVICTION\tOUTDATED\tLAUNCHER\tREASON\tMESSAGE"
	}
	rows := []error{line(w, header)}
	for i := range report.Guests {
		f := &report.Guests[i]
		problems := f.Problems
		if len(problems) == 0 {
			problems = []upgradecheck.Problem{{Reason: "-", Message: f.Note}}
		}
		for n, p := range problems {
			cells := []string{f.Namespace, f.Name, f.Node, fmt.Sprint(f.Migratable), string(f.OnUpgrade)}
			if wide {
				cells = append(cells, string(f.EvictionStrategy), fmt.Sprint(f.Outdated), f.LauncherImage)
			}
			if n > 0 { // Further reasons of the same guest.
				cells = slices.Repeat([]string{""}, len(cells))
			}
			message := p.Message
			if wide && n == 0 && len(f.Problems) > 0 && f.Note != "" {
				message += "; " + f.Note
			}
			rows = append(rows, line(w, strings.Join(append(cells, p.Reason,
				strings.ReplaceAll(cli.Plain(message), "\n", " ")), "\t")))
		}
	}
	return errors.Join(append(rows, w.Flush())...)
}

func line(w io.Writer, text string) error {
	_, err := fmt.Fprintln(w, strings.TrimRight(text, "\t "))
	return err
}

// printSummary prints the result below the table.
func (u *upgradeCheckCommand) printSummary(report *upgradeReport) error {
	var text string
	switch {
	case report.Checked == 0:
		text = "There are no running guests."
	case report.NotMigratable == 0:
		text = fmt.Sprintf("All %d running guests can be migrated.", report.Checked)
	default:
		text = fmt.Sprintf("\n%d of %d running guests cannot be migrated.", report.NotMigratable, report.Checked)
	}
	if report.Outdated > 0 {
		text += fmt.Sprintf(" %d still have an older launcher from an earlier upgrade.", report.Outdated)
	}
	if report.Checked > 0 && len(report.WorkloadUpdateMethods) == 0 {
		text += "\nspec.workloadUpdateStrategy of the KubeVirt object has no methods: guests keep their launcher until they are restarted or migrated manually."
	}
	_, err := fmt.Fprintln(u.Out, text)
	return err
}
