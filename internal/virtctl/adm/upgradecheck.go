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
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/upgradecheck"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// errStuck is the exit code when the check was made and there are guests that could not be moved. 1 is a check that could not be made.
const errStuck cli.ExitError = 2

// upgradeCheckCommand is one run of the command.
type upgradeCheckCommand struct {
	*cli.CLI
	objects client.Client
	output  string
	all     bool
	// namespace limits what is looked at. Empty means everywhere.
	namespace string
	// unseen is what could not be looked at, for want of rights.
	unseen []string
}

// upgradeReport is what -o json and -o yaml print.
type upgradeReport struct {
	// WorkloadUpdateMethods are those of the KubeVirt object. Without any, guests keep their launcher until they are started anew.
	WorkloadUpdateMethods []v1.WorkloadUpdateMethod `json:"workloadUpdateMethods"`
	// Checked is how many guests run, NotMigratable how many of them could not be moved, Outdated how many have an older launcher now.
	Checked       int `json:"checked"`
	NotMigratable int `json:"notMigratable"`
	Outdated      int `json:"outdated"`
	// NotLookedAt is what the user may not read: nothing is said about it.
	NotLookedAt []string `json:"notLookedAt,omitempty"`
	// Guests are those that could not be moved, or all.
	Guests []upgradecheck.Finding `json:"guests"`
}

func upgradeCheck(c *cli.CLI) *cobra.Command {
	run := &upgradeCheckCommand{CLI: c}
	cmd := &cobra.Command{
		Use:   "upgrade-check",
		Short: "List the virtual machines that could not be moved to a new version while they run, and why.",
		Long: `List the virtual machines that could not be moved to a new version while they run, and why.

An upgrade brings a new launcher, which a running guest gets by a live migration. Before an upgrade this command looks at every guest that
runs and at what a migration of it would need: what the guest's node says about it (condition LiveMigratable), another node that fits its
node selector, affinity, tolerations and CPU, and room in the quotas of its namespace for a second Pod. Nothing is changed. Whether another
node has the free CPU and memory only the scheduler knows when it is asked.

ON-UPGRADE is what will happen by spec.workloadUpdateStrategy of the KubeVirt object: the guest Migrates, its Pod is evicted and it
ShutsDown, or it Stays with its launcher until it is started anew.

All namespaces are looked at, or the one of --namespace. The exit code is 0 if every guest could be moved, 2 if some could not, and 1 if
the check could not be made.`,
		Example: c.Examples(`
# Which guests could not be moved, and why:
virtctl adm upgrade-check

# All guests of a namespace, and what an upgrade does to each:
virtctl adm upgrade-check --namespace=shop --all -o wide

# In a pipeline, stop before the upgrade if a guest could not be moved:
virtctl adm upgrade-check && kubectl apply -f kubevirt.yaml`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run.run(cmd.Context()) },
	}
	cmd.Flags().StringVarP(&run.output, "output", "o", "", "Output format: wide, json or yaml.")
	cmd.Flags().BoolVar(&run.all, "all", false, "List the guests that could be moved as well.")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"wide", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
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
	report.WorkloadUpdateMethods, report.NotLookedAt = kubevirt.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods, u.unseen
	if err := u.print(&report); err != nil {
		return err
	}
	if report.NotMigratable > 0 {
		return errStuck
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

// check reads what the check needs. What the user may not read is left out, but for the guests themselves.
func (u *upgradeCheckCommand) check(ctx context.Context, kubevirt *v1.KubeVirt) ([]upgradecheck.Finding, error) {
	instances, pods := &v1.VirtualMachineInstanceList{}, &corev1.PodList{}
	nodes, quotas, budgets := &corev1.NodeList{}, &corev1.ResourceQuotaList{}, &policyv1.PodDisruptionBudgetList{}
	here := client.InNamespace(u.namespace)
	if err := u.objects.List(ctx, instances, here); err != nil {
		return nil, fmt.Errorf("could not list VirtualMachineInstances: %w", err)
	}
	for _, other := range []struct {
		what    string
		list    client.ObjectList
		options []client.ListOption
	}{
		{"Pods", pods, []client.ListOption{here, client.MatchingLabels{v1.AppLabel: podspec.LauncherAppValue}}},
		{"Nodes", nodes, nil},
		{"ResourceQuotas", quotas, []client.ListOption{here}},
		{"PodDisruptionBudgets", budgets, []client.ListOption{here}},
	} {
		err := u.objects.List(ctx, other.list, other.options...)
		switch {
		case apierrors.IsForbidden(err):
			u.unseen = append(u.unseen, other.what)
		case err != nil:
			return nil, fmt.Errorf("could not list %s: %w", other.what, err)
		}
	}
	// Values that cannot be used have their defaults, as for everybody else. The KubeVirt object says so itself.
	config, _ := clusterconfig.FromKubeVirt(kubevirt)
	return upgradecheck.Check(upgradecheck.World{
		Pods: config.Pods(), Eviction: config.EvictionStrategy, Methods: kubevirt.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods,
		Nodes: nodes.Items, Quotas: quotas.Items, Budgets: budgets.Items,
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
		guests[i] = upgradecheck.Guest{VMI: vmi, Pod: byName[client.ObjectKey{Namespace: vmi.Namespace, Name: podspec.OwnPodName(vmi)}]}
	}
	return guests
}

func (u *upgradeCheckCommand) print(report *upgradeReport) error {
	if u.output == "json" || u.output == "yaml" {
		var output cli.Output
		output.Set(u.output)
		return output.Print(u.Out, report)
	}
	if len(u.unseen) > 0 {
		_, _ = fmt.Fprintf(u.ErrOut, "You may not list %s: nothing is said about what they decide.\n", strings.Join(u.unseen, ", "))
	}
	if err := u.table(report); err != nil {
		return err
	}
	return u.words(report)
}

func (u *upgradeCheckCommand) table(report *upgradeReport) error {
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
			if n > 0 { // One guest, several reasons.
				cells = slices.Repeat([]string{""}, len(cells))
			}
			message := p.Message
			if wide && n == 0 && len(f.Problems) > 0 && f.Note != "" {
				message += "; " + f.Note
			}
			rows = append(rows, line(w, strings.Join(append(cells, p.Reason, strings.ReplaceAll(cli.Plain(message), "\n", " ")), "\t")))
		}
	}
	return errors.Join(append(rows, w.Flush())...)
}

func line(w io.Writer, text string) error {
	_, err := fmt.Fprintln(w, strings.TrimRight(text, "\t "))
	return err
}

// words say below the table what it comes to.
func (u *upgradeCheckCommand) words(report *upgradeReport) error {
	var text string
	switch {
	case report.Checked == 0:
		text = "No guest runs."
	case report.NotMigratable == 0:
		text = fmt.Sprintf("All %d guests that run could be moved.", report.Checked)
	default:
		text = fmt.Sprintf("\n%d of %d guests that run could not be moved.", report.NotMigratable, report.Checked)
	}
	if report.Outdated > 0 {
		text += fmt.Sprintf(" %d still have an older launcher from an earlier upgrade.", report.Outdated)
	}
	if report.Checked > 0 && len(report.WorkloadUpdateMethods) == 0 {
		text += "\nspec.workloadUpdateStrategy of the KubeVirt object has no methods: guests keep their launcher until they are started anew or migrated by hand."
	}
	_, err := fmt.Fprintln(u.Out, text)
	return err
}
