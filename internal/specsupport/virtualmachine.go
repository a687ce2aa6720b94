// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package specsupport

// VMFields are the unimplemented fields of a VirtualMachine's spec outside its template.
var VMFields = []Field{
	{"runStrategy", []string{"WaitAsReceiver"}, Refuse, "migration between clusters is not implemented yet: use another strategy"},
}
