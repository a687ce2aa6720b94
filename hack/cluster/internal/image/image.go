// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package image writes images of one layer as docker-archives, which containerd imports.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
)

// Pause is the reference of the sandbox image.
const Pause = "localhost/vireo/pause:local"

// WriteStatic writes an image that contains one program at /<name> and runs it.
// The same program results in the same bytes.
func WriteStatic(to io.Writer, reference, name string, program []byte) error {
	layer, err := archive(file{name, 0o755, program})
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": []string{"/" + name}, "WorkingDir": "/"},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	if err != nil {
		return fmt.Errorf("encode the image's configuration: %w", err)
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": []string{reference}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return fmt.Errorf("encode the image's manifest: %w", err)
	}
	image, err := archive(file{"config.json", 0o644, config}, file{"layer.tar", 0o644, layer},
		file{"manifest.json", 0o644, manifest})
	if err != nil {
		return err
	}
	if _, err := to.Write(image); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	return nil
}

type file struct {
	name    string
	mode    int64
	content []byte
}

func archive(files ...file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Typeflag: tar.TypeReg}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("archive %s: %w", f.name, err)
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, fmt.Errorf("archive %s: %w", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("close an archive: %w", err)
	}
	return out.Bytes(), nil
}

func digest(data []byte) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256(data))
}
