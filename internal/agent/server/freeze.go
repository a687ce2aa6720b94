// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// defaultUnfreeze is the time after which a guest is thawed if the request has none. Source: KubeVirt's
// staging/src/kubevirt.io/client-go; its snapshots use the same.
const defaultUnfreeze = 5 * time.Minute

// freeze stops writes to the guest's file systems. They resume after a timeout, so that a client that dies does not leave the
// guest frozen. A timeout of zero means until unfreeze, as in KubeVirt.
func freeze(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	options := &v1.FreezeUnfreezeTimeout{}
	if err := json.NewDecoder(r.Body).Decode(options); err != nil && !errors.Is(err, io.EOF) {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return err
		}
		return apierrors.NewBadRequest("the body is no FreezeUnfreezeTimeout: " + err.Error())
	}
	limit := defaultUnfreeze
	if options.UnfreezeTimeout != nil {
		limit = options.UnfreezeTimeout.Duration
	}
	if limit < 0 {
		return apierrors.NewBadRequest("unfreezeTimeout is negative: give 0s for a freeze that lasts until unfreeze, or how long it may last")
	}
	if err := v.conn.Freeze(r.Context(), v.domain, limit); err != nil {
		return commandFailed("Freeze", err)
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// unfreeze ends a freeze.
func unfreeze(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	if err := v.conn.Thaw(r.Context(), v.domain); err != nil {
		return commandFailed("Unfreeze", err)
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// commandFailed returns an error of the guest agent with the words of KubeVirt's (pkg/virt-handler/cmd-client), which clients search for.
func commandFailed(command string, err error) error {
	if !errors.Is(err, hypervisor.ErrGuestSilent) && !errors.Is(err, hypervisor.ErrGuestRefused) {
		return err
	}
	return apierrors.NewInternalError(fmt.Errorf("command %s failed: %s", command, hypervisor.CleanLine(err.Error(), maxErrorText)))
}
