// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"go/constant"
	"go/types"
	"reflect"
	"testing"

	"golang.org/x/tools/go/packages"
)

// Vireo's packages contain KubeVirt's exported constants (condition types, reasons, labels, annotations, finalizers,
// enum values) with the same names and values, except constantsNotOurs.
func TestConstantsAreEqual(t *testing.T) {
	ours := map[string]string{}
	var paths []string
	for _, p := range pairs {
		theirs, mine := reflect.TypeOf(p.upstream).PkgPath(), reflect.TypeOf(p.ours).PkgPath()
		if ours[theirs] == "" {
			ours[theirs] = mine
			paths = append(paths, theirs, mine)
		}
	}
	loaded, err := packages.Load(
		&packages.Config{Mode: packages.NeedName | packages.NeedTypes | packages.NeedImports | packages.NeedDeps |
			packages.NeedTypesInfo | packages.NeedSyntax}, paths...)
	if err != nil {
		t.Fatal(err)
	}
	scopes := map[string]*types.Scope{}
	for _, pkg := range loaded {
		scopes[pkg.PkgPath] = pkg.Types.Scope()
	}
	unused := map[string]bool{}
	for name := range constantsNotOurs {
		unused[name] = true
	}
	for theirs, mine := range ours {
		for name, value := range exportedConstants(scopes[theirs]) {
			delete(unused, name)
			if constantsNotOurs[name] != "" {
				continue
			}
			totals.constants++
			got, found := exportedConstants(scopes[mine])[name]
			switch {
			case !found:
				t.Errorf("%s has no constant %s (%s)", mine, name, value)
			case got != value:
				t.Errorf("%s.%s is %s, KubeVirt's is %s", mine, name, got, value)
			}
		}
	}
	for name := range unused {
		t.Errorf("constantsNotOurs names %s, which KubeVirt does not have", name)
	}
}

// exportedConstants returns a package's exported constants with their values in Go syntax.
func exportedConstants(scope *types.Scope) map[string]string {
	all := map[string]string{}
	for _, name := range scope.Names() {
		c, isConst := scope.Lookup(name).(*types.Const)
		if isConst && c.Exported() && c.Val().Kind() != constant.Unknown {
			all[name] = c.Val().ExactString()
		}
	}
	return all
}
