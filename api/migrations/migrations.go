// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package migrations contains what all versions of the API group migrations.kubevirt.io share: its name and its
// resource.
package migrations

// GroupName is the name of the API group.
const GroupName = "migrations.kubevirt.io"

// Version is the one version of the group.
const Version = "v1alpha1"

// ResourceMigrationPolicies is the resource of MigrationPolicies.
const ResourceMigrationPolicies = "migrationpolicies"
