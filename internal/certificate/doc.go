// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package certificate has the certificates with which virt-api and the node agents know each other, and with which the API
// server knows virt-api.
//
// Each Role has an authority of its own, so that no certificate can stand for another role, whoever loses one. Keys of
// certificates are made by the processes that use them and stay in their memory; they ask for a certificate with a
// CertificateSigningRequest (Source), and virt-controller signs what Role.Judge allows. Keys of authorities are in Secrets
// that only virt-controller reads (Authority). What the processes trust is in one ConfigMap (Trust).
package certificate
