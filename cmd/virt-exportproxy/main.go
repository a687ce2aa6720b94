// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virt-exportproxy forwards downloads from outside the cluster to the Pods of VirtualMachineExports.
package main

import (
	"flag"
	"fmt"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/vireo-project/vireo/cmd/virt-exportproxy/exportproxy"
	"github.com/vireo-project/vireo/internal/component/livelog"
	"github.com/vireo-project/vireo/internal/component/memorylimit"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "virt-exportproxy:", err)
		os.Exit(1)
	}
}

func run() error {
	options := &exportproxy.Options{}
	options.BindFlags(flag.CommandLine)
	flag.Parse()
	log, err := livelog.New(options.Verbosity)
	if err != nil {
		return fmt.Errorf("cannot start logging: %w", err)
	}
	log.Install()
	if err := memorylimit.Apply(memorylimit.PureGo); err != nil {
		return err
	}
	// controller-runtime adds --kubeconfig; in a Pod the service account is used.
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("cannot find the cluster: %w", err)
	}
	return exportproxy.Run(ctrl.SetupSignalHandler(), config, options, log)
}
