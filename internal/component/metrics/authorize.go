// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	authentication "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// reviewTTL is how long the decision about a token is used again, and maxReviews is how many are kept.
	reviewTTL  = time.Minute
	maxReviews = 256
	// reviewTimeout bounds the requests to the API server for a decision.
	reviewTimeout = 10 * time.Second
)

// authorized returns a handler for clients with a token whose user may get the request's path, which the API server decides.
//
// controller-runtime has such a filter, too. It is built from the API server's library with its expression language, which was more than
// a third of virt-handler's program, and of its memory at rest.
func authorized(config *rest.Config, client *http.Client, handler http.Handler) (http.Handler, error) {
	tokens, err := authentication.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("cannot authenticate requests of the metrics: %w", err)
	}
	access, err := authorization.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("cannot authorize requests of the metrics: %w", err)
	}
	return &guard{
		tokens: tokens.TokenReviews(), access: access.SubjectAccessReviews(), decisions: cache.NewLRUExpireCache(maxReviews), handler: handler,
	}, nil
}

// guard admits clients by their tokens.
type guard struct {
	tokens  authentication.TokenReviewInterface
	access  authorization.SubjectAccessReviewInterface
	handler http.Handler
	// decisions have the status of a response by token and request.
	decisions *cache.LRUExpireCache
}

// question is what a decision is about: the hash of a token, a verb and a path.
type question struct {
	token      [sha256.Size]byte
	verb, path string
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		http.Error(w, http.StatusText(http.StatusUnauthorized), http.StatusUnauthorized)
		return
	}
	asked := question{token: sha256.Sum256([]byte(token)), verb: strings.ToLower(r.Method), path: r.URL.Path}
	status, known := g.decisions.Get(asked)
	if !known {
		decided, err := g.decide(r.Context(), token, asked)
		if err != nil {
			log.Log.WithName("metrics").Error(err, "A request of the metrics cannot be authorized")
			http.Error(w, "the API server cannot decide about this request", http.StatusInternalServerError)
			return
		}
		status = decided
		g.decisions.Add(asked, status, reviewTTL)
	}
	if status != http.StatusOK {
		http.Error(w, http.StatusText(status.(int)), status.(int))
		return
	}
	g.handler.ServeHTTP(w, r)
}

// decide has the API server identify the token's user, and check whether that user may send the request.
func (g *guard) decide(ctx context.Context, token string, asked question) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	review, err := g.tokens.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
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
	access, err := g.access.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: asked.path, Verb: asked.verb},
	}}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("review the access of user %s: %w", user.Username, err)
	}
	if !access.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}
