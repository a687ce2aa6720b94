// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A tenant decides what annotations a claim has.
func TestClaimsInCache(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: "disk", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}, Annotations: map[string]string{
			corev1.LastAppliedConfigAnnotation: "{}", "user.example/storage.thick-provisioned": "true",
			"a.example/long": strings.Repeat("x", 200<<10),
		},
	}}
	for i := range 1000 {
		claim.Annotations[fmt.Sprintf("z.example/%d", i)] = "short"
	}
	for _, key := range readAnnotations {
		claim.Annotations[key] = "read"
	}
	for range 2 { // A cache may transform an object again.
		object, err := transformClaim(claim)
		if err != nil || object != any(claim) {
			t.Fatal(object, err)
		}
	}
	size := 0
	for key, value := range claim.Annotations {
		size += len(key) + len(value)
	}
	if size < maxClaimAnnotations/2 || size > maxClaimAnnotations+len(readAnnotations)*maxClaimAnnotation {
		t.Errorf("%d bytes of annotations are kept", size)
	}
	for _, key := range append([]string{"user.example/storage.thick-provisioned"}, readAnnotations...) {
		if claim.Annotations[key] == "" {
			t.Errorf("%s is not kept", key)
		}
	}
	if claim.Annotations[corev1.LastAppliedConfigAnnotation] != "" || claim.ManagedFields != nil {
		t.Errorf("%v are kept", claim.ObjectMeta)
	}
	for kind := range cacheOptions("kubevirt").ByObject {
		if _, is := kind.(*corev1.PersistentVolumeClaim); is {
			return
		}
	}
	t.Error("the cache does not use it")
}
