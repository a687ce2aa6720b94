// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"io"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/libvirtwire"
)

// Screenshot calls a function with an image of the guest's screen and its MIME type. The stream comes from the launcher: it may
// not be an image, and it may not end.
func (c *Conn) Screenshot(ctx context.Context, domain string, take func(mime string, image io.Reader) error) error {
	return c.within(ctx, queryTimeout, domain, "take a screenshot", func(ctx context.Context, client *libvirtwire.Client, d libvirtwire.Domain) error {
		stream, mime, err := client.Screenshot(ctx, d)
		if err != nil {
			return err
		}
		// This closes the connection to a launcher that sends too slowly.
		stop := context.AfterFunc(ctx, client.Close)
		defer stop()
		return take(hypervisor.Clean(mime), stream)
	})
}
