// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package proxy forwards downloads from outside the cluster to the Pods of exports. It does not know the tokens: the exporters check them.
// It connects to nothing but the Services of exports that are ready, whose names it derives itself and whose certificates it verifies.
//
// The key of an exporter is in a Secret of a tenant, who can impersonate the exporter. So requests contain only the headers that a download
// needs, and no credentials of another site; and responses are sanitized, since all downloads have the same origin in a browser.
package proxy

import (
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// prefix is the beginning of all paths. KubeVirt's.
const prefix = "/api/export.kubevirt.io/"

// target is what the path of a request names.
type target struct {
	namespace, name string
	// rest is the path at the exporter.
	rest string
}

// parse returns the target of a path, which is decoded. Paths with other spellings of a file, as with "..", are refused.
func parse(requested string) (target, bool) {
	rest, found := strings.CutPrefix(requested, prefix)
	if !found {
		return target{}, false
	}
	parts := strings.SplitN(rest, "/", 6)
	if len(parts) != 6 || parts[0] != "v1" && parts[0] != "v1beta1" || parts[1] != "namespaces" || parts[3] != "virtualmachineexports" {
		return target{}, false
	}
	t := target{namespace: parts[2], name: parts[4], rest: "/" + parts[5]}
	if len(validation.IsDNS1123Label(t.namespace)) > 0 || len(validation.IsDNS1123Subdomain(t.name)) > 0 {
		return target{}, false
	}
	clean := path.Clean(t.rest)
	if clean != "/" && strings.HasSuffix(t.rest, "/") {
		clean += "/"
	}
	return t, clean == t.rest && !strings.ContainsRune(t.rest, 0)
}
