// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command csi is the CSI driver of the local cluster. README.md describes it.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/vireo-project/vireo/hack/cluster/csi/internal/driver"
	"github.com/vireo-project/vireo/hack/cluster/csi/internal/pool"
)

type options struct {
	pool, socket, node, registration string
}

func main() {
	var o options
	flag.StringVar(&o.pool, "pool", "", "directory of the volumes")
	flag.StringVar(&o.socket, "socket", "", "socket to serve on")
	flag.StringVar(&o.node, "node", "", "serve the node of this name; without it, serve the controller")
	flag.StringVar(&o.registration, "registration", "", "socket in the kubelet's directory plugins_registry, for a node")
	flag.Parse()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, o, log); err != nil {
		log.ErrorContext(ctx, "the driver has ended", "error", err)
		cancel()
		os.Exit(1) //nolint:gocritic // cancel was called right before
	}
}

func run(ctx context.Context, o options, log *slog.Logger) error {
	if o.pool == "" || o.socket == "" || (o.node == "") != (o.registration == "") {
		return errors.New("-pool and -socket are required, and -node and -registration belong together")
	}
	p, err := pool.Open(o.pool)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	if o.node == "" {
		controller, err := driver.NewController(p)
		if err != nil {
			return err
		}
		return driver.Serve(ctx, o.socket, log, func(s grpc.ServiceRegistrar) {
			csi.RegisterIdentityServer(s, driver.Identity{})
			csi.RegisterControllerServer(s, controller)
			csi.RegisterGroupControllerServer(s, controller)
		})
	}
	node, err := driver.NewNode(p, o.node)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return driver.Serve(ctx, o.socket, log, func(s grpc.ServiceRegistrar) {
			csi.RegisterIdentityServer(s, driver.Identity{})
			csi.RegisterNodeServer(s, node)
		})
	})
	group.Go(func() error {
		return driver.Serve(ctx, o.registration, log, func(s grpc.ServiceRegistrar) {
			registration.RegisterRegistrationServer(s, &driver.Registration{Socket: o.socket, Log: log})
		})
	})
	return group.Wait()
}
