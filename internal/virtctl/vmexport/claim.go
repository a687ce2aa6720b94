// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmexport

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// ClaimDownload is a download of all of a claim.
type ClaimDownload struct {
	// Key is that of the export, which is created, and deleted after the download. Claim is the name of the claim.
	Key   client.ObjectKey
	Claim string
	// Output is the file to write, Format its format: gzip, which is the default, or raw.
	Output, Format string
	// PortForward downloads by way of the API server, with a local port, or any if it is 0.
	PortForward bool
	LocalPort   uint16
}

// DownloadClaim downloads a claim as the command does.
func DownloadClaim(ctx context.Context, c *cli.CLI, objects client.Client, d ClaimDownload) error {
	e := &export{cli: c, objects: objects, key: d.Key, options: options{
		pvc: d.Claim, output: d.Output, format: d.Format, portForward: d.PortForward, localPort: d.LocalPort, readiness: defaultReadiness,
	}}
	return e.download(ctx)
}
