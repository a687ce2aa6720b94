// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virt-controller runs all reconcilers and webhooks. With a command of package installation as its first
// argument, it creates or deletes the KubeVirt object instead, and exits.
package main

import (
	"flag"
	"fmt"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/vireo-project/vireo/cmd/virt-controller/installation"
	"github.com/vireo-project/vireo/cmd/virt-controller/manager"
	"github.com/vireo-project/vireo/internal/component/livelog"
	"github.com/vireo-project/vireo/internal/component/memorylimit"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "virt-controller:", err)
		os.Exit(1)
	}
}

func run() error {
	if arguments := os.Args[1:]; installation.IsCommand(arguments) {
		config, err := ctrl.GetConfig()
		if err != nil {
			return fmt.Errorf("cannot find the cluster: %w", err)
		}
		return installation.Run(ctrl.SetupSignalHandler(), config, arguments)
	}
	options := &manager.Options{}
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
	return manager.Run(ctrl.SetupSignalHandler(), config, options, log)
}
