// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"crypto/sha256"
	"encoding/binary"

	"k8s.io/apimachinery/pkg/types"
)

// The API server makes a name from generateName by appending this number of characters of this alphabet to a prefix of
// at most this length. Source: k8s.io/apiserver pkg/storage/names, k8s.io/apimachinery pkg/util/rand.
const (
	SuffixLength = 5
	PrefixLength = 63 - SuffixLength
	alphabet     = "bcdfghjklmnpqrstvwxz2456789"
)

// Suffix returns the name suffix with the given index in the sequence that follows from uid. A name with it has the
// format of generateName, and is deterministic: two reconciliations of the same state create an object of the same
// name, so the API server accepts only one of them.
func Suffix(uid types.UID, index uint64) string {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(uid), index))
	number := binary.BigEndian.Uint64(sum[:])
	out := make([]byte, SuffixLength)
	for i := range out {
		out[i] = alphabet[number%uint64(len(alphabet))]
		number /= uint64(len(alphabet))
	}
	return string(out)
}
