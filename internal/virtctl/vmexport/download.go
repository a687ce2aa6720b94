// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmexport

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

const (
	// retryPause is the time between attempts. KubeVirt's.
	retryPause = 2 * time.Second
	// maxManifest is how many bytes of manifests are read.
	maxManifest = 16 << 20
	// maxErrorBody is how many bytes of an error response's body are shown.
	maxErrorBody = 4 << 10
	// progressInterval is the time between lines about the progress.
	progressInterval = 10 * time.Second
)

// temporary is an error after which a retry may succeed.
type temporary struct{ error }

// Unwrap implements errors.Unwrap.
func (t temporary) Unwrap() error { return t.error }

// download creates the export if the flags specify a source, downloads it, and deletes the export if it has created it.
// If the download fails, the export, whose lifetime is limited anyway, is kept for a retry. It is also kept for
// manifests, because CDI imports from it. As in KubeVirt, --delete-vme has no effect on manifests.
func (e *export) download(ctx context.Context) (err error) {
	created := false
	if e.source() != nil {
		err := e.create(ctx)
		if err != nil && !errors.Is(err, errExists) {
			return err
		}
		created = err == nil
	}
	defer func() {
		switch {
		case !e.manifest && (e.delete || created && !e.keep && err == nil):
			err = errors.Join(err, e.remove(context.WithoutCancel(ctx)))
		case created && err != nil:
			e.printf("VirtualMachineExport '%s' is kept, so that the download can be repeated", e.key)
		}
	}()
	vmExport, err := e.await(ctx)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		err = e.attempt(ctx, vmExport)
		if !errors.As(err, &temporary{}) || attempt >= e.retries {
			return err
		}
		e.printf("%v. Retrying...", err)
		if err := sleep(ctx, retryPause); err != nil {
			return err
		}
	}
}

