// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package operator knows what the KubeVirt object installs: it renders the embedded manifests for a
// configuration, applies them by server-side apply with one field manager, prunes what is no longer wanted
// and says how far a rollout is. It decides nothing; internal/controller does.
package operator
