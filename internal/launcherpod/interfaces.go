// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// The names of the interfaces in a VM's Pod are KubeVirt's (pkg/network/namescheme), because CNI configurations and
// tools rely on them: the agent plans the interfaces, virt-broker creates them, the launcher recognizes them and the
// Pod's annotations refer to them.

// MigrationInterface is the Pod's interface on the network for migrations: MigrationInterfaceName of the API.
const MigrationInterface = "migration0"

const (
	// hashedPrefix is the prefix of the name of a secondary Pod interface.
	hashedPrefix = "pod"
	// hashedDigits is how many digits of the network's hash follow. A name has at most 15 bytes; "k6t-" and "-nic" need
	// four.
	hashedDigits      = 11
	tapPrefix         = "tap"
	placeholderSuffix = "-pod"
)

// SecondaryInterface returns the name of the Pod's interface on a network other than the Pod network.
func SecondaryInterface(network string) string {
	sum := sha256.Sum256([]byte(network))
	return hashedPrefix + hex.EncodeToString(sum[:])[:hashedDigits]
}

// IsSecondaryInterface reports whether a name is that of a Pod interface that SecondaryInterface returns.
func IsSecondaryInterface(name string) bool {
	digits, found := strings.CutPrefix(name, hashedPrefix)
	return found && len(digits) == hashedDigits && strings.Trim(digits, "0123456789abcdef") == ""
}

// Bridge returns the name of the bridge between a Pod interface and the guest's tap.
func Bridge(podInterface string) string { return BridgePrefix + stem(podInterface) }

// Displaced returns the new name of a Pod interface whose address the guest has.
func Displaced(podInterface string) string { return stem(podInterface) + DisplacedSuffix }

// Placeholder returns the name of the interface with the Pod's addresses before it is renamed to the Pod interface's
// name.
func Placeholder(podInterface string) string { return stem(podInterface) + placeholderSuffix }

// Tap returns the name of the guest's tap: tap0 for eth0.
func Tap(podInterface string) string {
	return tapPrefix + strings.TrimPrefix(stem(podInterface), "eth")
}

// InterfaceOfBridge returns the name of the Pod interface that belongs to a bridge. known reports whether the Pod has
// an interface with a name.
func InterfaceOfBridge(bridge string, known func(string) bool) (string, bool) {
	name, ok := strings.CutPrefix(bridge, BridgePrefix)
	if !ok || name == "" {
		return "", false
	}
	if !known(name) && known(hashedPrefix+name) {
		return hashedPrefix + name, true
	}
	return name, true
}

// stem removes the prefix of a hashed name, to make room for another one.
func stem(podInterface string) string {
	if len(podInterface) == len(hashedPrefix)+hashedDigits {
		return strings.TrimPrefix(podInterface, hashedPrefix)
	}
	return podInterface
}
