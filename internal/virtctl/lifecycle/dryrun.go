// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package lifecycle

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// dryRun is the flag --dry-run. As in KubeVirt, it has no value.
type dryRun bool

func (d *dryRun) addTo(cmd *cobra.Command) {
	cmd.Flags().BoolVar((*bool)(d), "dry-run", false, "Check the request and change nothing.")
}

// options returns the request's dryRun field, and prints that nothing will be changed.
func (d *dryRun) options(out io.Writer) []string {
	if !*d {
		return nil
	}
	_, _ = fmt.Fprintln(out, "Dry Run execution")
	return []string{metav1.DryRunAll}
}
