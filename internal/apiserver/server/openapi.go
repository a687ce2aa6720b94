// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"strings"

	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/vireo-project/vireo/internal/apiserver/subresource"
	"github.com/vireo-project/vireo/internal/component/version"
)

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
	words := strings.FieldsFunc(ver+"/"+v.RBACName()+"/"+v.Arguments, func(r rune) bool { return strings.ContainsRune("/-{}", r) })
	for i, word := range words {
		words[i] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.ToLower(v.Method) + strings.Join(words, "")
}

// define adds the schema of a type and returns a reference to it.
func define(definitions spec.Definitions, object any) *spec.Schema {
	typ := reflect.Indirect(reflect.ValueOf(object)).Type()
	name := strings.ReplaceAll(strings.TrimPrefix(typ.PkgPath(), "github.com/vireo-project/vireo/api/"), "/", ".") + "." + typ.Name()
	if _, known := definitions[name]; !known {
		// The schema lists no fields, so that clients which validate objects accept all fields. They are documented with their kinds.
		definitions[name] = *new(spec.Schema).Typed("object", "").WithDescription("See the Go type " + typ.String() + ".")
	}
	return spec.RefSchema("#/definitions/" + name)
}
