// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package podiface names the interfaces in a VM's Pod: the agent makes them, the launcher recognizes them and
// the Pod's annotations refer to them. The names are KubeVirt's (pkg/network/namescheme), because CNI
// configuration and tools know them.
package podiface

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// hashedPrefix starts the name of a secondary Pod interface.
	hashedPrefix = "pod"
	// hashedDigits of the network's hash follow. A name may have 15 bytes; "k6t-" and "-nic" need four.
	hashedDigits = 11
	tapPrefix    = "tap"
	keeperSuffix = "-pod"
)

// Secondary is the name of the Pod's interface on a network that is not the Pod's own.
func Secondary(network string) string {
	sum := sha256.Sum256([]byte(network))
	return hashedPrefix + hex.EncodeToString(sum[:])[:hashedDigits]
}

// Bridge is the bridge between a Pod interface and the guest's tap.
func Bridge(podInterface string) string { return launcherpod.BridgePrefix + stem(podInterface) }

// Displaced is the new name of a Pod interface whose address moved into the guest.
func Displaced(podInterface string) string { return stem(podInterface) + launcherpod.DisplacedSuffix }

// Keeper is the name that the interface that keeps the Pod's address has until it takes the Pod interface's name.
func Keeper(podInterface string) string { return stem(podInterface) + keeperSuffix }

// Tap is the guest's tap: tap0 for eth0.
func Tap(podInterface string) string {
	return tapPrefix + strings.TrimPrefix(stem(podInterface), "eth")
}

// OfBridge is the Pod interface that a bridge stands for. known says whether the Pod has an interface of a name.
func OfBridge(bridge string, known func(string) bool) (string, bool) {
	name, ok := strings.CutPrefix(bridge, launcherpod.BridgePrefix)
	if !ok || name == "" {
		return "", false
	}
	if !known(name) && known(hashedPrefix+name) {
		return hashedPrefix + name, true
	}
	return name, true
}

// stem leaves out the prefix of a hashed name, so that another one fits.
func stem(podInterface string) string {
	if len(podInterface) == len(hashedPrefix)+hashedDigits {
		return strings.TrimPrefix(podInterface, hashedPrefix)
	}
	return podInterface
}
