// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/vireo-project/vireo/internal/exporter/content"
)

// Media types and annotations of an image with a VM. KubeVirt's.
const (
	vmArtifact       = "application/vnd.kubevirt.virtualmachine.v1"
	vmConfigType     = "application/vnd.kubevirt.virtualmachine.config.v1+json"
	diskType         = "application/vnd.kubevirt.disk.raw+zstd"
	diskNameLabel    = "io.kubevirt.disk.name"
	diskSizeLabel    = "io.kubevirt.disk.size"
	imageSystem      = "linux"
	imageFile        = "export.oci.tar"
	imageNotReady    = "OCI export not ready"
	digestsNotReady  = "OCI digest computation in progress"
	digestsNotKnown  = "the digests of the disks could not be computed: the log of the exporter's Pod has the reason, and it tries again"
	diskHasChanged   = "the disk has changed since its digest was computed"
	imageUnavailable = "the export is not available as an OCI image: it has no manifest of a VM, or the feature gate OCIExport is off"
)

// What the OCI image specification names, and its library does not.
const (
	layoutContent = `{"imageLayoutVersion":"` + oci.ImageLayoutVersion + `"}`
	blobDirectory = oci.ImageBlobsDir + "/sha256/"
	schemaVersion = 2
)

// firstRetry is how long after a failure a disk is read again for its digest. The delay doubles up to lastRetry.
const (
	firstRetry = 15 * time.Second
	lastRetry  = 10 * time.Minute
)

// image serves a VM and its disks as the layout of an OCI image in a tar archive. A blob's name is its digest and
// precedes it in the archive, so each disk is compressed once for its digest, and again for each download.
type image struct {
	names   []string
	disks   []disk
	created time.Time
	// retry is the delay after the first failure to read a disk.
	retry time.Duration
	// digests are what is known of the disks, or nil before the first attempt to read them has ended.
	digests atomic.Pointer[digests]
}

// digests are the layers of an image, or why there are none.
type digests struct {
	layers []oci.Descriptor
	err    error
}

func newImage() *image { return &image{created: time.Now().UTC(), retry: firstRetry} }

func (i *image) add(name string, d disk) {
	i.names, i.disks = append(i.names, name), append(i.disks, d)
}

// Prepare computes the digests for the OCI image, if there is to be one. It reads all disks. The server becomes ready
// when it has ended, or when a disk cannot be read, since the other formats may be served. A failure that may pass is
// then followed by further attempts.
func (s *Server) Prepare(ctx context.Context) {
	if s.image != nil {
		s.image.prepare(ctx, s.options.Log)
	}
}

func (i *image) prepare(ctx context.Context, log logr.Logger) {
	begin := time.Now()
	layers := make([]oci.Descriptor, 0, len(i.disks))
	for n, delay := 0, i.retry; n < len(i.disks); {
		start := time.Now()
		log := log.WithValues("volume", i.names[n], "disk", n+1, "disks", len(i.disks))
		layer, err := i.layer(ctx, n)
		if err == nil {
			log.Info("Computed the digest of a disk", "duration", time.Since(start).String())
			layers, delay = append(layers, layer), i.retry
			n++
			continue
		}
		i.digests.Store(&digests{err: inVolume(i.names[n], err)})
		var known *problem
		if errors.As(err, &known) || ctx.Err() != nil {
			log.Info("There is no OCI image", "error", err.Error())
			return
		}
		log.Info("There is no OCI image yet, because a disk cannot be read", "error", err.Error(),
			"retryAfter", delay.String())
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
		delay = min(2*delay, lastRetry)
	}
	i.digests.Store(&digests{layers: layers})
	log.Info("Computed the digests of the OCI image", "duration", time.Since(begin).String())
}

// layer computes the digest of a disk.
func (i *image) layer(ctx context.Context, n int) (oci.Descriptor, error) {
	out := newSummed(io.Discard)
	size, err := compress(ctx, out, i.disks[n])
	if err != nil {
		return oci.Descriptor{}, err
	}
	return oci.Descriptor{
		MediaType: diskType, Digest: out.digest(), Size: out.size,
		Annotations: map[string]string{
			diskNameLabel: i.names[n], diskSizeLabel: resource.NewQuantity(size, resource.BinarySI).String(),
			oci.AnnotationTitle: i.names[n] + ".raw.zst",
		},
	}, nil
}

// inVolume adds the name of a volume to the error of reading it.
func inVolume(name string, err error) error {
	var known *problem
	if errors.As(err, &known) {
		return &problem{known.code, fmt.Sprintf("volume %s: %s", name, known.text)}
	}
	return fmt.Errorf("volume %s: %w", name, err)
}

// ready responds to the readiness probe. As in KubeVirt, an exporter is not ready before the digests are known.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if s.image != nil && s.image.digests.Load() == nil {
		http.Error(w, digestsNotReady, http.StatusServiceUnavailable)
		return
	}
	if s.pull != nil && !s.pull.sessions.hasConnected() {
		http.Error(w, errNotConnected.text, errNotConnected.code)
		return
	}
	_, _ = w.Write([]byte("OK"))
}

