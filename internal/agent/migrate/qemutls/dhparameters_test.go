// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package qemutls_test

import (
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"testing"

	"github.com/vireo-project/vireo/internal/agent/migrate/qemutls"
)

// RFC 7919, appendix A: p = 2^b - 2^(b-64) + (floor(2^(b-130) e) + X) 2^64 - 1, where X is the least for which p and
// (p-1)/2 are prime.
func TestDHParametersAreStandard(t *testing.T) {
	const bits, x, spare = 3072, 2625351, 64
	power := func(n uint) *big.Int { return new(big.Int).Lsh(big.NewInt(1), n) }
	e, term := new(big.Int), power(bits-130+spare)
	for k := int64(1); term.Sign() > 0; k++ {
		e.Add(e, term)
		term.Div(term, big.NewInt(k))
	}
	middle := new(big.Int).Add(e.Rsh(e, spare), big.NewInt(x))
	want := new(big.Int).Sub(power(bits), power(bits-64))
	want.Add(want, middle.Lsh(middle, 64)).Sub(want, big.NewInt(1))

	block, rest := pem.Decode([]byte(qemutls.DHParameters))
	if block == nil || block.Type != "DH PARAMETERS" || len(rest) > 0 {
		t.Fatalf("not one block of DH parameters: %+v", block)
	}
	got := struct{ P, G *big.Int }{}
	if rest, err := asn1.Unmarshal(block.Bytes, &got); err != nil || len(rest) > 0 {
		t.Fatal(err, rest)
	}
	if got.P.Cmp(want) != 0 || got.G.Int64() != 2 {
		t.Errorf("p = %x, g = %d", got.P, got.G)
	}
}
