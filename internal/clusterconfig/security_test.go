// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// handshake returns the state of a connection to a server, for a client with the given versions.
func handshake(t *testing.T, server *tls.Config, oldest, newest uint16) (tls.ConnectionState, error) {
	t.Helper()
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Server(far, server).HandshakeContext(t.Context())
		_ = far.Close()
	}()
	client := tls.Client(near, &tls.Config{MinVersion: oldest, MaxVersion: newest, InsecureSkipVerify: true})
	err := client.HandshakeContext(t.Context())
	_ = near.Close()
	<-done
	return client.ConnectionState(), err
}

func selfSignedCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Each handshake follows the current configuration, of a server whose TLS configuration was made once.
func TestHandshakesFollowTheConfiguration(t *testing.T) {
	store := NewStore()
	plain := &tls.Config{Certificates: []tls.Certificate{selfSignedCertificate(t)}}
	store.RestrictTLS(plain)
	chosen := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return plain, nil }}
	store.RestrictTLS(chosen)

	const suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
	for name, tc := range map[string]struct {
		tls    *v1.TLSConfiguration
		newest uint16
		works  bool
		suite  string
	}{
		"default":          {nil, tls.VersionTLS12, true, ""},
		"default, too old": {nil, tls.VersionTLS11, false, ""},
		"old version":      {&v1.TLSConfiguration{MinTLSVersion: v1.VersionTLS10}, tls.VersionTLS11, true, ""},
		"new version":      {&v1.TLSConfiguration{MinTLSVersion: v1.VersionTLS13}, tls.VersionTLS13, true, ""},
		"too old":          {&v1.TLSConfiguration{MinTLSVersion: v1.VersionTLS13}, tls.VersionTLS12, false, ""},
		"cipher":           {&v1.TLSConfiguration{MinTLSVersion: v1.VersionTLS12, Ciphers: []string{suite}}, tls.VersionTLS12, true, suite},
		"no common cipher": {&v1.TLSConfiguration{MinTLSVersion: v1.VersionTLS12, Ciphers: []string{"TLS_RSA_WITH_RC4_128_SHA"}}, tls.VersionTLS12, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if err := store.Set(kubeVirt(func(s *v1.KubeVirtSpec) { s.Configuration.TLSConfiguration = tc.tls })); err != nil {
				t.Fatal(err)
			}
			for server, config := range map[string]*tls.Config{"of its own": plain, "chosen by the client": chosen} {
				state, err := handshake(t, config, tls.VersionTLS10, tc.newest)
				if (err == nil) != tc.works || err == nil && tc.suite != "" && tls.CipherSuiteName(state.CipherSuite) != tc.suite {
					t.Errorf("configuration %s: %v, with %s", server, err, tls.CipherSuiteName(state.CipherSuite))
				}
			}
		})
	}
}

func TestSeccompProfileOfLaunchers(t *testing.T) {
	for name, tc := range map[string]struct {
		profile *v1.CustomProfile
		file    *string
	}{
		"runtime's":  {&v1.CustomProfile{RuntimeDefaultProfile: true}, nil},
		"KubeVirt's": {&v1.CustomProfile{LocalhostProfile: ptr.To("kubevirt/kubevirt.json")}, nil},
		"file":       {&v1.CustomProfile{LocalhostProfile: ptr.To("kubevirt/vm.json")}, ptr.To("kubevirt/vm.json")},
	} {
		got, err := FromKubeVirt(kubeVirt(seccomp(tc.profile)))
		if err != nil {
			t.Fatal(err)
		}
		profile := got.Pods().Seccomp
		if (profile != nil) != (tc.file != nil) || profile != nil && *profile.LocalhostProfile != *tc.file {
			t.Errorf("%s: %v", name, profile)
		}
	}
}
