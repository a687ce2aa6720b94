// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-tools/pkg/crd"
	crdmarkers "sigs.k8s.io/controller-tools/pkg/crd/markers"
	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"
)

// schemas generates OpenAPI schemas of Go types from their source and markers, with the library that generates both
// projects' CRDs.
type schemas struct {
	parser   *crd.Parser
	packages map[string]*loader.Package
}

// loadSchemas loads the packages of types.
func loadSchemas(types []reflect.Type) (*schemas, error) {
	var paths []string
	for _, t := range types {
		if !slices.Contains(paths, t.PkgPath()) {
			paths = append(paths, t.PkgPath())
		}
	}
	roots, err := loader.LoadRoots(paths...)
	if err != nil {
		return nil, fmt.Errorf("load %v: %w", paths, err)
	}
	registry := &markers.Registry{}
	if err := crdmarkers.Register(registry); err != nil {
		return nil, fmt.Errorf("register markers: %w", err)
	}
	s := &schemas{
		parser: &crd.Parser{
			Collector:           &markers.Collector{Registry: registry},
			Checker:             &loader.TypeChecker{},
			AllowDangerousTypes: true,
		},
		packages: map[string]*loader.Package{},
	}
	crd.AddKnownTypes(s.parser)
	for _, root := range roots {
		s.parser.NeedPackage(root)
		s.packages[root.PkgPath] = root
	}
	return s, nil
}

// of returns the schema of a type, with all references resolved.
func (s *schemas) of(t reflect.Type) (apiextensionsv1.JSONSchemaProps, error) {
	ident := crd.TypeIdent{Package: s.packages[t.PkgPath()], Name: t.Name()}
	s.parser.NeedFlattenedSchemaFor(ident)
	for _, problem := range ident.Package.Errors {
		// Only what the schemas need is type-checked. Errors about other, undefined names are ignored.
		if problem.Kind == packages.TypeError {
			continue
		}
		return apiextensionsv1.JSONSchemaProps{}, fmt.Errorf("schema of %s: %s", t, problem.Msg)
	}
	schema, found := s.parser.FlattenedSchemata[ident]
	if !found {
		return schema, fmt.Errorf("schema of %s: there is none", t)
	}
	return schema, nil
}

// Kinds of differences between two schemas.
const (
	schemaMissing    = "missing in schema"
	schemaAdded      = "added in schema"
	schemaType       = "schema type"
	schemaRequired   = "required"
	schemaNullable   = "nullable"
	schemaList       = "list type"
	schemaPreserve   = "unknown fields"
	schemaDefault    = "default"
	schemaStricter   = "stricter"
	schemaLooser     = "looser"
	schemaRule       = "rule"
	schemaIntOrStr   = "int or string"
	schemaAdditional = "map values"
)

// schemaComparison compares two schemas node by node.
type schemaComparison struct {
	nodes       int
	differences []difference
}

func (c *schemaComparison) report(path, what, format string, args ...any) {
	c.differences = append(c.differences, difference{path: path, what: what, detail: fmt.Sprintf(format, args...)})
}

func (c *schemaComparison) differ(path, what string, there, here any) {
	if t, h := inJSON(there), inJSON(here); t != h {
		c.report(path, what, "%s there, %s here", t, h)
	}
}

func inJSON(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

func (c *schemaComparison) compare(path string, there, here *apiextensionsv1.JSONSchemaProps) {
	c.nodes++
	c.differ(path, schemaType, there.Type, here.Type)
	c.differ(path, schemaIntOrStr, there.XIntOrString, here.XIntOrString)
	c.differ(path, schemaNullable, there.Nullable, here.Nullable)
	c.differ(path, schemaPreserve, there.XPreserveUnknownFields != nil && *there.XPreserveUnknownFields,
		here.XPreserveUnknownFields != nil && *here.XPreserveUnknownFields)
	c.differ(path, schemaList, listKind(there), listKind(here))
	c.differ(path, schemaDefault, there.Default, here.Default)
	c.compareConstraints(path, there, here)
	c.compareProperties(path, there, here)
	switch {
	case there.Items != nil && here.Items != nil:
		c.compare(path+"[]", there.Items.Schema, here.Items.Schema)
	case (there.Items == nil) != (here.Items == nil):
		c.report(path, schemaType, "items only on one side")
	}
	c.compareAdditional(path, there.AdditionalProperties, here.AdditionalProperties)
}

func (c *schemaComparison) compareAdditional(path string, there, here *apiextensionsv1.JSONSchemaPropsOrBool) {
	switch {
	case there != nil && here != nil && there.Schema != nil && here.Schema != nil:
		c.compare(path+"{}", there.Schema, here.Schema)
	case (there == nil) != (here == nil):
		c.report(path, schemaAdditional, "only on one side")
	}
}

func (c *schemaComparison) compareProperties(path string, there, here *apiextensionsv1.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(there.Properties)) {
		at := path + "." + name
		mine, found := here.Properties[name]
		if !found {
			c.report(at, schemaMissing, "no property of this name")
			continue
		}
		theirs := there.Properties[name]
		c.differ(at, schemaRequired, slices.Contains(there.Required, name), slices.Contains(here.Required, name))
		c.compare(at, &theirs, &mine)
	}
	for _, name := range slices.Sorted(maps.Keys(here.Properties)) {
		if _, found := there.Properties[name]; !found {
			c.report(path+"."+name, schemaAdded, "KubeVirt has no property of this name")
		}
	}
}

