// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"context"
	"log/slog"

	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Registration is the service from which a kubelet learns the address of the node's service. Kubelets watch a directory
// for its socket.
type Registration struct {
	registration.UnimplementedRegistrationServer

	// Socket is the path of the node's service.
	Socket string
	Log    *slog.Logger
}

// GetInfo returns the driver's name and socket.
func (r *Registration) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: Name, Endpoint: r.Socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus logs whether the kubelet accepts the driver. The kubelet itself retries.
func (r *Registration) NotifyRegistrationStatus(
	ctx context.Context, s *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	if s.GetPluginRegistered() {
		r.Log.InfoContext(ctx, "registered with the kubelet")
	} else {
		r.Log.ErrorContext(ctx, "the kubelet refused the driver", "error", s.GetError())
	}
	return &registration.RegistrationStatusResponse{}, nil
}
