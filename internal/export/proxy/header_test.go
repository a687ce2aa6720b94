// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package proxy

import (
	"net/url"
	"testing"
)

func TestRequestQuery(t *testing.T) {
	for query, want := range map[string]string{
		"":                           "",
		"x-kubevirt-export-token=t":  "x-kubevirt-export-token=t",
		"offset=1&length=2&other=3":  "length=2&offset=1",
		"page_size=1&page_size=2&a":  "page_size=1",
		"offset=%0d%0aX:+y&token=no": "offset=%0D%0AX%3A+y",
	} {
		if got := requestQuery(&url.URL{RawQuery: query}); got != want {
			t.Errorf("%s: got %s", query, got)
		}
	}
}
