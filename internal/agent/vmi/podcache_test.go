// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"strings"
	"testing"
)

// TestPartsOfThePodCache checks that only the file that declares the type of a part of podCache uses the part's fields.
func TestPartsOfThePodCache(t *testing.T) {
	files := token.NewFileSet()
	product := func(info fs.FileInfo) bool { return !strings.HasSuffix(info.Name(), "_test.go") }
	packages, err := parser.ParseDir(files, ".", product, parser.SkipObjectResolution) //nolint:staticcheck // It needs no build tags.
	if err != nil {
		t.Fatal(err)
	}
	structs := map[string]structType{}
	for name, file := range packages["vmi"].Files {
		for typeName, fields := range structsOf(file) {
			structs[typeName] = structType{file: name, fields: fields}
		}
	}
	parts := map[string]structType{}
	for part, typeName := range structs["podCache"].fields {
		if declared, ok := structs[typeName]; ok {
			parts[part] = declared
		}
	}
	if len(parts) < 15 {
		t.Fatalf("podCache has the parts %v: the test does not find all of them", parts)
	}
	for name, file := range packages["vmi"].Files {
		ast.Inspect(file, func(n ast.Node) bool {
			outer, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			inner, ok := outer.X.(*ast.SelectorExpr)
			if !ok || !isPodCache(inner.X) {
				return true
			}
			part, isPart := parts[inner.Sel.Name]
			if _, isField := part.fields[outer.Sel.Name]; isPart && isField && part.file != name {
				t.Errorf("%s uses the field %s of podCache.%s, which belongs to %s: add a method there",
					files.Position(outer.Pos()), outer.Sel.Name, inner.Sel.Name, part.file)
			}
			return true
		})
	}
}

// structType is a struct: the file that declares it, and the types of its fields, if they are named types of this package.
type structType struct {
	file   string
	fields map[string]string
}

func structsOf(file *ast.File) map[string]map[string]string {
	found := map[string]map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		declared, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		fields := map[string]string{}
		for _, f := range declared.Fields.List {
			typeName := ""
			if ident, ok := f.Type.(*ast.Ident); ok {
				typeName = ident.Name
			}
			for _, name := range f.Names {
				fields[name.Name] = typeName
			}
		}
		found[spec.Name.Name] = fields
		return true
	})
	return found
}

// isPodCache reports whether an expression is the cache of a scope, or a variable named cache.
func isPodCache(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.SelectorExpr:
		return x.Sel.Name == "cache"
	case *ast.Ident:
		return x.Name == "cache"
	default:
		return false
	}
}
