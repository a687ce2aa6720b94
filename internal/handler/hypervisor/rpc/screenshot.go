// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"io"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

// Screenshot gives an image of the guest's screen to a function, with its MIME type. The image comes from the launcher:
// nothing says that it is one, or that it ends.
func (c *Conn) Screenshot(ctx context.Context, domain string, take func(mime string, image io.Reader) error) error {
	return c.within(ctx, queryTimeout, domain, "take a screenshot", func(ctx context.Context, client *libvirtrpc.Client, d libvirtrpc.Domain) error {
		stream, mime, err := client.Screenshot(ctx, d)
		if err != nil {
			return err
		}
		// A launcher that sends slowly, or nothing, is cut off.
		stop := context.AfterFunc(ctx, client.Close)
		defer stop()
		return take(hypervisor.Clean(mime), stream)
	})
}
