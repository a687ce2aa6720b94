// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/subresource"
)

// discoverable is the kind that discovery shows for a verb: its objects cannot be listed or watched.
const discoverable = "Subresource"

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

// resources lists the verbs of a version as subresources. Several verbs may share one, with another method or argument.
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
				Name: v.RBACName(), Kind: discoverable, Namespaced: v.Namespaced || v.Resource != "",
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

// addDiscovery serves what kubectl and the API server ask for to learn what there is.
func addDiscovery(mux *http.ServeMux, verbs []subresource.Verb) {
	groups := &metav1.APIGroupList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{group()},
	}
	// The list says its version once for all.
	groups.Groups[0].TypeMeta = metav1.TypeMeta{}
	one := group()
	answer(mux, "/apis", groups)
	answer(mux, "/apis/"+subresource.GroupName, &one)
	for _, version := range subresource.Versions {
		answer(mux, "/apis/"+subresource.GroupName+"/"+version, resources(version, verbs))
	}
}

func answer(mux *http.ServeMux, path string, object any) {
	serve := func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, object) }
	mux.HandleFunc("GET "+path, serve)
	mux.HandleFunc("GET "+path+"/{$}", serve)
}
