// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command coredns is CoreDNS with only the plugins in the local cluster's Corefile. With all plugins the build takes
// several times as long.
package main

import (
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() { coremain.Run() }
