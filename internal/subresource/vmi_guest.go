// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/subresource/agent"
)

// guestInfo asks the agent in the guest. The answer is decoded and encoded again: it is of this type, whatever a node says.
func guestInfo[T any](a *API, verb string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		vmi, err := a.vmiThat(r, mayAskGuest)
		if err != nil {
			return err
		}
		where, err := target(vmi)
		if err != nil {
			return err
		}
		answer := new(T)
		if err := a.Agents.Get(r.Context(), agent.Request{Target: where, Verb: verb}, answer); err != nil {
			return err
		}
		writeObject(w, answer)
		return nil
	}
}

func mayAskGuest(vmi *v1.VirtualMachineInstance) error {
	switch {
	case !vmi.IsRunning():
		return vmiConflict(vmi, vmiNotRunning)
	case condition(vmi, v1.VirtualMachineInstanceAgentConnected) == nil:
		return vmiConflict(vmi, noGuestAgent)
	}
	return nil
}

const (
	// maxScreenshot bounds a picture: one of a screen of 8192 by 4096 points that does not compress fits.
	maxScreenshot = 128 << 20
	// screenshotTimeout bounds its transfer. The server's limit for requests is somewhat longer.
	screenshotTimeout = 25 * time.Second
)

// pngSignature begins every PNG image. ISO/IEC 15948, 5.2.
var pngSignature = []byte("\x89PNG\r\n\x1a\n")

// screenshot passes a picture of the screen on, piece by piece.
func (a *API) screenshot(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), screenshotTimeout)
	defer cancel()
	vmi, err := a.requireVMI(ctx, key(r))
	if err != nil {
		return err
	}
	if err := mayVNC(vmi); err != nil {
		return err
	}
	where, err := target(vmi)
	if err != nil {
		return err
	}
	query := url.Values{}
	if move, err := flag(r, agentapi.MoveCursorParameter, false); err != nil {
		return err
	} else if move {
		query.Set(agentapi.MoveCursorParameter, "true")
	}
	picture, err := a.Agents.Open(ctx, agent.Request{Target: where, Verb: agentapi.Screenshot, Query: query})
	if err != nil {
		return err
	}
	defer func() { _ = picture.Close() }()
	start := make([]byte, len(pngSignature))
	if _, err := io.ReadFull(picture, start); err != nil || !bytes.Equal(start, pngSignature) {
		return apierrors.NewInternalError(errors.New("failed to retrieve the VNC screen: the node agent sent no PNG image"))
	}
	w.Header().Set("Content-Type", "image/png")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, err = io.Copy(w, io.MultiReader(bytes.NewReader(start), io.LimitReader(picture, maxScreenshot)))
	if err != nil {
		panic(http.ErrAbortHandler) // too late for a Status: the client must not take half a picture for a whole
	}
	return nil
}

// flag reads a parameter that is true or false.
func flag(r *http.Request, name string, otherwise bool) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, apierrors.NewBadRequest(fmt.Sprintf("%s: %q is neither true nor false", name, text))
	}
	return value, nil
}

func writeObject(w http.ResponseWriter, object any) {
	responsewriters.WriteRawJSON(http.StatusOK, object, w)
}
