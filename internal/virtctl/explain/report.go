// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/component/eventtime"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

const (
	// maxEvents is the number of events in a report, and maxText the size of a message in bytes, so that a report fits
	// on one screen.
	maxEvents, maxText = 5, 400
	// maxParagraph is the size of a paragraph in bytes. It can contain several texts of other users.
	maxParagraph = 4 * maxText
	// width is the length of a line in bytes.
	width = 100
)

// Finding is one result of a rule.
type Finding struct {
	// What is a summary in one sentence.
	What string `json:"what"`
	// Why contains the reasons, preferably as messages from the cluster.
	Why []string `json:"why,omitempty"`
	// Do is the remedy as a sentence, and Commands are the commands to run.
	Do       string   `json:"do,omitempty"`
	Commands []string `json:"commands,omitempty"`
	// Good reports whether the finding is not a problem.
	Good bool `json:"good,omitempty"`
}

// Event is an event of one of the objects.
type Event struct {
	Age     string `json:"age"`
	Object  string `json:"object"`
	Type    string `json:"type"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Report is the output of the command.
type Report struct {
	// Title names the VM and its state.
	Title    string    `json:"title"`
	Findings []Finding `json:"findings"`
	Events   []Event   `json:"events,omitempty"`
	// Hidden are the areas that the user may not read.
	Hidden []Area `json:"hidden,omitempty"`
}

// Print writes the report as text.
func (r *Report) Print(out io.Writer) error {
	var b strings.Builder
	b.WriteString(short(r.Title) + "\n")
	for _, finding := range r.Findings {
		finding.print(&b)
	}
	if len(r.Events) > 0 {
		b.WriteString("\nLatest events:\n")
		for _, e := range r.Events {
			paragraph(&b, fmt.Sprintf("  %-5s", e.Age), fmt.Sprintf("%s %s: %s", e.Reason, e.Object, withoutJSON(e.Message)))
		}
	}
	if len(r.Hidden) > 0 {
		names := make([]string, 0, len(r.Hidden))
		for _, area := range r.Hidden {
			names = append(names, string(area))
		}
		fmt.Fprintf(&b, "\nNot checked, because you have no permission to read: %s.\n", strings.Join(names, ", "))
	}
	_, err := io.WriteString(out, cli.Plain(b.String()))
	return err
}

// withoutJSON removes the JSON at the end of a message: the kubelet's events about the resources of a Pod have all of
// them there. The report as JSON has the whole message.
func withoutJSON(message string) string {
	text, _, _ := strings.Cut(message, `: {"`)
	return text
}

func (f *Finding) print(b *strings.Builder) {
	mark := "! "
	if f.Good {
		mark = "* "
	}
	b.WriteString("\n")
	paragraph(b, mark, f.What)
	for _, why := range f.Why {
		paragraph(b, "    - ", why)
	}
	if f.Do != "" {
		paragraph(b, "  What to do: ", f.Do)
	}
	for _, command := range f.Commands {
		b.WriteString("      " + command + "\n")
	}
}

// paragraph writes a text after a prefix and wraps it between words.
func paragraph(b *strings.Builder, head, text string) {
	indent := strings.Repeat(" ", len(head))
	if len(indent) > 6 {
		indent = "    "
	}
	line := head
	empty := true
	for _, word := range strings.Fields(cut(text, maxParagraph)) {
		if !empty && len(line)+1+len(word) > width {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line, empty = indent, true
		}
		if !empty {
			line += " "
		} else if !strings.HasSuffix(line, " ") {
			line += " "
		}
		line += word
		empty = false
	}
	b.WriteString(line + "\n")
}

// short returns a message as one line, truncated to maxText bytes.
func short(text string) string { return cut(strings.Join(strings.Fields(text), " "), maxText) }

// sentence ends a text with one full stop. Some of KubeVirt's reasons have one.
func sentence(text string) string { return strings.TrimRight(text, ".") + "." }

// cut truncates a text to limit bytes.
func cut(text string, limit int) string {
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}

// age returns the time since then in kubectl's format.
func age(now, then time.Time) string {
	d := now.Sub(then)
	switch {
	case then.IsZero():
		return "?"
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours())/24)
	}
}

// Explain returns the report for a snapshot.
func Explain(s *Snapshot) *Report {
	r := &Report{Title: title(s)}
	for _, rule := range rules {
		r.Findings = append(r.Findings, rule(s)...)
	}
	if len(r.Findings) == 0 {
		r.Findings = []Finding{unexplained(s)}
	}
	if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return !f.Good }) {
		return r // Without a problem the events are omitted.
	}
	for i := range s.Events {
		if len(r.Events) == maxEvents {
			break
		}
		e := &s.Events[i]
		r.Events = append(r.Events, Event{
			Age: age(s.Now, eventtime.LastObserved(e)), Object: e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name,
			Type: e.Type, Reason: e.Reason, Message: short(e.Message),
		})
	}
	for area := range s.Hidden {
		r.Hidden = append(r.Hidden, area)
	}
	slices.Sort(r.Hidden)
	return r
}

func title(s *Snapshot) string {
	switch {
	case s.VM != nil:
		state := string(s.VM.Status.PrintableStatus)
		if state == "" {
			state = "no status yet"
		}
		return fmt.Sprintf("VirtualMachine %s/%s: %s", s.Namespace, s.Name, state)
	case s.VMI != nil:
		return fmt.Sprintf("VirtualMachineInstance %s/%s (without a VM): %s", s.Namespace, s.Name, s.VMI.Status.Phase)
	default:
		return fmt.Sprintf("%s/%s", s.Namespace, s.Name)
	}
}

// Command returns the command explain.
func Command(c *cli.CLI) *cobra.Command {
	var output cli.Output
	cmd := &cobra.Command{
		Use:   "explain (VM)",
		Short: "Explain why a virtual machine does not run, or what it waits for.",
		Long: "Explain on one screen why a virtual machine does not run, or what it waits for, and what to do about it.\n" +
			"The sources are the VM, its instance, its Pod, its claims, its node, the KubeVirt object and their events.",
		Example: c.Examples(`
# Explain why 'myvm' does not run:
virtctl explain myvm

# Print the explanation as JSON:
virtctl explain myvm -o json`),
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
			snapshot, err := Gather(cmd.Context(), objects, vm.Namespace, vm.Name, c.Program)
			if err != nil {
				return err
			}
			report := Explain(snapshot)
			if output.IsSet() {
				return output.Print(c.Out, report)
			}
			return report.Print(c.Out)
		},
	}
	output.AddTo(cmd, "")
	return cmd
}
