// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/apiserver/subresource"
)

// discoveryKind is the kind that discovery reports for every verb: a subresource has no objects to list or watch.
const discoveryKind = "Subresource"

func group() metav1.APIGroup {
	g := metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: subresource.GroupName,
	}
	for _, version := range subresource.Versions {
		g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: subresource.GroupName + "/" + version, Version: version,
		})
	}
	g.PreferredVersion = g.Versions[0]
	return g
}

// resources lists the verbs of a version as subresources. Verbs that differ only in method or arguments are one subresource.
func resources(version string, verbs []subresource.Verb) *metav1.APIResourceList {
	list := &metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: subresource.GroupName + "/" + version,
		APIResources: []metav1.APIResource{},
	}
	for _, v := range verbs {
		at := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == v.RBACName() })
		if at < 0 {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: v.RBACName(), Kind: discoveryKind, Namespaced: v.Namespaced || v.Resource != "",
			})
			at = len(list.APIResources) - 1
		}
		verb := "get"
		if v.Method == http.MethodPut {
			verb = "update"
		}
		if entry := &list.APIResources[at]; !slices.Contains(entry.Verbs, verb) {
			entry.Verbs = append(entry.Verbs, verb)
		}
	}
	return list
}

// addDiscovery serves the discovery documents that kubectl and the API server read.
func addDiscovery(mux *http.ServeMux, verbs []subresource.Verb) error {
	groups := &metav1.APIGroupList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{group()},
	}
	// Elements of a list have no TypeMeta.
	groups.Groups[0].TypeMeta = metav1.TypeMeta{}
	single := group()
	documents := map[string]any{"/apis": groups, "/apis/" + subresource.GroupName: &single}
	for _, version := range subresource.Versions {
		documents["/apis/"+subresource.GroupName+"/"+version] = resources(version, verbs)
	}
	for path, object := range documents {
		d, err := newStatic(object)
		if err != nil {
			return fmt.Errorf("discovery of %s: %w", path, err)
		}
		mux.Handle("GET "+path, d)
		mux.Handle("GET "+path+"/{$}", d)
	}
	return nil
}

// static serves a constant JSON document. Clients that accept gzip get it in one chunk: the API server's availability check
// closes the connection after the first chunk, which net/http would log as an error, five times every half minute.
type static struct{ plain, compressed []byte }

func newStatic(object any) (static, error) {
	plain, err := json.Marshal(object)
	if err != nil {
		return static{}, err
	}
	var compressed bytes.Buffer
	z := gzip.NewWriter(&compressed)
	if _, err := z.Write(plain); err != nil {
		return static{}, err
	}
	if err := z.Close(); err != nil {
		return static{}, err
	}
	return static{plain: plain, compressed: compressed.Bytes()}, nil
}

// ServeHTTP implements http.Handler.
func (d static) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := d.plain
	w.Header().Set("Content-Type", "application/json")
	w.Header().Add("Vary", "Accept-Encoding")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		body = d.compressed
	}
	_, _ = w.Write(body) // fails only if the client has disconnected
}
