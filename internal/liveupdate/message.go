// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveupdate

import (
	"fmt"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// specNeedsRestart is how the message of the condition RestartRequired begins. KubeVirt's text.
const specNeedsRestart = "a non-live-updatable field was changed in the template spec"

const (
	// maxFields is how many fields a message names.
	maxFields = 8
	// maxName is the length of the name of an element in a path.
	maxName = 63
)

// Message returns the message of the condition RestartRequired for changed fields, or empty if there are none.
func Message(changed []string) string { return Naming(specNeedsRestart, changed) }

// Naming appends the names of changed fields to a text. It returns an empty text if there are none.
func Naming(text string, changed []string) string {
	if len(changed) == 0 {
		return ""
	}
	if more := len(changed) - maxFields; more > 0 {
		changed = append(changed[:maxFields:maxFields], fmt.Sprintf("and %d more", more))
	}
	return text + ": " + strings.Join(changed, ", ")
}

// WithReason appends why a changed field cannot take effect at once.
func WithReason(message, reason string) string { return message + "; " + reason }

// FieldsIn returns the fields that a message of the condition RestartRequired names.
func FieldsIn(message string) []string {
	var fields []string
	message, _, _ = strings.Cut(message, "; ")
	for field := range strings.SplitSeq(message[strings.LastIndex(message, ": ")+1:], ",") {
		field = strings.TrimSpace(field)
		if EntryOf(field) != nil {
			fields = append(fields, field)
		}
	}
	return fields
}

// ClaimFields returns the fields with the names of claims of some volumes.
func ClaimFields(volumes []v1.Volume, changed func(name string) bool) []string {
	var fields []string
	for i := range volumes {
		switch volume := &volumes[i]; {
		case !changed(volume.Name):
		case volume.DataVolume != nil:
			fields = append(fields, "volumes["+printable(volume.Name)+"].dataVolume.name")
		default:
			fields = append(fields, "volumes["+printable(volume.Name)+"].persistentVolumeClaim.claimName")
		}
	}
	return fields
}

// printable returns the name of an element as part of a path. Names are checked at admission; those of objects from before may have any
// characters.
func printable(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < ' ' || strings.ContainsRune("[],\u007f", r) {
			return '?'
		}
		return r
	}, name)
	if len(name) > maxName {
		name = strings.ToValidUTF8(name[:maxName], "") + "…"
	}
	return name
}
