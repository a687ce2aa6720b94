// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"flag"
	"slices"
	"testing"
)

func TestLiveMetadataFlags(t *testing.T) {
	options, flags := &Options{}, flag.NewFlagSet("virt-controller", flag.ContinueOnError)
	options.BindFlags(flags)
	err := flags.Parse([]string{
		"--additional-launcher-annotations-sync=acme.example/*, note,", "--additional-launcher-labels-sync", "tier",
		"--additional-launcher-labels-sync=zone",
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"acme.example/*", "note"}; !slices.Equal(options.LiveMetadata.Annotations, want) {
		t.Errorf("annotations %q, want %q", options.LiveMetadata.Annotations, want)
	}
	if want := []string{"tier", "zone"}; !slices.Equal(options.LiveMetadata.Labels, want) {
		t.Errorf("labels %q, want %q", options.LiveMetadata.Labels, want)
	}
}
