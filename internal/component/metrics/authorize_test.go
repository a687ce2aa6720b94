// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

// reviews is an API server that knows two tokens. The user of one may get the metrics.
type reviews struct {
	// unknown and known are how many tokens were reviewed that were not accepted before, and that were.
	unknown, known int
	broken         bool
}

func (r *reviews) guard() *guard {
	admit := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	return newGuard(r.reviewer(&r.unknown), r.reviewer(&r.known), admit)
}

// reviewer returns a reviewer that counts the tokens that it reviews.
func (r *reviews) reviewer(count *int) *reviewer {
	api := fake.NewClientset()
	api.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		*count++
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		if token := review.Spec.Token; token == "prometheus" || token == "tenant" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
				Username: token, Groups: []string{"group"}, Extra: map[string]authenticationv1.ExtraValue{"key": {"value"}},
			}}
		}
		if r.broken {
			return true, nil, errors.New("no route to the API server")
		}
		return true, review, nil
	})
	api.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		asked := review.Spec
		review.Status.Allowed = asked.User == "prometheus" && asked.Groups[0] == "group" &&
			asked.Extra["key"][0] == "value" &&
			*asked.NonResourceAttributes == authorizationv1.NonResourceAttributes{Path: Path, Verb: "get"}
		return true, review, nil
	})
	return &reviewer{tokens: api.AuthenticationV1().TokenReviews(), access: api.AuthorizationV1().SubjectAccessReviews()}
}

func TestClientsNeedATokenThatMayGetTheMetrics(t *testing.T) {
	server := &reviews{}
	g := server.guard()
	for _, c := range []struct {
		header, method, path string
		want                 int
	}{
		{"", http.MethodGet, Path, http.StatusUnauthorized},
		{"Basic prometheus", http.MethodGet, Path, http.StatusUnauthorized},
		{"Bearer ", http.MethodGet, Path, http.StatusUnauthorized},
		{"Bearer unknown", http.MethodGet, Path, http.StatusUnauthorized},
		{"Bearer tenant", http.MethodGet, Path, http.StatusForbidden},
		{"Bearer prometheus", http.MethodGet, Path, http.StatusOK},
		{"bearer prometheus", http.MethodGet, Path, http.StatusOK},
		{"Bearer prometheus", http.MethodHead, Path, http.StatusForbidden},
		{"Bearer prometheus", http.MethodPost, Path, http.StatusMethodNotAllowed},
		{"Bearer tenant", "GETA", Path, http.StatusMethodNotAllowed},
		{"Bearer prometheus", http.MethodGet, "/other", http.StatusForbidden},
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		if c.header != "" {
			r.Header.Set("Authorization", c.header)
		}
		for range 2 {
			w := httptest.NewRecorder()
			if g.ServeHTTP(w, r); w.Code != c.want {
				t.Errorf("%+v: got %d", c, w.Code)
			}
		}
	}
	// Those without a token, and with other methods, are not asked about, and a decision is used again.
	if server.unknown != 5 || server.known != 0 {
		t.Errorf("%d tokens were reviewed, want 5, and %d again", server.unknown, server.known)
	}
}

func TestAnAPIServerThatFailsAdmitsNobody(t *testing.T) {
	server := &reviews{broken: true}
	g := server.guard()
	r := httptest.NewRequest(http.MethodGet, Path, nil)
	r.Header.Set("Authorization", "Bearer prometheus")
	for _, want := range []int{http.StatusInternalServerError, http.StatusOK} {
		w := httptest.NewRecorder()
		if g.ServeHTTP(w, r); w.Code != want {
			t.Errorf("got %d, want %d", w.Code, want)
		}
		server.broken = false
	}
}

// Tokens of others, however many, neither make Prometheus' token be reviewed again, nor share its limit when it is.
func TestDeniedTokensDoNotGetInTheWayOfAcceptedOnes(t *testing.T) {
	server := &reviews{}
	g := server.guard()
	get := func(token string) int {
		r, w := httptest.NewRequest(http.MethodGet, Path, nil), httptest.NewRecorder()
		r.Header.Set("Authorization", "Bearer "+token)
		g.ServeHTTP(w, r)
		return w.Code
	}
	if code := get("prometheus"); code != http.StatusOK {
		t.Fatalf("got %d", code)
	}
	for i := range 2 * maxReviews {
		if code := get(fmt.Sprintf("random-%d", i)); code != http.StatusUnauthorized {
			t.Fatalf("got %d", code)
		}
	}
	if code := get("prometheus"); code != http.StatusOK || server.unknown != 1+2*maxReviews || server.known != 0 {
		t.Errorf("got %d after %d reviews, and %d of accepted tokens", code, server.unknown, server.known)
	}
	// A minute later.
	g.admitted.RemoveAll(func(any) bool { return true })
	if code := get("prometheus"); code != http.StatusOK || server.known != 1 {
		t.Errorf("got %d, and %d reviews of accepted tokens", code, server.known)
	}
}

// A new token of Prometheus has to wait for few of another address, however many that sends.
func TestAnAddressHasFewReviewsOfUnknownTokens(t *testing.T) {
	server := &reviews{}
	g := server.guard()
	get := func(host, token string) int {
		r, w := httptest.NewRequest(http.MethodGet, Path, nil), httptest.NewRecorder()
		r.RemoteAddr = host + ":1234"
		r.Header.Set("Authorization", "Bearer "+token)
		g.ServeHTTP(w, r)
		return w.Code
	}
	if code := get("10.0.0.1", "prometheus"); code != http.StatusOK {
		t.Fatalf("got %d", code)
	}
	g.admitted.RemoveAll(func(any) bool { return true })
	if held := g.reviewing["10.0.0.1"]; held != 0 {
		t.Fatalf("%d reviews have not ended", held)
	}
	for range maxUnknown {
		if !g.begin("10.0.0.1") {
			t.Fatal("a review is refused")
		}
	}
	if code := get("10.0.0.1", "random"); code != http.StatusTooManyRequests {
		t.Errorf("one more of the address: got %d", code)
	}
	if code := get("10.0.0.1", "prometheus"); code != http.StatusOK {
		t.Errorf("an accepted token of the address: got %d", code)
	}
	if code := get("10.0.0.2", "random"); code != http.StatusUnauthorized {
		t.Errorf("another address: got %d", code)
	}
	g.end("10.0.0.1")
	if code := get("10.0.0.1", "random-2"); code != http.StatusUnauthorized {
		t.Errorf("after one has ended: got %d", code)
	}
}

// roundTripper is an API server.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// However many tokens wait for their reviews, a decision about access does not.
func TestTokensDoNotDelayDecisionsAboutAccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		api := roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{
				StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(strings.NewReader("{}")), Request: r,
			}, nil
		})
		v, err := newReviewer(
			&rest.Config{Host: "https://api.example", ContentConfig: rest.ContentConfig{ContentType: "application/json"}},
			&http.Client{Transport: api})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 * reviewBurst {
			go func() { _, _ = v.tokens.Create(ctx, &authenticationv1.TokenReview{}, metav1.CreateOptions{}) }()
		}
		synctest.Wait()
		start := time.Now()
		if _, err := v.access.Create(ctx, &authorizationv1.SubjectAccessReview{}, metav1.CreateOptions{}); err != nil ||
			time.Since(start) > 0 {
			t.Errorf("the decision took %s, %v", time.Since(start), err)
		}
		cancel()
	})
}
