// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package prometheus reads the dashboards. Its tests check the rules and dashboards with Prometheus' own tool, and that
// each alert has a runbook.
package prometheus

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// Query is an expression of a dashboard.
type Query struct{ Panel, Expr string }

// Queries returns the expressions of a dashboard. The values replace Grafana's variables, such as $name.
func Queries(file string, values map[string]string) ([]Query, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var (
		all       []Query
		errs      []error
		variables = replacer(values)
	)
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 {
			errs = append(errs, fmt.Errorf("%s: panel %q has no query", file, panel.Title))
		}
		for _, target := range panel.Targets {
			expr := variables.Replace(target.Expr)
			if strings.Contains(expr, "$") {
				errs = append(errs, fmt.Errorf("%s: panel %q has an unknown variable: %s", file, panel.Title, target.Expr))
			}
			all = append(all, Query{panel.Title, expr})
		}
	}
	return all, errors.Join(errs...)
}

// replacer replaces variables by their values, and Grafana's interval for rates by five minutes.
func replacer(values map[string]string) *strings.Replacer {
	pairs := append(make([]string, 0, 2+2*len(values)), "$__rate_interval", "5m")
	// $namespace is replaced before $name.
	longestFirst := func(a, b string) int { return len(b) - len(a) }
	for _, name := range slices.SortedFunc(maps.Keys(values), longestFirst) {
		pairs = append(pairs, "$"+name, values[name])
	}
	return strings.NewReplacer(pairs...)
}
