// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package limits_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// cached matches what virt-controller's lists are read from that its cache has, by the convention of its names.
// Anything else may read from the API server.
var cached = regexp.MustCompile(`(^|\.)(Client|client|Cached|cached|cache|Objects|c|t|r|a|i|g)$`)

// unpaged are the functions with a list from elsewhere that has no limit, and why that is harmless.
var unpaged = map[string]string{
	"internal/controller/storage/datavolume/datavolume.go List":                    "a cache of its own",
	"internal/controller/storage/virtualmachinerestore/observe.go readDataVolumes": "a cache of its own",
	"internal/controller/storage/volumesnapshot/reader.go list":                    "a cache of its own",
	"internal/controller/observe/monitoring/collector.go read":                     "the cache",
	"internal/controller/virtualmachineinstance/requirements.go SetRequiredLimits": "the cache",
	"internal/controller/kit/watch.go Requests":                                    "the cache",
	"internal/webhook/v1/snapshot_webhook.go validateOthers":                       "the cache",

	"internal/controller/install/kubevirt/rollout.go podsOf":                    "Pods of the install namespace",
	"internal/controller/install/kubevirt/prometheus/apply.go live":             "what is installed",
	"internal/controller/storage/virtualmachineexport/external.go findExternal": "the install namespace",
	"internal/controller/storage/virtualmachineexport/external.go ingressCA":    "the install namespace",
	"internal/controller/storage/virtualmachineexport/external.go route":        "the install namespace",
	"internal/controller/install/kubevirt/commoninstancetypes/sync.go owned":    "cluster-wide kinds",

	"internal/controller/migration/virtualmachineinstancemigration/assign.go policy":    "a kind of administrators",
	"internal/controller/migration/virtualmachineinstancemigration/admit.go candidates": "the cache: readLive reads from the API server",
}

// A tenant decides how many objects its namespaces have, and how large they are: what is read from the API server is
// read page by page.
func TestListsFromTheAPIServerArePaged(t *testing.T) {
	found := map[string]bool{}
	for _, dir := range []string{"internal/controller", "internal/webhook"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := filepath.Rel(root, path)
			for _, function := range withoutLimit(t, path) {
				found[file+" "+function] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for where := range found {
		if unpaged[where] == "" {
			t.Errorf("%s lists without a limit: use kit.EachMetadata or kit.EachPage, or add it to unpaged with the reason",
				where)
		}
	}
	for where := range unpaged {
		if !found[where] {
			t.Errorf("%s has no list without a limit: remove it from unpaged", where)
		}
	}
}

// withoutLimit returns the functions of a file that list without a limit from something that may not be the cache.
func withoutLimit(t *testing.T, path string) (functions []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		function, ok := d.(*ast.FuncDecl)
		if !ok || function.Body == nil {
			continue
		}
		ast.Inspect(function.Body, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			// Lists of an API have a context and a list.
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || method.Sel.Name != "List" || len(call.Args) < 2 || cached.MatchString(types.ExprString(method.X)) {
				return true
			}
			for _, argument := range call.Args {
				if strings.Contains(types.ExprString(argument), "client.Limit(") {
					return true
				}
			}
			functions = append(functions, function.Name.Name)
			return true
		})
	}
	return functions
}
