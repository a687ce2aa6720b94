// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// reviews is an API server that knows two tokens. The user of one may get the metrics.
type reviews struct {
	count  int
	broken bool
}

func (r *reviews) guard() *guard {
	api := fake.NewClientset()
	api.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		r.count++
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
	return &guard{
		tokens: api.AuthenticationV1().TokenReviews(), access: api.AuthorizationV1().SubjectAccessReviews(),
		decisions: cache.NewLRUExpireCache(maxReviews), handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
	}
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
	if server.count != 5 {
		t.Errorf("%d tokens were reviewed, want 5", server.count)
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
