// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package naming makes names that look as if the API server had made them from generateName, and yet follow from what they are for:
// whoever looks at the same state asks for the same object, and the API server makes it once.
package naming

import (
	"crypto/sha256"
	"encoding/binary"

	"k8s.io/apimachinery/pkg/types"
)

// How the API server makes a name from generateName: as many characters of this alphabet after a prefix of at most that
// length. Source: k8s.io/apiserver pkg/storage/names, k8s.io/apimachinery pkg/util/rand.
const (
	SuffixLength = 5
	PrefixLength = 63 - SuffixLength
	alphabet     = "bcdfghjklmnpqrstvwxz2456789"
)

// Suffix is the end of the name at one place of the sequence of an object.
func Suffix(uid types.UID, place uint64) string {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(uid), place))
	number := binary.BigEndian.Uint64(sum[:])
	out := make([]byte, SuffixLength)
	for i := range out {
		out[i] = alphabet[number%uint64(len(alphabet))]
		number /= uint64(len(alphabet))
	}
	return string(out)
}
