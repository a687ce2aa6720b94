// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

type TLSConfiguration struct {
	// +kubebuilder:validation:Enum=VersionTLS10;VersionTLS11;VersionTLS12;VersionTLS13
	MinTLSVersion TLSProtocolVersion `json:"minTLSVersion,omitempty"`
	// +listType=set
	Ciphers []string `json:"ciphers,omitempty"`
}

type TLSProtocolVersion string

// Values of TLSProtocolVersion.
const (
	VersionTLS10 TLSProtocolVersion = "VersionTLS10"
	VersionTLS11 TLSProtocolVersion = "VersionTLS11"
	VersionTLS12 TLSProtocolVersion = "VersionTLS12"
	VersionTLS13 TLSProtocolVersion = "VersionTLS13"
)

type SeccompConfiguration struct {
	VirtualMachineInstanceProfile *VirtualMachineInstanceProfile `json:"virtualMachineInstanceProfile,omitempty"`
}

type VirtualMachineInstanceProfile struct {
	CustomProfile *CustomProfile `json:"customProfile,omitempty"`
}

type CustomProfile struct {
	LocalhostProfile      *string `json:"localhostProfile,omitempty"`
	RuntimeDefaultProfile bool    `json:"runtimeDefaultProfile,omitempty"`
}

type ConfidentialComputeConfiguration struct {
	// +nullable
	TDX *TDXConfiguration `json:"tdx,omitempty"`
}

type TDXConfiguration struct {
	Attestation *TDXAttestationConfiguration `json:"attestation,omitempty"`
}

type TDXAttestationConfiguration struct {
	// +kubebuilder:default=false
	Enforced *bool `json:"enforced,omitempty"`
	// +kubebuilder:default=/var/run/tdx-qgs/qgs.socket
	QgsSocketPath *string `json:"qgsSocketPath,omitempty"`
}

type ReloadableComponentConfiguration struct {
	RestClient *RESTClientConfiguration `json:"restClient,omitempty"`
}

type RESTClientConfiguration struct {
	RateLimiter *RateLimiter `json:"rateLimiter,omitempty"`
}

type RateLimiter struct {
	TokenBucketRateLimiter *TokenBucketRateLimiter `json:"tokenBucketRateLimiter,omitempty"`
}

type TokenBucketRateLimiter struct {
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=number
	QPS   float32 `json:"qps"`
	Burst int     `json:"burst"`
}
