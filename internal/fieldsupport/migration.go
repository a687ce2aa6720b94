// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package fieldsupport

// Migration is about the spec of a VirtualMachineInstanceMigration. KubeVirt takes these fields, and so do we.
var Migration = []Field{
	{"sendTo", nil, Fail, "migration between namespaces or clusters is not implemented yet: leave it out"},
	{"receive", nil, Fail, "migration between namespaces or clusters is not implemented yet: leave it out"},
}
