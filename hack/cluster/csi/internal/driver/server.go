// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package driver is the CSI driver of the local cluster. A volume is one file of a pool: a Pod gets its loop device, or
// the XFS on it. One process is the controller, and each node has a process that mounts. All run on one machine, and
// share its devices and the pool.
package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// Name is the name of the driver, which storage classes and snapshot classes have.
	Name = "csi.vireo.local"
	// Version is reported to sidecars.
	Version = "1.0.0"
)

// Serve serves the services that register adds on a socket, until the context ends. It then cancels running calls and
// waits for them, so that nothing stays frozen.
func Serve(ctx context.Context, socket string, log *slog.Logger, register func(grpc.ServiceRegistrar)) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return fmt.Errorf("make the socket's directory: %w", err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a former socket: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(intercept(log)), grpc.WaitForHandlers(true))
	register(server)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve %s: %w", socket, err)
	}
	return nil
}

// intercept adds codes to errors, and logs them.
func intercept(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		response, err := handle(ctx, request)
		if err == nil {
			log.DebugContext(ctx, "call", "method", info.FullMethod)
			return response, nil
		}
		err = coded(err)
		log.ErrorContext(ctx, "call failed", "method", info.FullMethod, "code", status.Code(err).String(), "error", err)
		return nil, err
	}
}

// coded adds a code to an error that has none. Callers convert "not found" errors themselves with found, because they
// know what was searched.
func coded(err error) error {
	if _, hasCode := status.FromError(err); hasCode {
		return err
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EFBIG) {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}

// missing reports that a request lacks a field.
func missing(field string) error {
	return status.Errorf(codes.InvalidArgument, "%s is missing", field)
}

// found adds the code that the specification requires to an error of a search that found nothing.
func found(err error, kind, id string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return status.Errorf(codes.NotFound, "there is no %s %q", kind, id)
	}
	return err
}
