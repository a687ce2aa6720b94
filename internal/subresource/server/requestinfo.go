// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/vireo-project/vireo/internal/subresource"
)

// resolver tells what a request is about. Kubernetes takes the first part of a path below an object for the subresource
// and forgets the rest. The verbs have longer names, and each is a right of its own: who may look at a screen need not be
// allowed to take screenshots of it.
type resolver struct {
	general request.RequestInfoResolver
	// names are those of the verbs of each resource.
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
	// Parts are the resource, the object's name and what is below it.
	if len(info.Parts) > 3 {
		if whole := strings.Join(info.Parts[2:], "/"); r.names[info.Resource].Has(whole) {
			info.Subresource = whole
		}
	}
	return info, nil
}

// streams says which requests last as long as the client likes.
func streams(verbs []subresource.Verb) request.LongRunningRequestCheck {
	lasting := sets.New[string]()
	for _, v := range verbs {
		if v.Streams {
			lasting.Insert(v.RBACName())
		}
	}
	return func(_ *http.Request, info *request.RequestInfo) bool {
		return info.IsResourceRequest && lasting.Has(info.Resource+"/"+info.Subresource)
	}
}
