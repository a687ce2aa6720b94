// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestHandlerHasNothingThatNeedsPrivileges checks that virt-handler is built from no package of virt-broker's, and from none with which
// it could change the node's network.
func TestHandlerHasNothingThatNeedsPrivileges(t *testing.T) {
	list := exec.Command("go", "list", "-deps", ".")
	list.Stderr = os.Stderr
	output, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	const broker = "github.com/vireo-project/vireo/internal/broker"
	for name := range strings.FieldsSeq(string(output)) {
		if name == broker || strings.HasPrefix(name, broker+"/") || strings.HasPrefix(name, "github.com/vishvananda/netlink") ||
			strings.HasPrefix(name, "github.com/google/nftables") || strings.HasPrefix(name, "k8s.io/kubelet/") {
			t.Errorf("it is built from %s", name)
		}
	}
}
