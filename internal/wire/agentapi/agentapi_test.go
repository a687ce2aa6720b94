// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agentapi

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestVMIPath(t *testing.T) {
	vmi := types.NamespacedName{Namespace: "shop", Name: "db.1"}
	for _, c := range []struct {
		verb      string
		arguments []string
		want      string
	}{
		{Console, nil, "/v1/namespaces/shop/virtualmachineinstances/db.1/console"},
		{Screenshot, nil, "/v1/namespaces/shop/virtualmachineinstances/db.1/vnc/screenshot"},
		{PortForward, []string{"53", "udp"}, "/v1/namespaces/shop/virtualmachineinstances/db.1/portforward/53/udp"},
	} {
		if got := VMIPath(vmi, c.verb, c.arguments...); got != c.want {
			t.Errorf("VMIPath(%q, %v) = %q, want %q", c.verb, c.arguments, got, c.want)
		}
	}
}
