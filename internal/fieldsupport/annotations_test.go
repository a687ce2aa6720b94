// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package fieldsupport

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestInAnnotations(t *testing.T) {
	found := InAnnotations(field.NewPath("metadata"), map[string]string{
		"team": "blue", v1.IgnitionAnnotation: "{}", HookSidecarAnnotation: "",
	})
	expectPrefixes(t, Sentences(found), []string{"metadata.annotations[kubevirt.io/ignitiondata] keeps the VM from starting: "})
}
