// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virt-handler is the node agent: it controls libvirt of each VM on its node, plans the VMs' networks, reports
// their state and what guests the node can run. For what needs a privilege on the node, it calls virt-broker.
package main

import (
	"flag"
	"fmt"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/vireo-project/vireo/cmd/virt-handler/agent"
	"github.com/vireo-project/vireo/internal/component/livelog"
	"github.com/vireo-project/vireo/internal/component/memorylimit"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "virt-handler:", err)
		os.Exit(1)
	}
}

func run() error {
	options := &agent.Options{}
	options.BindFlags(flag.CommandLine)
	flag.Parse()
	log, err := livelog.New(options.Verbosity)
	if err != nil {
		return fmt.Errorf("cannot make the log: %w", err)
	}
	log.Install()
	if err := memorylimit.Apply(memorylimit.WithLibvirt); err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("cannot find the API server: %w", err)
	}
	return agent.Run(ctrl.SetupSignalHandler(), config, options, log)
}
