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
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/apiserver/agentclient"
)

// guestInfo returns information from the guest agent. The response is decoded to T and encoded again, so that a node cannot send
// anything else to the client.
func guestInfo[T any](a *API, verb string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		vmi, err := a.checkedVMI(r, checkGuestAgent)
		if err != nil {
			return err
		}
		agent, err := vmiRef(vmi)
		if err != nil {
			return err
		}
		info := new(T)
		warn := func(text string) {
			if header, err := utilnet.NewWarningHeader(299, "-", text); err == nil {
				w.Header().Add(agentapi.WarningHeader, header)
			}
		}
		if err := a.Agents.Get(r.Context(), agentclient.Request{VMIRef: agent, Verb: verb, Warn: warn}, info); err != nil {
			return err
		}
		writeObject(w, info)
		return nil
	}
}

func checkGuestAgent(vmi *v1.VirtualMachineInstance) error {
	switch {
	case !vmi.IsRunning():
		return vmiConflict(vmi, vmiNotRunning)
	case condition(vmi, v1.VirtualMachineInstanceAgentConnected) == nil:
		return vmiConflict(vmi, noGuestAgent)
	}
	return nil
}

const (
	// maxScreenshot bounds a screenshot, in bytes. An incompressible one of 8192 by 4096 pixels fits.
	maxScreenshot = 128 << 20
	// screenshotTimeout bounds the transfer of a screenshot. It is shorter than the server's request timeout.
	screenshotTimeout = 25 * time.Second
)

// pngSignature begins every PNG image. ISO/IEC 15948, 5.2.
var pngSignature = []byte("\x89PNG\r\n\x1a\n")

// screenshot copies a PNG image of the screen from the agent.
func (a *API) screenshot(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), screenshotTimeout)
	defer cancel()
	vmi, err := a.requireVMI(ctx, key(r))
	if err != nil {
		return err
	}
	if err := checkVNC(vmi); err != nil {
		return err
	}
	agent, err := vmiRef(vmi)
	if err != nil {
		return err
	}
	query := url.Values{}
	if move, err := flag(r, agentapi.MoveCursorParameter, false); err != nil {
		return err
	} else if move {
		query.Set(agentapi.MoveCursorParameter, "true")
	}
	image, err := a.Agents.Open(ctx, agentclient.Request{VMIRef: agent, Verb: agentapi.Screenshot, Query: query})
	if err != nil {
		return err
	}
	defer func() { _ = image.Close() }()
	start := make([]byte, len(pngSignature))
	if _, err := io.ReadFull(image, start); err != nil || !bytes.Equal(start, pngSignature) {
		return apierrors.NewInternalError(errors.New("failed to retrieve the VNC screen: the node agent sent no PNG image"))
	}
	w.Header().Set("Content-Type", "image/png")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, err = io.Copy(w, io.MultiReader(bytes.NewReader(start), io.LimitReader(image, maxScreenshot)))
	if err != nil {
		panic(http.ErrAbortHandler) // too late for a Status: abort the connection, so that the client notices the truncation
	}
	return nil
}

// flag returns a boolean query parameter, or defaultValue if it is not set.
func flag(r *http.Request, name string, defaultValue bool) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return defaultValue, nil
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
