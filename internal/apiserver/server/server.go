// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package server serves the verbs of subresources.kubevirt.io with the authentication, authorization and limits of a Kubernetes
// API server, and what the aggregation layer needs: discovery, OpenAPI and health.
package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/apiserver/subresource"
	"github.com/vireo-project/vireo/internal/component/metrics"
)

// Server is virt-api.
type Server struct {
	generic  *apiserver.GenericAPIServer
	frontend *frontend
	drain    *drain
}

// New returns a server of verbs. The channel stopping is closed when streams have to end, StreamDrain after shutdown has started, so
// that they can send a close frame.
func New(o Options, verbs func(stopping <-chan struct{}) []subresource.Verb) (*Server, error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	// The configuration uses only the names of verbs, and not their handlers.
	config, err := o.config(verbs(nil))
	if err != nil {
		return nil, err
	}
	generic, err := config.Complete(nil).New("virt-api", apiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("cannot make the API server: %w", err)
	}
	streams := newDrain(o.Clock)
	handler, err := routes(verbs(streams.cut), streams)
	if err != nil {
		return nil, err
	}
	served, err := metricsHandler(config.ShutdownInitiatedNotify())
	if err != nil {
		return nil, err
	}
	generic.Handler.NonGoRestfulMux.Handle(metrics.Path, served)
	for _, root := range []string{"/apis", "/openapi"} {
		generic.Handler.NonGoRestfulMux.Handle(root, handler)
		generic.Handler.NonGoRestfulMux.HandlePrefix(root+"/", handler)
	}
	return &Server{generic: generic, frontend: newFrontend(generic, o.RestrictTLS), drain: streams}, nil
}

// Run serves until the context ends, and returns when all requests and streams have finished. It first reports that it is not
// ready, then serves until clients have had the time to notice, and then accepts no more connections.
func (s *Server) Run(ctx context.Context) error {
	defer s.drain.limit(ctx)()
	defer s.drain.wait(ctx)
	defer s.frontend.wait()
	return s.generic.PrepareRun().RunWithContext(ctx)
}

// CutStreams ends the open streams, and those that are opened later, so that Run does not wait for them.
func (s *Server) CutStreams() { s.drain.end() }

// routes returns the handler of all paths.
func routes(verbs []subresource.Verb, streams *drain) (http.Handler, error) {
	mux := http.NewServeMux()
	if err := addDiscovery(mux, verbs); err != nil {
		return nil, err
	}
	if err := addOpenAPI(mux, verbs); err != nil {
		return nil, err
	}
	limiter := newConcurrencyLimiter(maxMutatingInFlight)
	for _, version := range subresource.Versions {
		for _, v := range verbs {
			mux.HandleFunc(v.Method+" "+v.Path(version), serve(v, limiter, streams))
		}
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, groupResource, "",
			"there is no "+r.Method+" "+r.URL.Path+" in "+subresource.GroupName, 0, false))
	})
	return mux, nil
}

func serve(v subresource.Verb, limiter *concurrencyLimiter, streams *drain) http.HandlerFunc {
	do := limiter.limit(v.Serve)
	if v.Streams {
		do = streams.count(v.Serve)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
		err := checkPath(r)
		if err == nil {
			err = do(w, r)
		}
		if err != nil {
			writeError(w, err)
			log.FromContext(r.Context()).V(1).Info("Refused", "verb", v.RBACName(), "path", r.URL.Path, "reason", err.Error())
		}
	}
}

// checkPath rejects a path with an escaped slash in a name. For net/http the slash is a part of the name; for the Kubernetes
// library, which authorized the request, it ends the name: the request was authorized for another object and another subresource.
func checkPath(r *http.Request) error {
	for _, parameter := range []string{"namespace", "name"} {
		if value := r.PathValue(parameter); len(content.IsPathSegmentName(value)) > 0 {
			return apierrors.NewBadRequest(fmt.Sprintf("the %s %q in the path is not that of an object", parameter, value))
		}
	}
	return nil
}

// writeError writes the Status of an error. An error without a Status becomes an internal error.
func writeError(w http.ResponseWriter, err error) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	body := status.Status()
	if body.Details != nil && body.Details.RetryAfterSeconds > 0 {
		// Kubernetes' clients retry only if the header is set.
		w.Header().Set("Retry-After", strconv.Itoa(int(body.Details.RetryAfterSeconds)))
	}
	body.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	writeJSON(w, int(body.Code), &body)
}
