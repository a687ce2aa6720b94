// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import "errors"

// Content reads the files that the kubelet wrote to the launcher Pod's volumes.
type Content interface {
	// Secret returns the value of the first key that a Secret's volume has. The error wraps fs.ErrNotExist if it has none of them.
	Secret(volume string, keys ...string) ([]byte, error)
	// Files returns all files of a volume by their path in it. The error wraps ErrTooMuch if they are too large.
	Files(kind VolumeKind, volume string) (map[string][]byte, error)
}

// VolumeKind is the kubelet's name of a kind of volume, and of the directory with a Pod's volumes of that kind.
type VolumeKind string

// Kinds of volumes with files. Sources: kubernetes pkg/volume/{configmap,secret,downwardapi,projected}.
const (
	ConfigMapVolume   VolumeKind = "kubernetes.io~configmap"
	SecretVolume      VolumeKind = "kubernetes.io~secret" //nolint:gosec // a path, no secret
	DownwardAPIVolume VolumeKind = "kubernetes.io~downward-api"
	ProjectedVolume   VolumeKind = "kubernetes.io~projected"
)

// ErrTooMuch means that the files of a volume exceed the limits of a medium.
var ErrTooMuch = errors.New("too much for a medium")

// maxFileBytes bounds the SSH keys on a medium, which may come from several Secrets.
const maxFileBytes = 2 << 20
