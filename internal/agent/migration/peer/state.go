// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package peer

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// KeepState sends the guest's EFI variables, or none if they are not persistent. Without an error, all of the guest's persistent state
// is on the target's claim.
func (c *Client) KeepState(ctx context.Context, a Attempt, nvram []byte) error {
	_, err := c.send(ctx, http.MethodPut, a, stateRequest, nvram)
	return err
}

// keepState stores the persistent state of a guest that is transferred but not complete yet.
func (s *Server) keepState(w http.ResponseWriter, r *http.Request, req request) error {
	nvram, err := io.ReadAll(http.MaxBytesReader(w, r.Body, hypervisor.MaxNVRAM))
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("read the EFI variables: %v", err))
	}
	files, err := stateFiles(req.target.Domain)
	if err != nil {
		return err
	}
	if (files.NVRAM != "") != (len(nvram) > 0) {
		return apierrors.NewBadRequest("the domain and the request differ in whether the EFI variables are persistent")
	}
	launcher, err := s.Open(req.target.Pod)
	if err != nil {
		return err
	}
	if err := launcher.KeepState(r.Context(), files, nvram); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// stateFiles returns the paths of a domain's persistent state.
func stateFiles(text string) (hypervisor.StateFiles, error) {
	var files hypervisor.StateFiles
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(text); err != nil {
		return files, fmt.Errorf("read the domain that was prepared: %w", err)
	}
	if d.OS != nil && d.OS.NVRam != nil && isPersistent(d.OS.NVRam.NVRam) {
		files.NVRAM = d.OS.NVRam.NVRam
	}
	if d.Devices == nil {
		return files, nil
	}
	for i := range d.Devices.TPMs {
		backend := d.Devices.TPMs[i].Backend
		if backend == nil || backend.Emulator == nil || backend.Emulator.Source == nil || backend.Emulator.Source.Dir == nil {
			continue
		}
		if dir := backend.Emulator.Source.Dir.Path; isPersistent(dir) {
			files.TPM = dir
		}
	}
	return files, nil
}

func isPersistent(path string) bool { return strings.HasPrefix(path, launcherpod.StateDir+"/") }
