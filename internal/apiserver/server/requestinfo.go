// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/vireo-project/vireo/internal/apiserver/subresource"
)

// resolver extracts the attributes by which a request is authorized. Kubernetes takes only the first path segment below an object
// as the subresource. Names of verbs may have several, and each is a permission of its own: vnc does not include vnc/screenshot.
type resolver struct {
	general request.RequestInfoResolver
	// names contains the names of verbs by resource.
	names map[string]sets.Set[string]
}

func newResolver(verbs []subresource.Verb) *resolver {
	r := &resolver{
		general: &request.RequestInfoFactory{
			APIPrefixes: sets.NewString("apis"), GrouplessAPIPrefixes: sets.NewString(),
		},
		names: map[string]sets.Set[string]{},
	}
	for _, v := range verbs {
		if r.names[v.Resource] == nil {
			r.names[v.Resource] = sets.New[string]()
		}
		r.names[v.Resource].Insert(v.Name)
	}
	return r
}

// NewRequestInfo implements request.RequestInfoResolver.
func (r *resolver) NewRequestInfo(req *http.Request) (*request.RequestInfo, error) {
	info, err := r.general.NewRequestInfo(req)
	if err != nil || !info.IsResourceRequest || info.APIGroup != subresource.GroupName {
		return info, err
	}
	// Parts are the resource, the object's name and the segments below it.
	if len(info.Parts) > 3 {
		if name := strings.Join(info.Parts[2:], "/"); r.names[info.Resource].Has(name) {
			info.Subresource = name
		}
	}
	return info, nil
}

// isLongRunning returns a function that reports whether a request streams and therefore has no timeout.
func isLongRunning(verbs []subresource.Verb) request.LongRunningRequestCheck {
	streams := sets.New[string]()
	for _, v := range verbs {
		if v.Streams {
			streams.Insert(v.RBACName())
		}
	}
	return func(_ *http.Request, info *request.RequestInfo) bool {
		return info.IsResourceRequest && streams.Has(info.Resource+"/"+info.Subresource)
	}
}
