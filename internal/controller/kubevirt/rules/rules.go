// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package rules contains Prometheus' recording and alerting rules as a table, with KubeVirt's names and meanings, and a few alerts of
// our own. It is pure: the reconciler installs them as a PrometheusRule, and the tests load the same rules into promtool and Prometheus.
package rules

import (
	"fmt"
	"strings"
)

// DefaultRunbookURL is the template of the addresses of runbooks. It contains one %s, for the alert's name.
const DefaultRunbookURL = "https://github.com/vireo-project/vireo/blob/main/docs/runbooks/%s.md"

// Names of the groups, as in KubeVirt.
const (
	RecordingGroup = "recordingRules.rules"
	AlertGroup     = "alerts.rules"
)

// Values of the labels severity and operator_health_impact.
const (
	critical = "critical"
	warning  = "warning"
	info     = "info"
	none     = "none"
)

// Settings are what the rules depend on.
type Settings struct {
	// Namespace is the install namespace.
	Namespace string
	// RunbookURL is a template with one %s, for the alert's name. Empty means DefaultRunbookURL.
	RunbookURL string
}

// CheckRunbookURL returns an error unless a template of addresses of runbooks is usable.
func CheckRunbookURL(template string) error {
	if template != "" && strings.Count(template, "%s") != 1 {
		return fmt.Errorf("the template of runbook URLs %q must contain one %%s, for the alert's name", template)
	}
	return nil
}

// File is the content of a file of rules for Prometheus, and the spec of a PrometheusRule.
type File struct {
	Groups []Group `json:"groups"`
}

// Group is a list of rules that are evaluated in order.
type Group struct {
	Name  string `json:"name"`
	Rules []Rule `json:"rules"`
}

// Rule either records the value of an expression as a metric, or alerts when the expression has a value.
type Rule struct {
	Record      string            `json:"record,omitempty"`
	Alert       string            `json:"alert,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// All returns all rules. Recording rules come first, because alerts use their values.
func All(s Settings) File {
	recording := append(components(s.Namespace), cluster(s.Namespace)...)
	recording = append(append(recording, guests()...), snapshots()...)
	recording = append(recording, deprecated()...)
	alerting := append(componentAlerts(s.Namespace), clusterAlerts(s.Namespace)...)
	alerting = append(append(alerting, guestAlerts()...), ownAlerts()...)
	return File{Groups: []Group{
		{Name: RecordingGroup, Rules: recording},
		{Name: AlertGroup, Rules: complete(alerting, s.RunbookURL)},
	}}
}

// Alerts returns the rules that alert.
func (f File) Alerts() []Rule { return f.Groups[1].Rules }

// Recordings returns the rules that record.
func (f File) Recordings() []Rule { return f.Groups[0].Rules }

// alert is one row of the tables of alerts.
type alert struct {
	name, expr, duration string
	// severity is how urgent it is for the person on call; impact is the effect on the installation as a whole.
	severity, impact     string
	summary, description string
}

// complete turns rows into rules, with the labels and annotations that all alerts have.
func complete(rows []alert, runbookURL string) []Rule {
	if runbookURL == "" {
		runbookURL = DefaultRunbookURL
	}
	out := make([]Rule, 0, len(rows))
	for _, row := range rows {
		annotations := map[string]string{"summary": row.summary, "runbook_url": strings.ReplaceAll(runbookURL, "%s", row.name)}
		if row.description != "" {
			annotations["description"] = row.description
		}
		out = append(out, Rule{Alert: row.name, Expr: row.expr, For: row.duration, Annotations: annotations, Labels: map[string]string{
			"severity": row.severity, "operator_health_impact": row.impact,
			"kubernetes_operator_part_of": "kubevirt", "kubernetes_operator_component": "kubevirt",
		}})
	}
	return out
}

// fill replaces {name} in a template by the values.
func fill(template string, values map[string]string) string {
	pairs := make([]string, 0, 2*len(values))
	for name, value := range values {
		pairs = append(pairs, "{"+name+"}", value)
	}
	return strings.NewReplacer(pairs...).Replace(template)
}
