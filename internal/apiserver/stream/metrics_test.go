// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package stream

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"
)

func TestLastConnections(t *testing.T) {
	now := time.Unix(1000, 0)
	l := &lastConnections{limit: 2, now: func() time.Time { return now }, at: map[types.NamespacedName]time.Time{}}
	for i, name := range []string{"a", "b", "a", "c"} {
		now = time.Unix(int64(1000+i), 0)
		l.note(types.NamespacedName{Namespace: "ns", Name: name})
	}
	want := `
# HELP kubevirt_vmi_last_api_connection_timestamp_seconds When a console, a screen, a tunnel or a USB redirection of a VMI was last opened, in Unix time.
# TYPE kubevirt_vmi_last_api_connection_timestamp_seconds gauge
`
	for name, at := range map[string]int{"a": 1002, "c": 1003} {
		want += fmt.Sprintf("kubevirt_vmi_last_api_connection_timestamp_seconds{namespace=\"ns\",vmi=%q} %d\n", name, at)
	}
	if err := testutil.CollectAndCompare(l, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
