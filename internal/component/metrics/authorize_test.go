// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
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
		review.Status.Allowed = asked.User == "prometheus" && asked.Groups[0] == "group" && asked.Extra["key"][0] == "value" &&
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
		{"Bearer prometheus", http.MethodPost, Path, http.StatusForbidden},
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
	// Those without a token are not asked about, and a decision is used again.
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
