// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/vireo-project/vireo/internal/apiserver/subresource"
)

// groupResource is the resource in errors that concern no object.
var groupResource = schema.GroupResource{Group: subresource.GroupName}

func writeJSON(w http.ResponseWriter, code int, object any) {
	responsewriters.WriteRawJSON(code, object, w)
}
