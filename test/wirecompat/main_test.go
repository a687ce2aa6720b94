// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"fmt"
	"os"
	"testing"
)

// totals counts what the tests did, for the summary.
var totals struct {
	fields, missing, schemaNodes, roundTrips, stored, merges, constants int
	seed                                                                int64
}

func TestMain(m *testing.M) {
	code := m.Run()
	if started != nil {
		if err := started.env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the API server:", err)
		}
	}
	kinds := 0
	for _, p := range pairs {
		if p.crd != "" {
			kinds++
		}
	}
	fmt.Printf("wirecompat: %d kinds, %d bodies, %d fields compared, %d fields missing, %d schema nodes and %d constants compared, %d random objects tried (%d through an API server), %d merges by two managers; seed %d\n",
		kinds, len(pairs)-kinds, totals.fields, totals.missing, totals.schemaNodes, totals.constants,
		totals.roundTrips+totals.stored, totals.stored, totals.merges, totals.seed)
	os.Exit(code)
}
