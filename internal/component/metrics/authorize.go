// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	authentication "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// reviewTTL is how long the decision about a token is used again, and maxReviews is how many of each kind are kept.
	reviewTTL  = time.Minute
	maxReviews = 256
	// acceptedTTL is how long it is remembered that a token was accepted, and thus reviewed again with a limit of its own.
	// It is longer than the usual interval of scrapes.
	acceptedTTL = time.Hour
	// reviewsPerSecond and reviewBurst limit the requests to the API server of each kind, for tokens that were accepted
	// before and for others.
	reviewsPerSecond, reviewBurst = 10, 20
	// maxUnknown is how many tokens of one address that were not accepted before are reviewed at the same time. Their
	// reviews wait for the same limit as that of a new token of Prometheus, so this bounds how long a Pod can make it
	// wait.
	maxUnknown = 2
	// reviewTimeout bounds the requests to the API server for a decision.
	reviewTimeout = 10 * time.Second
)

// authorized returns a handler for clients with a token whose user may get the request's path, which the API server
// decides.
//
// controller-runtime has such a filter, too. It is built from the API server's library with its expression language,
// which was more than a third of virt-handler's program, and of its memory at rest.
func authorized(config *rest.Config, client *http.Client, handler http.Handler) (http.Handler, error) {
	unknown, err := newReviewer(config, client)
	if err != nil {
		return nil, err
	}
	known, err := newReviewer(config, client)
	if err != nil {
		return nil, err
	}
	return newGuard(unknown, known, handler), nil
}

// guard admits clients by their tokens. Anyone can send any number of tokens that are denied, so these share neither
// memory nor the limit of requests with those that were accepted: otherwise Prometheus would have to compete with them
// at each scrape.
type guard struct {
	// unknown reviews tokens that were not accepted before, and known those that were.
	unknown, known *reviewer
	handler        http.Handler
	// admitted and denied have the decisions that are used again, denied with the status of the response. accepted has
	// those that admitted a client at any time in the last acceptedTTL.
	admitted, denied, accepted *cache.LRUExpireCache

	mu sync.Mutex
	// reviewing is how many tokens of each address unknown reviews now.
	reviewing map[string]int
}

func newGuard(unknown, known *reviewer, handler http.Handler) *guard {
	return &guard{
		unknown: unknown, known: known, handler: handler,
		admitted: cache.NewLRUExpireCache(maxReviews), denied: cache.NewLRUExpireCache(maxReviews),
		accepted: cache.NewLRUExpireCache(maxReviews), reviewing: map[string]int{},
	}
}

// question is what a decision is about: the hash of a token, a verb and a path.
type question struct {
	token      [sha256.Size]byte
	verb, path string
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The verb is a part of a review, so that a client could otherwise cause any number of reviews by inventing verbs.
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD are served", http.StatusMethodNotAllowed)
		return
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		http.Error(w, http.StatusText(http.StatusUnauthorized), http.StatusUnauthorized)
		return
	}
	q := question{token: sha256.Sum256([]byte(token)), verb: strings.ToLower(r.Method), path: r.URL.Path}
	status, err := g.statusOf(r, token, q)
	switch {
	case err != nil:
		log.Log.WithName("metrics").Error(err, "A request of the metrics cannot be authorized")
		http.Error(w, "the API server cannot decide about this request", http.StatusInternalServerError)
	case status != http.StatusOK:
		http.Error(w, http.StatusText(status), status)
	default:
		g.handler.ServeHTTP(w, r)
	}
}

// statusOf returns the status of the response to a request.
func (g *guard) statusOf(r *http.Request, token string, q question) (int, error) {
	if _, admitted := g.admitted.Get(q); admitted {
		return http.StatusOK, nil
	}
	if status, denied := g.denied.Get(q); denied {
		return status.(int), nil
	}
	from := g.known
	if _, accepted := g.accepted.Get(q); !accepted {
		host := hostOf(r)
		if !g.begin(host) {
			return http.StatusTooManyRequests, nil
		}
		defer g.end(host)
		from = g.unknown
	}
	status, err := from.decide(r.Context(), token, q)
	switch {
	case err != nil:
		return 0, err
	case status == http.StatusOK:
		g.admitted.Add(q, status, reviewTTL)
		g.accepted.Add(q, status, acceptedTTL)
	default:
		g.accepted.Remove(q)
		g.denied.Add(q, status, reviewTTL)
	}
	return status, nil
}

// begin reports whether a token of an address may be reviewed that was not accepted before. If so, end has to follow.
func (g *guard) begin(host string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reviewing[host] >= maxUnknown {
		return false
	}
	g.reviewing[host]++
	return true
}

func (g *guard) end(host string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reviewing[host]--; g.reviewing[host] == 0 {
		delete(g.reviewing, host)
	}
}

// hostOf returns the address of a client without its port.
func hostOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// reviewer sends reviews to the API server, with its own rate limits: one for tokens, and one for the access of their
// users. An invalid token needs no access review, so it cannot delay one.
type reviewer struct {
	tokens authentication.TokenReviewInterface
	access authorization.SubjectAccessReviewInterface
}

func newReviewer(config *rest.Config, client *http.Client) (*reviewer, error) {
	// Anyone can send tokens. Their reviews would otherwise exhaust the component's limit.
	limited := func() *rest.Config {
		own := rest.CopyConfig(config)
		own.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(reviewsPerSecond, reviewBurst)
		return own
	}
	tokens, err := authentication.NewForConfigAndClient(limited(), client)
	if err != nil {
		return nil, fmt.Errorf("cannot authenticate requests of the metrics: %w", err)
	}
	access, err := authorization.NewForConfigAndClient(limited(), client)
	if err != nil {
		return nil, fmt.Errorf("cannot authorize requests of the metrics: %w", err)
	}
	return &reviewer{tokens: tokens.TokenReviews(), access: access.SubjectAccessReviews()}, nil
}

// decide has the API server identify the token's user, and check whether that user may send the request.
func (v *reviewer) decide(ctx context.Context, token string, q question) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	review, err := v.tokens.Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("review a token: %w", err)
	}
	if !review.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := review.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	access, err := v.access.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: q.path, Verb: q.verb},
	}}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("review the access of user %s: %w", user.Username, err)
	}
	if !access.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}
