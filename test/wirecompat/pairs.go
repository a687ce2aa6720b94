// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"reflect"

	upstreamv1 "kubevirt.io/api/core/v1"

	kubevirtv1 "github.com/vireo-project/vireo/api/v1"
)

// pair is a type of KubeVirt's and the type of ours that has to look the same on the wire.
type pair struct {
	// upstream and ours are the zero values of the two types.
	upstream, ours any
	// crd is the CRD's name under config/crd/bases and the version in it; empty for a body of a request.
	crd, version string
}

// name is the type's name with its package, as in kubevirt.io/api/core/v1.VirtualMachine without the module.
func (p pair) name() string {
	t := reflect.TypeOf(p.upstream)
	return p.crdGroupVersion() + t.Name()
}

func (p pair) crdGroupVersion() string {
	path := reflect.TypeOf(p.upstream).PkgPath()
	return path[len("kubevirt.io/api/"):] + "."
}

// kind is a pair that has a CRD.
func kind(upstream, ours any, crd, version string) pair {
	return pair{upstream: upstream, ours: ours, crd: crd, version: version}
}

// pairs is every type that stands on the wire on its own. Group plugin.kubevirt.io is left out: it is an alpha of
// KubeVirt's own extension mechanism.
var pairs = []pair{
	// kubevirt.io
	kind(upstreamv1.VirtualMachine{}, kubevirtv1.VirtualMachine{}, "kubevirt.io_virtualmachines", "v1"),
	kind(upstreamv1.VirtualMachineInstance{}, kubevirtv1.VirtualMachineInstance{}, "kubevirt.io_virtualmachineinstances", "v1"),
	kind(upstreamv1.KubeVirt{}, kubevirtv1.KubeVirt{}, "kubevirt.io_kubevirts", "v1"),
}
