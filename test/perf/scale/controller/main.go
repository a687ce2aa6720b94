// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command controller runs virt-controller as cmd/virt-controller does, and serves Go's profiles of the process on the
// address of the environment variable VIREO_PPROF. The scale benchmark measures this process.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/vireo-project/vireo/cmd/virt-controller/manager"
	"github.com/vireo-project/vireo/internal/component/livelog"
	"github.com/vireo-project/vireo/internal/component/memorylimit"
)

func main() {
	options := &manager.Options{}
	options.BindFlags(flag.CommandLine)
	flag.Parse()
	if err := run(options); err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}

func run(options *manager.Options) error {
	log, err := livelog.New(options.Verbosity)
	if err != nil {
		return err
	}
	log.Install()
	if err := memorylimit.Apply(memorylimit.PureGo); err != nil {
		return err
	}
	if err := serveProfiles(os.Getenv("VIREO_PPROF")); err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	return manager.Run(ctrl.SetupSignalHandler(), config, options, log)
}

// serveProfiles serves the profiles until the process ends.
func serveProfiles(address string) error {
	if address == "" {
		return nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	return nil
}
