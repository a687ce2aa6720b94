// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

//go:build !unix

package ssh

import "golang.org/x/crypto/ssh"

// followSize does nothing: nothing tells here that the terminal changes its size.
func followSize(*ssh.Session, int) (stop func()) { return func() {} }
