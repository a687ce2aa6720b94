// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Bodies of the subresources under sev/, by which the owner of a guest on AMD SEV checks it before handing it secrets.

// SEVPlatformInfo is the response of sev/fetchcertchain: what identifies the node's processor.
// +kubebuilder:object:root=true
type SEVPlatformInfo struct {
	metav1.TypeMeta `json:",inline"`
	// pdh is the platform's Diffie-Hellman key, in base64.
	PDH string `json:"pdh,omitempty"`
	// certChain is the chain of certificates up to AMD's, in base64.
	CertChain string `json:"certChain,omitempty"`
}

// SEVMeasurementInfo is the response of sev/querylaunchmeasurement: what the processor measured of the guest.
// +kubebuilder:object:root=true
type SEVMeasurementInfo struct {
	metav1.TypeMeta `json:",inline"`
	// measurement is the measurement, in base64.
	Measurement string `json:"measurement,omitempty"`
	// apiMajor is the major version of the platform's firmware interface.
	APIMajor uint `json:"apiMajor,omitempty"`
	// apiMinor is the minor version of the platform's firmware interface.
	APIMinor uint `json:"apiMinor,omitempty"`
	// buildID is the build of the platform's firmware.
	BuildID uint `json:"buildID,omitempty"`
	// policy is the guest's policy, as bits.
	Policy uint `json:"policy,omitempty"`
	// loaderSHA is the SHA-256 of the guest's firmware.
	LoaderSHA string `json:"loaderSHA,omitempty"`
}

// SEVSessionOptions is the body of sev/setupsession: the owner's half of the key exchange.
type SEVSessionOptions struct {
	// session is the session, in base64.
	Session string `json:"session,omitempty"`
	// dhCert is the owner's Diffie-Hellman key, in base64.
	DHCert string `json:"dhCert,omitempty"`
}

// SEVSecretOptions is the body of sev/injectlaunchsecret.
type SEVSecretOptions struct {
	// header is what the processor needs to decrypt the secret, in base64.
	Header string `json:"header,omitempty"`
	// secret is the encrypted secret, in base64.
	Secret string `json:"secret,omitempty"`
}