// serveImage serves the image. Its layers are those of the start, and the VM is that of now.
func (s *Server) serveImage(w http.ResponseWriter, r *http.Request) error {
	exported, err := s.options.Content()
	if err != nil {
		return err
	}
	if !exported.OCI || s.image == nil {
		return &problem{http.StatusNotFound, imageUnavailable}
	}
	var known *problem
	of := s.image.digests.Load()
	switch {
	case of == nil:
		return &problem{http.StatusServiceUnavailable, imageNotReady}
	case errors.As(of.err, &known):
		return known
	case of.err != nil:
		return &problem{http.StatusInternalServerError, digestsNotKnown}
	}
	blobs, err := s.image.blobs(exported, of.layers)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-tar")
	w.Header().Set("Content-Disposition", `attachment; filename="`+imageFile+`"`)
	w.Header().Set("Content-Length", strconv.FormatInt(size(blobs, of.layers), 10))
	if r.Method == http.MethodHead {
		return nil
	}
	return s.image.write(r.Context(), w, blobs, of.layers)
}

// blob is a small file of the archive.
type blob struct {
	name string
	data []byte
}

// blobs returns all files of the archive except the disks.
func (i *image) blobs(exported *content.Content, layers []oci.Descriptor) ([]blob, error) {
	config, architecture, err := exported.ImageConfig()
	if err != nil {
		return nil, err
	}
	manifest := oci.Manifest{
		Versioned: specs.Versioned{SchemaVersion: schemaVersion}, MediaType: oci.MediaTypeImageManifest,
		ArtifactType: vmArtifact, Config: describe(vmConfigType, config), Layers: layers,
	}
	rawManifest, err := json.Marshal(manifest)
	if err != nil {
		return nil, fmt.Errorf("write the manifest of the image: %w", err)
	}
	described := describe(oci.MediaTypeImageManifest, rawManifest)
	described.Platform = &oci.Platform{Architecture: architecture, OS: imageSystem}
	rawIndex, err := json.Marshal(oci.Index{
		Versioned: specs.Versioned{SchemaVersion: schemaVersion}, MediaType: oci.MediaTypeImageIndex,
		ArtifactType: vmArtifact, Manifests: []oci.Descriptor{described},
		Annotations: map[string]string{oci.AnnotationCreated: i.created.Format(time.RFC3339)},
	})
	if err != nil {
		return nil, fmt.Errorf("write the index of the image: %w", err)
	}
	return []blob{
		{oci.ImageLayoutFile, []byte(layoutContent)}, {oci.ImageIndexFile, rawIndex},
		{blobName(described.Digest), rawManifest}, {blobName(manifest.Config.Digest), config},
	}, nil
}

func describe(mediaType string, data []byte) oci.Descriptor {
	return oci.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}

func blobName(d digest.Digest) string { return blobDirectory + d.Encoded() }

// size returns the size of the archive. In GNU's format, a file of any size has one block as header. Files are padded
// to whole blocks, and two blocks are the end.
func size(blobs []blob, layers []oci.Descriptor) int64 {
	const block = 512
	total := int64(2 * block)
	add := func(size int64) { total += block + (size+block-1)/block*block }
	for _, b := range blobs {
		add(int64(len(b.data)))
	}
	for n, layer := range layers {
		if !repeats(layers, n) {
			add(layer.Size)
		}
	}
	return total
}

// repeats reports whether a layer before this one has the same content, such as that of another empty disk. The archive
// has it once.
func repeats(layers []oci.Descriptor, n int) bool {
	for _, before := range layers[:n] {
		if before.Digest == layers[n].Digest {
			return true
		}
	}
	return false
}

func (i *image) write(ctx context.Context, to io.Writer, blobs []blob, layers []oci.Descriptor) error {
	out := tar.NewWriter(to)
	header := func(name string, size int64) error {
		return out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, Format: tar.FormatGNU})
	}
	for _, b := range blobs {
		if err := header(b.name, int64(len(b.data))); err != nil {
			return err
		}
		if _, err := out.Write(b.data); err != nil {
			return err
		}
	}
	for n, layer := range layers {
		if repeats(layers, n) {
			continue
		}
		if err := header(blobName(layer.Digest), layer.Size); err != nil {
			return inVolume(i.names[n], err)
		}
		sum := newSummed(out)
		_, err := compress(ctx, sum, i.disks[n])
		if err == nil && sum.digest() != layer.Digest {
			err = errors.New(diskHasChanged)
		}
		if err != nil {
			return inVolume(i.names[n], err)
		}
	}
	return out.Close()
}

// compress writes the compressed disk, and returns the size of the disk. The result depends on nothing but the disk.
func compress(ctx context.Context, to io.Writer, d disk) (int64, error) {
	file, size, _, _, err := d.open()
	if err != nil {
		return 0, err
	}
	defer closeAll(file)
	// More goroutines would need more memory, and the exporter has one CPU.
	out, err := zstd.NewWriter(to, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return 0, err
	}
	if err := copyExactly(out, contextReader{ctx, file}, size); err != nil {
		_ = out.Close() // Otherwise its memory stays in use. What it writes is not complete.
		return 0, err
	}
	return size, out.Close()
}

// contextReader fails when its context ends.
type contextReader struct {
	ctx context.Context // that of one copy
	io.Reader
}

// Read implements io.Reader.
func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.Reader.Read(p)
}

// summed counts what is written, and computes its digest.
type summed struct {
	to   io.Writer
	sum  hash.Hash
	size int64
}

func newSummed(to io.Writer) *summed { return &summed{to: to, sum: sha256.New()} }

// Write implements io.Writer.
func (s *summed) Write(p []byte) (int, error) {
	n, err := s.to.Write(p)
	_, _ = s.sum.Write(p[:n])
	s.size += int64(n)
	return n, err
}

func (s *summed) digest() digest.Digest { return digest.NewDigest(digest.SHA256, s.sum) }
