// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// TLSConfiguration restricts TLS.
type TLSConfiguration struct {
	// minTLSVersion is the oldest version. Default: VersionTLS12.
	// +kubebuilder:validation:Enum=VersionTLS10;VersionTLS11;VersionTLS12;VersionTLS13
	MinTLSVersion TLSProtocolVersion `json:"minTLSVersion,omitempty"`
	// ciphers are cipher suites for TLS 1.2. Default: Go's.
	// +listType=set
	Ciphers []string `json:"ciphers,omitempty"`
}

// TLSProtocolVersion is a version of TLS.
type TLSProtocolVersion string

// Values of TLSProtocolVersion.
const (
	// VersionTLS10 is TLS 1.0.
	VersionTLS10 TLSProtocolVersion = "VersionTLS10"
	// VersionTLS11 is TLS 1.1.
	VersionTLS11 TLSProtocolVersion = "VersionTLS11"
	// VersionTLS12 is TLS 1.2.
	VersionTLS12 TLSProtocolVersion = "VersionTLS12"
	// VersionTLS13 is TLS 1.3.
	VersionTLS13 TLSProtocolVersion = "VersionTLS13"
)

// SeccompConfiguration is the seccomp profile of launcher Pods.
type SeccompConfiguration struct {
	// virtualMachineInstanceProfile is the profile.
	VirtualMachineInstanceProfile *VirtualMachineInstanceProfile `json:"virtualMachineInstanceProfile,omitempty"`
}

// VirtualMachineInstanceProfile is the seccomp profile of launcher Pods.
type VirtualMachineInstanceProfile struct {
	// customProfile is the profile to use instead of ours.
	CustomProfile *CustomProfile `json:"customProfile,omitempty"`
}

// CustomProfile is a seccomp profile. One member is set.
type CustomProfile struct {
	// localhostProfile is a file of the node.
	LocalhostProfile *string `json:"localhostProfile,omitempty"`
	// runtimeDefaultProfile uses the container runtime's.
	RuntimeDefaultProfile bool `json:"runtimeDefaultProfile,omitempty"`
}

// ConfidentialComputeConfiguration is for encrypted guests.
type ConfidentialComputeConfiguration struct {
	// tdx is for Intel TDX.
	// +nullable
	TDX *TDXConfiguration `json:"tdx,omitempty"`
}

// TDXConfiguration is for Intel TDX.
type TDXConfiguration struct {
	// attestation is for attestation.
	Attestation *TDXAttestationConfiguration `json:"attestation,omitempty"`
}

// TDXAttestationConfiguration is for attestation by Intel TDX.
type TDXAttestationConfiguration struct {
	// enforced refuses guests without it. Default: false.
	// +kubebuilder:default=false
	Enforced *bool `json:"enforced,omitempty"`
	// qgsSocketPath is the socket of the quote generation service.
	// +kubebuilder:default=/var/run/tdx-qgs/qgs.socket
	QgsSocketPath *string `json:"qgsSocketPath,omitempty"`
}

// ReloadableComponentConfiguration is how a component talks to the API server.
type ReloadableComponentConfiguration struct {
	// restClient is its client.
	RestClient *RESTClientConfiguration `json:"restClient,omitempty"`
}

// RESTClientConfiguration is a client of the API server.
type RESTClientConfiguration struct {
	// rateLimiter limits its requests.
	RateLimiter *RateLimiter `json:"rateLimiter,omitempty"`
}

// RateLimiter limits requests.
type RateLimiter struct {
	// tokenBucketRateLimiter limits them by a bucket of tokens.
	TokenBucketRateLimiter *TokenBucketRateLimiter `json:"tokenBucketRateLimiter,omitempty"`
}

// TokenBucketRateLimiter limits requests by a bucket of tokens.
type TokenBucketRateLimiter struct {
	// qps is the requests a second that the bucket is filled at.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=number
	QPS float32 `json:"qps"`
	// burst is the size of the bucket.
	Burst int `json:"burst"`
}
