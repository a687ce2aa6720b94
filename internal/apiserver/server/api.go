// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/vireo-project/vireo/internal/apiserver/subresource"
	"github.com/vireo-project/vireo/internal/component/version"
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

// resources lists the verbs of a version as subresources. Verbs that differ only in method or arguments are one
// subresource.
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

// static serves a constant JSON document. Clients that accept gzip get it in one chunk: the API server's availability
// check closes the connection after the first chunk, which net/http would log as an error, five times every half
// minute.
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

// parameter matches a path parameter, such as {name}.
var parameter = regexp.MustCompile(`\{([a-z]+)\}`)

// addOpenAPI serves the OpenAPI documents, versions 2 and 3, which are generated from the verbs.
func addOpenAPI(mux *http.ServeMux, verbs []subresource.Verb) error {
	v2 := newDocument(subresource.Versions, verbs)
	handler.NewOpenAPIService(v2).RegisterOpenAPIVersionedService("/openapi/v2", paths{mux})
	v3 := handler3.NewOpenAPIService()
	for _, v := range subresource.Versions {
		document := newDocument([]string{v}, verbs)
		v3.UpdateGroupVersion("apis/"+subresource.GroupName+"/"+v, openapiconv.ConvertV2ToV3(document))
	}
	if err := v3.RegisterOpenAPIV3VersionedService("/openapi/v3", paths{mux}); err != nil {
		return fmt.Errorf("cannot serve OpenAPI: %w", err)
	}
	return nil
}

// paths adapts http.ServeMux to the interfaces with which the OpenAPI library registers its handlers.
type paths struct{ mux *http.ServeMux }

// Handle implements common.PathHandler.
func (p paths) Handle(path string, h http.Handler) { p.mux.Handle(path, h) }

// HandlePrefix implements common.PathHandlerByGroupVersion.
func (p paths) HandlePrefix(path string, h http.Handler) { p.mux.Handle(path, h) }

func newDocument(versions []string, verbs []subresource.Verb) *spec.Swagger {
	document := &spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Swagger:     "2.0",
		Info:        &spec.Info{InfoProps: spec.InfoProps{Title: subresource.GroupName, Version: version.Version}},
		Paths:       &spec.Paths{Paths: map[string]spec.PathItem{}},
		Definitions: spec.Definitions{},
	}}
	for _, ver := range versions {
		for _, v := range verbs {
			path := v.Path(ver)
			item := document.Paths.Paths[path]
			operation := describe(ver, v, document.Definitions)
			if v.Method == http.MethodPut {
				item.Put = operation
			} else {
				item.Get = operation
			}
			document.Paths.Paths[path] = item
		}
	}
	return document
}

func describe(ver string, v subresource.Verb, definitions spec.Definitions) *spec.Operation {
	operation := &spec.Operation{OperationProps: spec.OperationProps{
		ID: operationID(ver, v), Description: v.Doc, Tags: []string{"subresources_" + ver},
		Responses: &spec.Responses{ResponsesProps: spec.ResponsesProps{StatusCodeResponses: map[int]spec.Response{
			http.StatusUnauthorized: response(http.StatusUnauthorized, nil),
		}}},
	}}
	for _, match := range parameter.FindAllStringSubmatch(v.Path(ver), -1) {
		operation.Parameters = append(operation.Parameters, spec.Parameter{
			ParamProps:   spec.ParamProps{Name: match[1], In: "path", Required: true},
			SimpleSchema: spec.SimpleSchema{Type: "string"},
		})
	}
	if v.Body != nil {
		operation.Parameters = append(operation.Parameters, spec.Parameter{
			ParamProps: spec.ParamProps{Name: "body", In: "body", Schema: define(definitions, v.Body)},
		})
	}
	switch {
	case v.Response != nil:
		operation.Responses.StatusCodeResponses[http.StatusOK] = response(http.StatusOK, define(definitions, v.Response))
	case v.Method == http.MethodPut:
		operation.Responses.StatusCodeResponses[http.StatusAccepted] = response(http.StatusAccepted, nil)
	default:
		operation.Responses.StatusCodeResponses[http.StatusOK] = response(http.StatusOK, nil)
	}
	operation.AddExtension("x-kubernetes-group-version-kind", map[string]any{
		"group": subresource.GroupName, "version": ver, "kind": discoveryKind,
	})
	operation.AddExtension("x-kubernetes-action", "connect")
	return operation
}

func response(code int, schema *spec.Schema) spec.Response {
	return spec.Response{ResponseProps: spec.ResponseProps{Description: http.StatusText(code), Schema: schema}}
}

// operationID returns an ID that is unique in the document.
func operationID(ver string, v subresource.Verb) string {
	words := strings.FieldsFunc(ver+"/"+v.RBACName()+"/"+v.Arguments,
		func(r rune) bool { return strings.ContainsRune("/-{}", r) })
	for i, word := range words {
		words[i] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.ToLower(v.Method) + strings.Join(words, "")
}

// define adds the schema of a type and returns a reference to it.
func define(definitions spec.Definitions, object any) *spec.Schema {
	typ := reflect.Indirect(reflect.ValueOf(object)).Type()
	name := strings.ReplaceAll(strings.TrimPrefix(typ.PkgPath(), "github.com/vireo-project/vireo/api/"),
		"/", ".") + "." + typ.Name()
	if _, known := definitions[name]; !known {
		// The schema lists no fields, so that clients which validate objects accept all fields. They are documented
		// with their kinds.
		definitions[name] = *new(spec.Schema).Typed("object", "").WithDescription("See the Go type " + typ.String() + ".")
	}
	return spec.RefSchema("#/definitions/" + name)
}

// resolver extracts the attributes by which a request is authorized. Kubernetes takes only the first path segment below
// an object as the subresource. Names of verbs may have several, and each is a permission of its own: vnc does not
// include vnc/screenshot.
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
