// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package constants reads constants of the source, so that a test can check that a table has all of a type.
package constants

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"testing"
)

// OfType returns the string constants of a type by name, in the files of a directory. "" are those without a type.
func OfType(t *testing.T, directory, kind string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no source: %v", directory, err)
	}
	values, kinds := map[string]ast.Expr{}, map[string]string{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range file.Decls {
			group, ok := declaration.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			for _, s := range group.Specs {
				spec, ok := s.(*ast.ValueSpec)
				if !ok || len(spec.Values) != len(spec.Names) {
					continue
				}
				for i, constant := range spec.Names {
					values[constant.Name] = spec.Values[i]
					if ident, ok := spec.Type.(*ast.Ident); ok {
						kinds[constant.Name] = ident.Name
					}
				}
			}
		}
	}
	found := map[string]string{}
	for name := range values {
		if value, ok := resolve(values, name); ok && kinds[name] == kind {
			found[name] = value
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no string constants of type %q", directory, kind)
	}
	return found
}

// resolve returns the value of a constant, which may be that of another one.
func resolve(values map[string]ast.Expr, name string) (string, bool) {
	switch value := values[name].(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(value.Value)
		return text, err == nil && value.Kind == token.STRING
	case *ast.Ident:
		return resolve(values, value.Name)
	default:
		return "", false
	}
}