// attempt downloads once.
func (e *export) attempt(ctx context.Context, vmExport *exportv1.VirtualMachineExport) error {
	server, err := e.server(ctx, vmExport)
	if err != nil {
		return err
	}
	defer server.close()
	if e.manifest {
		return e.manifests(ctx, server)
	}
	address, packed, err := e.address(vmExport, server.links)
	if err != nil {
		return err
	}
	response, err := server.get(ctx, address, nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	// The transport must not decompress the response, because the format of the file would then be unknown.
	var from io.Reader = &progress{from: response.Body, export: e, last: time.Now()}
	if packed && e.format == formatRaw {
		unpacked, err := gzip.NewReader(from)
		if err != nil {
			return temporary{fmt.Errorf("decompress the download: %w", err)}
		}
		e.printf("Decompressing image:")
		from = unpacked
	}
	if err := e.save(from); err != nil {
		return err
	}
	e.printf("Download finished succesfully") //nolint:misspell // KubeVirt's text
	return nil
}

// save writes a download. A file gets its name when it is complete. A write to anything else is not retried, because
// bytes that were written to a pipe cannot be taken back.
func (e *export) save(from io.Reader) error {
	if e.output == "-" {
		return final(io.Copy(e.cli.Out, from))
	}
	name := e.output + ".part"
	info, err := os.Stat(e.output)
	direct := err == nil && !info.Mode().IsRegular() // a device, or a pipe
	if direct {
		name = e.output
	}
	file, err := os.Create(name) //nolint:gosec // the user specifies the file
	if err != nil {
		return err
	}
	written, err := io.Copy(file, from)
	if direct {
		return errors.Join(final(written, err), file.Close())
	}
	err = errors.Join(readError(err), file.Close())
	if err == nil {
		return os.Rename(name, e.output)
	}
	_ = os.Remove(name)
	return err
}

// final returns the error of a download that was interrupted after some bytes were written, and that must not be
// retried.
func final(written int64, err error) error {
	err = readError(err)
	retry := temporary{}
	if written > 0 && errors.As(err, &retry) {
		return retry.error
	}
	return err
}

// readError returns the error of a download that was interrupted.
func readError(err error) error {
	var local *os.PathError
	if err == nil || errors.As(err, &local) {
		return err
	}
	return temporary{fmt.Errorf("the download was cut off: %w", err)}
}

// address returns the address of the image or the volume to download, and whether it is to be decompressed for the
// format raw.
func (e *export) address(
	vmExport *exportv1.VirtualMachineExport, links *exportv1.VirtualMachineExportLink,
) (address string, packed bool, err error) {
	if e.format != formatOCI {
		return e.volumeAddress(links)
	}
	if kind := vmExport.Spec.Source.Kind; kind != "VirtualMachine" && kind != "VirtualMachineSnapshot" {
		return "", false, fmt.Errorf("OCI export is not supported for %q sources", kind)
	}
	for _, m := range links.Manifests {
		if m.Type == exportv1.OCI {
			return m.Url, false, nil
		}
	}
	return "", false, fmt.Errorf("OCI export format not available for '%s'", e.key)
}

// volumeAddress returns the address of the volume to download, and whether it is compressed. As in KubeVirt, if an
// export has only one volume, it is downloaded regardless of its name. The claims that were created from a snapshot
// also have the names of the VM's.
func (e *export) volumeAddress(links *exportv1.VirtualMachineExportLink) (address string, packed bool, err error) {
	if len(links.Volumes) == 0 {
		return "", false, fmt.Errorf("unable to access the volume info from '%s' VirtualMachineExport", e.key)
	}
	if len(links.Volumes) > 1 && e.volume == "" {
		return "", false, fmt.Errorf("detected more than one downloadable volume in '%s' VirtualMachineExport: "+
			"Select the expected volume using the --volume flag", e.key)
	}
	wanted := e.volume
	if !slices.ContainsFunc(links.Volumes, func(v exportv1.VirtualMachineExportVolume) bool { return v.Name == wanted }) {
		wanted = e.key.Name + "-" + e.volume
	}
	for i := range links.Volumes {
		v := &links.Volumes[i]
		if len(links.Volumes) > 1 && v.Name != wanted {
			continue
		}
		for _, format := range v.Formats {
			switch format.Format {
			case exportv1.KubeVirtGz, exportv1.ArchiveGz:
				return format.Url, true, nil
			case exportv1.KubeVirtRaw:
				address = format.Url
			}
		}
	}
	if address == "" {
		return "", false, fmt.Errorf("unable to get a valid URL from '%s' VirtualMachineExport", e.key)
	}
	return address, false, nil
}

// manifests downloads the manifests.
func (e *export) manifests(ctx context.Context, server *server) error {
	accept := http.Header{"Accept": {"application/yaml"}}
	if e.manifestFormat == outputJSON {
		accept = http.Header{"Accept": {"application/json"}}
	}
	addresses := map[exportv1.ExportManifestType]string{}
	for _, m := range server.links.Manifests {
		addresses[m.Type] = m.Url
	}
	kinds := []exportv1.ExportManifestType{exportv1.AllManifests}
	if e.includeSecret {
		kinds = append(kinds, exportv1.AuthHeader)
	}
	var all bytes.Buffer
	for _, kind := range kinds {
		if err := e.manifestOf(ctx, server, addresses[kind], accept, &all); err != nil {
			return err
		}
	}
	if e.output == "" {
		e.output = "-"
	}
	return e.save(&all)
}

func (e *export) manifestOf(
	ctx context.Context, server *server, address string, accept http.Header, to io.Writer,
) error {
	if address == "" {
		return fmt.Errorf("unable to access the manifest info from '%s' VirtualMachineExport", e.key)
	}
	response, err := server.get(ctx, address, accept)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(to, io.LimitReader(response.Body, maxManifest))
	return readError(err)
}

// get requests an address with the token, which is never part of it.
func (s *server) get(ctx context.Context, address string, header http.Header) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	for key, values := range header {
		request.Header[key] = values
	}
	request.Header.Set(content.TokenHeader, s.token)
	response, err := s.http.Do(request)
	if err != nil {
		return nil, temporary{connectionError(err)}
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
	err = fmt.Errorf("bad status: %s: %s", response.Status, cli.Plain(string(text)))
	if response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusNotFound {
		return nil, err
	}
	return nil, temporary{err}
}

// progress periodically prints how much was downloaded.
type progress struct {
	from   io.Reader
	export *export
	sum    int64
	last   time.Time
}

// Read implements io.Reader.
func (p *progress) Read(into []byte) (int, error) {
	n, err := p.from.Read(into)
	p.sum += int64(n)
	if now := time.Now(); now.Sub(p.last) >= progressInterval {
		p.last = now
		p.export.printf("Downloading file: %d MiB", p.sum>>20)
	}
	return n, err
}
