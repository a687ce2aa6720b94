// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// settle is what is to be done while the guest stands still, before it can be the target's: the machine's state that lasts goes to
// another claim, which must have all of it by then (docs/adr/0033).
func (c *Copies) settle(begun *Copy, m Migration) func(context.Context) error {
	if !vmistatus.MovesState(begun.vmi.Status.MigrationState) {
		return nil
	}
	return func(ctx context.Context) error {
		var nvram []byte
		if begun.vmi.Spec.HasPersistentEFI() {
			var err error
			if nvram, err = begun.machine.ReadNVRAM(ctx, launcherpod.NVRAMStateFile(begun.vmi.Name)); err != nil {
				return err
			}
		}
		if err := c.peers.KeepState(ctx, m, nvram); err != nil {
			return fmt.Errorf("move the TPM's and EFI's state: %w", err)
		}
		return nil
	}
}

// KeepState sends the target's agent the guest's EFI variables, none if they do not last. When it returns without an error, all of the
// machine's state is on the target's claim.
func (c *Client) KeepState(ctx context.Context, m Migration, nvram []byte) error {
	_, err := c.send(ctx, http.MethodPut, m, stateRequest, nvram)
	return err
}

// keepState takes in the state of the machine of a guest that is complete but for the last word.
func (s *Server) keepState(w http.ResponseWriter, r *http.Request, asked request) error {
	nvram, err := io.ReadAll(http.MaxBytesReader(w, r.Body, hypervisor.MaxNVRAM))
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("read the EFI variables: %v", err))
	}
	files, err := stateFiles(asked.arrival.Domain)
	if err != nil {
		return err
	}
	if (files.NVRAM != "") != (len(nvram) > 0) {
		return apierrors.NewBadRequest("either the guest has EFI variables that last, or it has none")
	}
	launcher, err := s.Open(asked.arrival.Pod)
	if err != nil {
		return err
	}
	if err := launcher.KeepState(r.Context(), files, nvram); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// stateFiles are where a domain has what lasts.
func stateFiles(text string) (hypervisor.StateFiles, error) {
	var files hypervisor.StateFiles
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(text); err != nil {
		return files, fmt.Errorf("read the domain that was prepared: %w", err)
	}
	if d.OS != nil && d.OS.NVRam != nil && lasts(d.OS.NVRam.NVRam) {
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
		if dir := backend.Emulator.Source.Dir.Path; lasts(dir) {
			files.TPM = dir
		}
	}
	return files, nil
}

func lasts(path string) bool { return strings.HasPrefix(path, launcherpod.StateDir+"/") }
