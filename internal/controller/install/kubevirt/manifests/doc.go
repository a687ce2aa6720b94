// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package manifests installs what the KubeVirt object specifies: it renders the embedded manifests for a
// configuration, applies them by server-side apply with one field manager, prunes what is no longer wanted
// and reports the progress of a rollout. internal/controller/install/kubevirt decides when.
package manifests
