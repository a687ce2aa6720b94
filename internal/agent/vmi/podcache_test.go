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

// TestPartsOfThePodCache checks that only the file that declares the type of a part of podCache, or of the states of
// devices and jobs in it, uses the part's fields.
func TestPartsOfThePodCache(t *testing.T) {
	found := checkParts(t, ".", "vmi", "podCache", "cache") + checkParts(t, "../devices", "devices", "State", "state") +
		checkParts(t, "../jobs", "jobs", "State", "state")
	if found < 15 {
		t.Fatalf("podCache has %d parts: the test does not find all of them", found)
	}
}

// checkParts checks the parts of a struct in a directory, which is known by the name of the variables and fields that
// have it. It returns how many there are.
func checkParts(t *testing.T, dir, packageName, structName, variable string) int {
	t.Helper()
	files := token.NewFileSet()
	product := func(info fs.FileInfo) bool { return !strings.HasSuffix(info.Name(), "_test.go") }
	packages, err := parser.ParseDir(files, dir, product, parser.SkipObjectResolution) //nolint:staticcheck // It needs no build tags.
	if err != nil {
		t.Fatal(err)
	}
	structs := map[string]structType{}
	for name, file := range packages[packageName].Files {
		for typeName, fields := range structsOf(file) {
			structs[typeName] = structType{file: name, fields: fields}
		}
	}
	parts := map[string]structType{}
	for part, typeName := range structs[structName].fields {
		if declared, ok := structs[typeName]; ok {
			parts[part] = declared
		}
	}
	for name, file := range packages[packageName].Files {
		ast.Inspect(file, func(n ast.Node) bool {
			outer, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			inner, ok := outer.X.(*ast.SelectorExpr)
			if !ok || !isNamed(inner.X, variable) {
				return true
			}
			part, isPart := parts[inner.Sel.Name]
			if _, isField := part.fields[outer.Sel.Name]; isPart && isField && part.file != name {
				t.Errorf("%s uses the field %s of the part %s, which belongs to %s: add a method there",
					files.Position(outer.Pos()), outer.Sel.Name, inner.Sel.Name, part.file)
			}
			return true
		})
	}
	return len(parts)
}

// structType is a struct: the file that declares it, and the types of its fields, if they are named types of this
// package.
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

// isNamed reports whether an expression is a variable or a field of a name.
func isNamed(x ast.Expr, name string) bool {
	switch x := x.(type) {
	case *ast.SelectorExpr:
		return x.Sel.Name == name
	case *ast.Ident:
		return x.Name == name
	default:
		return false
	}
}