// listKind returns how server-side apply merges a list, a map or an object.
func listKind(s *apiextensionsv1.JSONSchemaProps) string {
	kind := ""
	switch {
	case s.XListType != nil:
		kind = *s.XListType
	case s.Type == "array":
		kind = "atomic" // the API server's default
	}
	if s.XMapType != nil {
		kind += "map " + *s.XMapType
	}
	if len(s.XListMapKeys) > 0 {
		kind += " by " + strings.Join(s.XListMapKeys, ",")
	}
	return kind
}

// compareConstraints reports values that only one side accepts.
func (c *schemaComparison) compareConstraints(path string, there, here *apiextensionsv1.JSONSchemaProps) {
	theirs, mine := constraints(there), constraints(here)
	for _, name := range slices.Sorted(maps.Keys(mine)) {
		if theirs[name] == "" {
			c.report(path, schemaStricter, "%s %s only here", name, mine[name])
		} else if theirs[name] != mine[name] {
			c.report(path, schemaStricter, "%s %s there, %s here", name, theirs[name], mine[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		if mine[name] == "" {
			c.report(path, schemaLooser, "%s %s only there", name, theirs[name])
		}
	}
	theirRules, myRules := rules(there), rules(here)
	for _, rule := range myRules {
		if !slices.Contains(theirRules, rule) {
			c.report(path, schemaRule, "only here: %s", rule)
		}
	}
	for _, rule := range theirRules {
		if !slices.Contains(myRules, rule) {
			c.report(path, schemaLooser, "rule only there: %s", rule)
		}
	}
}

func rules(s *apiextensionsv1.JSONSchemaProps) []string {
	all := make([]string, 0, len(s.XValidations))
	for _, validation := range s.XValidations {
		all = append(all, validation.Rule)
	}
	return all
}

// constraints returns a schema's constraints by keyword.
func constraints(s *apiextensionsv1.JSONSchemaProps) map[string]string {
	all := map[string]string{}
	add := func(keyword string, value any, isSet bool) {
		if isSet {
			all[keyword] = inJSON(value)
		}
	}
	if len(s.Enum) > 0 {
		values := make([]string, 0, len(s.Enum))
		for _, value := range s.Enum {
			values = append(values, string(value.Raw))
		}
		slices.Sort(values)
		all["enum"] = strings.Join(values, ",")
	}
	add("format", s.Format, s.Format != "")
	add("pattern", s.Pattern, s.Pattern != "")
	add("minimum", s.Minimum, s.Minimum != nil)
	add("maximum", s.Maximum, s.Maximum != nil)
	add("exclusiveMinimum", s.ExclusiveMinimum, s.ExclusiveMinimum)
	add("exclusiveMaximum", s.ExclusiveMaximum, s.ExclusiveMaximum)
	add("multipleOf", s.MultipleOf, s.MultipleOf != nil)
	add("minLength", s.MinLength, s.MinLength != nil)
	add("maxLength", s.MaxLength, s.MaxLength != nil)
	add("minItems", s.MinItems, s.MinItems != nil)
	add("maxItems", s.MaxItems, s.MaxItems != nil)
	add("uniqueItems", s.UniqueItems, s.UniqueItems)
	add("minProperties", s.MinProperties, s.MinProperties != nil)
	add("maxProperties", s.MaxProperties, s.MaxProperties != nil)
	add("anyOf", shapes(s.AnyOf), len(s.AnyOf) > 0)
	add("oneOf", shapes(s.OneOf), len(s.OneOf) > 0)
	add("allOf", shapes(s.AllOf), len(s.AllOf) > 0)
	add("not", s.Not, s.Not != nil)
	return all
}

// shapes returns alternatives as JSON without descriptions.
func shapes(alternatives []apiextensionsv1.JSONSchemaProps) []string {
	all := make([]string, 0, len(alternatives))
	for i := range alternatives {
		all = append(all, alternatives[i].Type+" "+strings.Join(alternatives[i].Required, ",")+
			inJSON(constraints(&alternatives[i])))
	}
	return all
}
