// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificatesigningrequest

import (
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

func TestLifetime(t *testing.T) {
	for _, test := range []struct {
		requested *int32
		want      time.Duration
	}{
		{nil, 24 * time.Hour},
		{ptr.To[int32](3600), time.Hour},
		{ptr.To[int32](3600 * 1000), 24 * time.Hour},
	} {
		csr := &certificatesv1.CertificateSigningRequest{
			Spec: certificatesv1.CertificateSigningRequestSpec{ExpirationSeconds: test.requested}}
		if got := lifetime(csr, clusterconfig.Default()); got != test.want {
			t.Errorf("%v seconds requested: %v, want %v", ptr.Deref(test.requested, 0), got, test.want)
		}
	}
}
