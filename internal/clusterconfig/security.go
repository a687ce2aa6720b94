// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"crypto/tls"
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// TLS restricts the versions and ciphers of the components' servers.
type TLS struct {
	// MinVersion is the oldest version, as in crypto/tls.
	MinVersion uint16
	// CipherSuites are the cipher suites up to TLS 1.2. Empty means Go's. The suites of TLS 1.3 cannot be chosen.
	CipherSuites []uint16
}

// tlsVersions are the versions that minTLSVersion names.
var tlsVersions = map[v1.TLSProtocolVersion]uint16{
	v1.VersionTLS10: tls.VersionTLS10, v1.VersionTLS11: tls.VersionTLS11,
	v1.VersionTLS12: tls.VersionTLS12, v1.VersionTLS13: tls.VersionTLS13,
}

// RestrictTLS makes a server's configuration follow the cluster's at each handshake. Call it last: later changes of the
// configuration have no effect on handshakes.
func (s *Store) RestrictTLS(config *tls.Config) {
	chosen := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		base := config
		if chosen != nil {
			other, err := chosen(hello)
			if err != nil {
				return nil, err
			}
			if other != nil {
				base = other
			}
		}
		restricted := base.Clone()
		restricted.GetConfigForClient = nil
		current := s.Current().TLS
		restricted.MinVersion, restricted.CipherSuites = current.MinVersion, current.CipherSuites
		return restricted, nil
	}
}

func (p *parser) tls(s *v1.TLSConfiguration, path *field.Path) {
	if s == nil {
		return
	}
	if s.MinTLSVersion != "" {
		version, known := tlsVersions[s.MinTLSVersion]
		if !known {
			p.errs = append(p.errs, field.NotSupported(path.Child("minTLSVersion"), s.MinTLSVersion,
				[]v1.TLSProtocolVersion{v1.VersionTLS10, v1.VersionTLS11, v1.VersionTLS12, v1.VersionTLS13}))
		} else {
			p.config.TLS.MinVersion = version
		}
	}
	p.ciphers(s, path.Child("ciphers"))
}

// ciphers resolves Go's names of cipher suites, those of insecure ones too, as in KubeVirt. One that is not known is
// left out.
func (p *parser) ciphers(s *v1.TLSConfiguration, path *field.Path) {
	if len(s.Ciphers) == 0 {
		return
	}
	if s.MinTLSVersion == "" || s.MinTLSVersion == v1.VersionTLS13 {
		p.errs = append(p.errs,
			field.Forbidden(path, "You cannot specify ciphers when spec.configuration.tlsConfiguration.minTLSVersion "+
				"is empty or VersionTLS13"))
		return
	}
	known := map[string]uint16{}
	for _, suite := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		known[suite.Name] = suite.ID
	}
	for i, name := range s.Ciphers {
		id, ok := known[name]
		if !ok {
			p.errs = append(p.errs,
				field.Invalid(path.Index(i), name, name+" is not a valid cipher. Use a name of Go's crypto/tls."))
			continue
		}
		p.config.TLS.CipherSuites = append(p.config.TLS.CipherSuites, id)
	}
}

func (p *parser) seccomp(s *v1.SeccompConfiguration, at *field.Path) {
	if s == nil || s.VirtualMachineInstanceProfile == nil {
		return
	}
	at = at.Child("virtualMachineInstanceProfile", "customProfile")
	profile := s.VirtualMachineInstanceProfile.CustomProfile
	switch {
	case profile == nil:
		p.errs = append(p.errs, field.Required(at, at.String()+" needs to be set"))
	case profile.LocalhostProfile != nil && profile.RuntimeDefaultProfile:
		p.errs = append(p.errs, field.Forbidden(at.Child("localhostProfile"), fmt.Sprintf("%s cannot be set when %s is set",
			at.Child("localhostProfile"), at.Child("runtimeDefaultProfile"))))
	case profile.LocalhostProfile != nil:
		p.localhostProfile(*profile.LocalhostProfile, at.Child("localhostProfile"))
	}
}

// KubeVirtSeccompProfile is a file that KubeVirt creates on every node, and Vireo does not. It permits what the
// container runtime's profile does, and userfaultfd, for which launcher Pods have a device. Source: kubevirt/kubevirt
// pkg/virt-handler/seccomp.
const KubeVirtSeccompProfile = "kubevirt/kubevirt.json"

// localhostProfile uses a file of the nodes, but not KubeVirt's, without which no launcher could start. The API server
// would refuse each launcher Pod with a path that leaves the kubelet's directory of profiles.
func (p *parser) localhostProfile(file string, at *field.Path) {
	if file == "" || path.IsAbs(file) || strings.Contains("/"+file+"/", "/../") {
		p.errs = append(p.errs,
			field.Invalid(at, file, "must be a path below the kubelet's directory of seccomp profiles, without '..'"))
		return
	}
	if file == KubeVirtSeccompProfile {
		return
	}
	p.config.LauncherSeccomp = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &file}
}
