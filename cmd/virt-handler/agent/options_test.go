// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"flag"
	"testing"
)

// kubectl port-forward connects to localhost of the Pod.
func TestListensAtAllAddresses(t *testing.T) {
	for name, tc := range map[string]struct {
		args                        []string
		metrics, console, migration string
	}{
		"as the DaemonSet starts it": {
			[]string{"--port", "8443", "--pod-ip-address", "10.1.2.3", "--console-server-port", "8186"}, ":8443", ":8186",
			"10.1.2.3:8187",
		},
		"at one address": {
			[]string{"--listen", "10.1.2.3", "--pod-ip-address", "10.1.2.3"}, "10.1.2.3:8443", "10.1.2.3:8186", "10.1.2.3:8187",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, flags := &Options{}, flag.NewFlagSet("virt-handler", flag.ContinueOnError)
			o.BindFlags(flags)
			if err := flags.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			if got := o.metricsAddress(); got != tc.metrics {
				t.Errorf("the metrics listen on %s, want %s", got, tc.metrics)
			}
			if got := o.consoleAddress(); got != tc.console {
				t.Errorf("the server for virt-api listens on %s, want %s", got, tc.console)
			}
			if got := o.migrationAddress(); got != tc.migration {
				t.Errorf("the server for other agents listens on %s, want %s", got, tc.migration)
			}
		})
	}
}
