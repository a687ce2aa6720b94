// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
)

// PodSecrets reads the Secret volumes of a Pod where the kubelet put them on the node, so that the agent needs no
// right to read Secrets.
type PodSecrets struct {
	// PodsDir is the kubelet's directory of Pods.
	PodsDir string
	// Pod is the launcher Pod's UID.
	Pod types.UID
}

// Secret returns the first of the keys that the Pod volume has.
func (s PodSecrets) Secret(volume string, keys ...string) ([]byte, error) {
	// The kubelet's files are symlinks within the volume; an os.Root follows those and no other.
	// Source: kubernetes pkg/volume/util/atomic_writer.go
	root, err := os.OpenRoot(filepath.Join(s.PodsDir, string(s.Pod), "volumes", "kubernetes.io~secret", volume))
	if errors.Is(err, fs.ErrNotExist) {
		// Not fs.ErrNotExist: the volume is missing, which is not the Secret's fault.
		return nil, fmt.Errorf("the launcher Pod has no Secret volume %q: %s", volume, err.Error())
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	for _, key := range keys {
		data, err := readCapped(root, key)
		if !errors.Is(err, fs.ErrNotExist) {
			return data, err
		}
	}
	return nil, fs.ErrNotExist
}

func readCapped(root *os.Root, name string) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	// One byte more than allowed shows that there is too much.
	return io.ReadAll(io.LimitReader(f, maxCloudInit+1))
}
