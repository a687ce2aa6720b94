// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package certificate issues and verifies the certificates with which virt-api and the node agents authenticate each other, and
// with which virt-api authenticates to the API server.
//
// Each Role has a CA of its own, so that a stolen certificate or CA key is useless for other roles. Processes generate their
// private keys and keep them in memory; they request certificates with CertificateSigningRequests (Source), and virt-controller
// signs those that Role.Validate accepts. The keys of CAs are in Secrets that only virt-controller reads (Authority). The
// certificates of all CAs are in one ConfigMap (Trust).
package certificate
