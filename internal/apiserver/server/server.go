// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package server serves the verbs of subresources.kubevirt.io with the authentication, authorization and limits of a
// Kubernetes API server, and what the aggregation layer needs: discovery, OpenAPI and health.
package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	apiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/apiserver/stream"
	"github.com/vireo-project/vireo/internal/apiserver/subresource"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/limits"
)

// Server is virt-api.
type Server struct {
	generic  *apiserver.GenericAPIServer
	frontend *frontend
	drain    *drain
}

// New returns a server of verbs. The channel stopping is closed when streams have to end, StreamDrain after shutdown
// has started, so that they can send a close frame.
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

// Run serves until the context ends, and returns when all requests and streams have finished. It first reports that it
// is not ready, then serves until clients have had the time to notice, and then accepts no more connections.
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

// checkPath rejects a path with an escaped slash in a name. For net/http the slash is a part of the name; for the
// Kubernetes library, which authorized the request, it ends the name: the request was authorized for another object and
// another subresource.
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

// retryAfter is the delay after which a rejected client may retry, in seconds.
const retryAfter = 1

// concurrencyLimiter limits the requests in flight of each tenant: a user, or the namespace of service accounts. A
// tenant may have at most as many requests in flight as there are free slots: a single tenant gets half of all slots,
// each of two tenants a third, and so on. So slots remain for tenants that have none.
//
// It rejects with 429 and does not queue: a request that waited here would keep its connection, its memory and its slot
// in the library's own limits, and the client can retry. The node agents queue instead (limits.Queue), because a
// waiting caller there costs almost nothing.
type concurrencyLimiter struct{ shares *limits.Shares }

func newConcurrencyLimiter(slots int) *concurrencyLimiter {
	return &concurrencyLimiter{limits.NewShares(int64(slots), 0)}
}

// limit wraps a handler: it returns an error if the tenant of the request has reached its limit.
func (l *concurrencyLimiter) limit(
	do func(http.ResponseWriter, *http.Request) error,
) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		tenant := tenantOf(r)
		if inFlight, ok := l.shares.Take(tenant, 1); !ok {
			return apierrors.NewTooManyRequests(fmt.Sprintf(
				"%s has %d requests in flight, and the rest of what virt-api serves is reserved for other users",
				tenant, inFlight), retryAfter)
		}
		defer l.shares.Give(tenant, 1)
		return do(w, r)
	}
}

// tenantOf returns the user of a request, or the namespace of a service account: a user who can create one service
// account in a namespace can create many.
func tenantOf(r *http.Request) string {
	user, ok := request.UserFrom(r.Context())
	if !ok {
		return "an unknown user"
	}
	if namespace, _, err := serviceaccount.SplitUsername(user.GetName()); err == nil {
		return "namespace " + namespace
	}
	return fmt.Sprintf("user %q", user.GetName())
}

const (
	// StreamDrain is how long streams may stay open after shutdown has started. The Deployment's
	// terminationGracePeriodSeconds is longer. The agents wait as long for migrations.
	StreamDrain = 300 * time.Second
	// closeTimeout bounds the wait for the streams that the server ends. Each side has some seconds to respond to its
	// close frame.
	closeTimeout = 15 * time.Second
)

// drain lets streams end before the server stops.
type drain struct {
	clock clock.WithDelayedExecution
	// cut is closed when streams must end.
	cut  chan struct{}
	once sync.Once

	mu   sync.Mutex
	open int
	// changed receives a value after open has become zero.
	changed chan struct{}
}

func newDrain(c clock.WithDelayedExecution) *drain {
	return &drain{clock: c, cut: make(chan struct{}), changed: make(chan struct{}, 1)}
}

// count wraps a handler of streams: the drain waits until its calls return.
func (d *drain) count(
	serve func(http.ResponseWriter, *http.Request) error,
) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		d.add(1)
		defer d.add(-1)
		return serve(w, r)
	}
}

func (d *drain) add(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open += n; d.open > 0 {
		return
	}
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

func (d *drain) streams() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open
}

// limit ends the streams StreamDrain after the context has ended. cancel releases its resources if the context has not
// ended.
func (d *drain) limit(ctx context.Context) (cancel func() bool) {
	return context.AfterFunc(ctx, func() {
		select {
		case <-d.cut:
			return
		default:
		}
		if n := d.streams(); n > 0 {
			log.FromContext(ctx).Info("Waiting for streams before the end", "streams", n)
		}
		d.clock.AfterFunc(StreamDrain, d.end)
	})
}

// end ends the streams.
func (d *drain) end() { d.once.Do(func() { close(d.cut) }) }

// wait returns when no stream is open; the server must not accept new ones any more. If the server failed instead of
// being stopped, wait ends the streams at once.
func (d *drain) wait(ctx context.Context) {
	if ctx.Err() == nil {
		d.end()
	}
	cut := d.cut
	var late <-chan time.Time
	for {
		n := d.streams()
		if n == 0 {
			return
		}
		select {
		case <-d.changed:
		case <-cut:
			log.FromContext(ctx).Info("Cutting streams", "streams", n)
			cut, late = nil, time.After(closeTimeout)
		case <-late:
			return
		}
	}
}

// metricsHandler serves the metrics of streams and those of the API server library. virt-api is ready as long as it
// serves, until stopping is closed.
func metricsHandler(stopping <-chan struct{}) (http.Handler, error) {
	stops := metrics.Closed(stopping)
	return metrics.Handler(metrics.Options{
		Library: legacyregistry.DefaultGatherer, Collectors: stream.Collectors(func() bool { return !stops() }),
	})
}

// groupResource is the resource in errors that concern no object.
var groupResource = schema.GroupResource{Group: subresource.GroupName}

func writeJSON(w http.ResponseWriter, code int, object any) {
	responsewriters.WriteRawJSON(code, object, w)
}
