// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// large are prefixes of packages that would make virt-handler's program, and so its memory on each node, larger by
// half: the API server's library, its expression language, and what these are built from.
var large = []string{"k8s.io/apiserver/", "github.com/google/cel-go/", "go.opentelemetry.io/", "google.golang.org/grpc"}

// TestHandlerIsSmall checks that virt-handler is built from no package that it has no use for.
func TestHandlerIsSmall(t *testing.T) {
	for name := range strings.FieldsSeq(packages(t)) {
		for _, prefix := range large {
			if strings.HasPrefix(name, prefix) {
				t.Errorf("it is built from %s", name)
			}
		}
	}
}

// packages returns the packages from which virt-handler is built, one a line.
func packages(t *testing.T) string {
	t.Helper()
	list := exec.Command("go", "list", "-deps", ".")
	list.Stderr = os.Stderr
	output, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(output)
}

// TestHandlerHasNothingThatNeedsPrivileges checks that virt-handler is built from no package of virt-broker's, and from
// none with which it could change the node's network.
func TestHandlerHasNothingThatNeedsPrivileges(t *testing.T) {
	const broker = "github.com/vireo-project/vireo/internal/broker"
	for name := range strings.FieldsSeq(packages(t)) {
		if name == broker || strings.HasPrefix(name, broker+"/") ||
			strings.HasPrefix(name, "github.com/vishvananda/netlink") ||
			strings.HasPrefix(name, "github.com/google/nftables") || strings.HasPrefix(name, "k8s.io/kubelet/") {
			t.Errorf("it is built from %s", name)
		}
	}
}
