// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package specsupport

// MigrationFields are the unimplemented fields of a VirtualMachineInstanceMigration's spec. Admission accepts them as
// KubeVirt's does.
var MigrationFields = []Field{
	{"sendTo", nil, Fail, "migration between namespaces or clusters is not implemented yet: leave it out"},
	{"receive", nil, Fail, "migration between namespaces or clusters is not implemented yet: leave it out"},
}
