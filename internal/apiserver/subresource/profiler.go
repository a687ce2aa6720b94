// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// profilerVerbs returns the verbs of the cluster profiler.
func (a *API) profilerVerbs() []Verb {
	return []Verb{
		{
			Name: "start-cluster-profiler", Method: http.MethodGet,
			Doc: "Start CPU profiles of all components.", Serve: a.profiler("start profiler",
				func(ctx context.Context) error { return a.Profiles.Start(ctx) }),
		},
		{
			Name: "stop-cluster-profiler", Method: http.MethodGet,
			Doc: "Stop the CPU profiles.", Serve: a.profiler("stop profiler",
				func(ctx context.Context) error { return a.Profiles.Stop(ctx) }),
		},
		{
			// The client sends a body with a GET request, which OpenAPI cannot describe.
			Name: "dump-cluster-profiler", Method: http.MethodGet, Response: &v1.ClusterProfilerResults{},
			Doc: "Get a page of the profiles of components.", Serve: a.dumpProfiles,
		},
	}
}

// profiler returns the handler of a verb without a response body.
func (a *API) profiler(what string, do func(context.Context) error) func(http.ResponseWriter, *http.Request) error {
	return func(_ http.ResponseWriter, r *http.Request) error {
		if err := a.profilerEnabled(what); err != nil {
			return err
		}
		return profilerError(do(r.Context()))
	}
}

func (a *API) dumpProfiles(w http.ResponseWriter, r *http.Request) error {
	if err := a.profilerEnabled("dump profiler results"); err != nil {
		return err
	}
	request := v1.ClusterProfilerRequest{}
	if err := decode(r, &request); err != nil {
		return err
	}
	return profilerError(a.Profiles.Dump(r.Context(), request, func(results *v1.ClusterProfilerResults) {
		if len(results.ComponentResults) == 0 {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(results) // an error means that the client is gone
	}))
}

// profilerEnabled returns KubeVirt's error unless the configuration enables the profiler.
func (a *API) profilerEnabled(what string) error {
	if a.Config().ClusterProfiler {
		return nil
	}
	return profilerStatus(http.StatusForbidden, metav1.StatusReasonForbidden,
		"Unable to "+what+`. "ClusterProfiler" feature gate must be enabled`)
}

// profilerError wraps an error in KubeVirt's message, unless it is a Status.
func profilerError(err error) error {
	var status apierrors.APIStatus
	if err == nil || errors.As(err, &status) {
		return err
	}
	return profilerStatus(http.StatusInternalServerError, metav1.StatusReasonInternalError,
		"Internal error encountered: "+err.Error())
}

func profilerStatus(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code,
		Reason: reason, Message: message}}
}
