// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// retryInterval is the time between attempts while the instance does not run. KubeVirt's value.
const retryInterval = time.Second

// Dialer opens an instance's console and waits until the instance runs.
type Dialer struct {
	CLI     *cli.CLI
	API     *subresources.Client
	Objects client.Client
	VMI     subresources.Object
	// Timeout is how long to wait. 0 means a single attempt.
	Timeout time.Duration
}

// Dial opens the console. While it waits, it calls report with each new reason.
func (d Dialer) Dial(ctx context.Context, report func(string)) (*subresources.Stream, error) {
	deadline := time.Now().Add(d.Timeout)
	reported := ""
	for {
		stream, err := d.API.Stream(ctx, d.VMI, []string{"console"}, nil)
		if err == nil || ctx.Err() != nil {
			return stream, errors.Join(err, ctx.Err())
		}
		if final := d.permanent(ctx, err); final != nil {
			return nil, final
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("timeout trying to connect to the virtual machine instance: %w\nSee why it does not run: %s explain %s", err, d.CLI.Program, d.VMI.Name)
		}
		if reason := cli.Plain(err.Error()); reason != reported {
			reported = reason
			report(fmt.Sprintf("Waiting for %s: %s", d.VMI.Name, reason))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(retryInterval):
		}
	}
}

// permanent returns an error if the console cannot be opened even later, and nil otherwise.
func (d Dialer) permanent(ctx context.Context, err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	switch code := status.Status().Code; code {
	case http.StatusNotFound:
		return d.missing(ctx, err)
	case http.StatusBadRequest:
		if strings.Contains(strings.ToLower(err.Error()), "serial") {
			return err // The instance has no serial console.
		}
		return nil
	case http.StatusConflict, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests:
		return nil
	default:
		return err
	}
}

// missing returns an error unless the instance has a VM that is about to start it.
func (d Dialer) missing(ctx context.Context, notFound error) error {
	vm := &v1.VirtualMachine{}
	key := client.ObjectKey{Namespace: d.VMI.Namespace, Name: d.VMI.Name}
	if err := d.Objects.Get(ctx, key, vm); err != nil {
		return notFound
	}
	if vm.Status.PrintableStatus == v1.VirtualMachineStatusStopped {
		return fmt.Errorf("VM %s is stopped. Start it with: %s start %s", vm.Name, d.CLI.Program, vm.Name)
	}
	return nil
}
