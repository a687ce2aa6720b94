// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package config

import (
	"fmt"
	"path/filepath"

	"github.com/vireo-project/vireo/hack/cluster/internal/plan"
)

const (
	// DriverName is the name of the CSI driver, which hack/cluster/csi defines.
	DriverName = "csi.vireo.local"
	// DriverController is the component that creates the CSI driver's volumes.
	DriverController = "csi-controller"
	// storageUser is the user of all sidecars.
	storageUser = "storage"

	nodeSocket         = "/var/lib/kubelet/plugins/" + DriverName + "/csi.sock"
	registrationSocket = "/var/lib/kubelet/plugins_registry/" + DriverName + "-reg.sock"
)

// hasDriver reports whether the cluster has the CSI driver, and not the provisioner.
func (f Facts) hasDriver() bool { return f.CSIDriver != "" }

// storage returns the components that create and delete volumes.
func (r renderer) storage() []Component {
	if !r.facts.hasDriver() {
		return []Component{r.provisioner()}
	}
	controller := r.host(DriverController, Probe{Socket: r.layout.CSISocket()}, "", "-pool="+r.layout.Volumes(),
		"-socket="+r.layout.CSISocket())
	controller.Command[0] = filepath.Join(r.facts.CSIDriver, "csi")
	return []Component{
		controller,
		r.sidecar("csi-provisioner", "--timeout=60s"),
		r.sidecar("csi-attacher", "--timeout=60s"),
		// A volume can be expanded while Pods use it, so the resizer need not watch Pods.
		r.sidecar("csi-resizer", "--timeout=60s", "--handle-volume-inuse-error=false"),
		r.sidecar("csi-snapshotter", "--timeout=60s"),
		r.snapshotController(),
	}
}

// sidecar returns a sidecar, which connects the CSI driver to the API server. Its delays and limits are for a small
// cluster, because tests wait for each volume.
func (r renderer) sidecar(name string, arguments ...string) Component {
	return r.host(name, Probe{}, r.facts.CSISidecars, append([]string{
		"--csi-address=" + r.layout.CSISocket(), "--kubeconfig=" + r.layout.Kubeconfig(storageUser),
		"--kube-api-qps=50", "--kube-api-burst=100", "--retry-interval-start=500ms", "--retry-interval-max=10s",
	}, arguments...)...)
}

// snapshotController returns the controller that binds snapshots to their contents. A cluster has one for all drivers.
func (r renderer) snapshotController() Component {
	return r.host("snapshot-controller", Probe{}, r.facts.CSISidecars,
		"--kubeconfig="+r.layout.Kubeconfig(storageUser),
		"--kube-api-qps=50", "--kube-api-burst=100", "--retry-interval-start=500ms", "--retry-interval-max=10s")
}

// nodeDriver returns the CSI driver's component of a node.
func (r renderer) nodeDriver(n plan.Node) Component {
	return r.nodeComponent(n, "csi", Probe{Socket: nodeSocket},
		filepath.Join(r.facts.CSIDriver, "csi"),
		"-pool="+r.layout.Volumes(), "-node="+n.Name, "-socket="+nodeSocket, "-registration="+registrationSocket)
}

// class returns the provisioner of the storage classes.
func (r renderer) class() string {
	if r.facts.hasDriver() {
		return DriverName
	}
	return ProvisionerName
}

// storageManifest returns the driver's objects. The sidecars' CustomResourceDefinitions must be applied before.
func (r renderer) storageManifest() string {
	if !r.facts.hasDriver() {
		return ""
	}
	return fmt.Sprintf(storageTemplate, DriverName, DriverName, DriverName, storageUser)
}

const storageTemplate = `---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: %s}
spec:
  attachRequired: true
  podInfoOnMount: false
  fsGroupPolicy: File
  volumeLifecycleModes: [Persistent]
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata:
  name: local
  annotations: {snapshot.storage.kubernetes.io/is-default-class: "true"}
driver: %s
deletionPolicy: Delete
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata:
  name: local
  annotations: {groupsnapshot.storage.kubernetes.io/is-default-class: "true"}
driver: %s
deletionPolicy: Delete
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "vireo:storage"}
rules:
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, update]
- apiGroups: [""]
  resources: [persistentvolumeclaims/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [list, watch, create, update, patch]
- apiGroups: [storage.k8s.io]
  resources: [storageclasses, csinodes, volumeattributesclasses]
  verbs: [get, list, watch]
- apiGroups: [storage.k8s.io]
  resources: [volumeattachments]
  verbs: [get, list, watch, patch]
- apiGroups: [storage.k8s.io]
  resources: [volumeattachments/status]
  verbs: [patch]
- apiGroups: [snapshot.storage.k8s.io]
  resources: [volumesnapshotclasses]
  verbs: [get, list, watch]
- apiGroups: [snapshot.storage.k8s.io]
  resources: [volumesnapshots, volumesnapshotcontents]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [snapshot.storage.k8s.io]
  resources: [volumesnapshots/status, volumesnapshotcontents/status]
  verbs: [update, patch]
- apiGroups: [groupsnapshot.storage.k8s.io]
  resources: [volumegroupsnapshotclasses]
  verbs: [get, list, watch]
- apiGroups: [groupsnapshot.storage.k8s.io]
  resources: [volumegroupsnapshots]
  verbs: [get, list, watch, update, patch]
- apiGroups: [groupsnapshot.storage.k8s.io]
  resources: [volumegroupsnapshotcontents]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [groupsnapshot.storage.k8s.io]
  resources: [volumegroupsnapshots/status, volumegroupsnapshotcontents/status]
  verbs: [update, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "vireo:storage"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "vireo:storage"}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: "vireo:%s"}
`
