// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/format"
)

// failuresFile is the path of a list of failed specs with their expectations, for a CI system that shows only the end
// of the output. If it is empty, no list is written.
var failuresFile = os.Getenv("FAILURES_FILE")

var _ = ReportAfterSuite("failures, in short", func(report Report) {
	if failuresFile == "" {
		return
	}
	out := &strings.Builder{}
	for _, spec := range report.SpecReports.WithState(types.SpecStateFailureStates) {
		name := cmp.Or(spec.FullText(), spec.LeafNodeType.String())
		fmt.Fprintf(out, "%s\n  %s\n%s\n", name, spec.Failure.Location,
			format.IndentString(shorten(spec.Failure.Message, 1200), 1))
	}
	Expect(os.WriteFile(failuresFile, []byte(out.String()), 0o644)).To(Succeed())
})

// shorten keeps the start and the end of a text, where Gomega prints what is relevant.
func shorten(text string, atMost int) string {
	if len(text) <= atMost {
		return text
	}
	return text[:atMost/2] + " … " + text[len(text)-atMost/2:]
}
