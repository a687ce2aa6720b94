// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package layout names the files of a cluster on the machine.
package layout

import "path/filepath"

// Root is the directory of the host's only cluster. It is outside of clones, so
// that the record of what has to be removed survives the clone.
const Root = "/var/lib/vireo-cluster"

// Layout names files below a root.
type Layout struct{ Root string }

// Path joins names to the root.
func (l Layout) Path(names ...string) string {
	return filepath.Join(append([]string{l.Root}, names...)...)
}

// Record is the record of everything that was created.
func (l Layout) Record() string { return l.Path("record.json") }

// Lock is held by a command that changes the cluster.
func (l Layout) Lock() string { return l.Path("lock") }

// PKI is the path of a certificate or key.
func (l Layout) PKI(file string) string { return l.Path("pki", file) }

// Config is the path of a rendered configuration file.
func (l Layout) Config(file string) string { return l.Path("config", file) }

// Kubeconfig is the path of a component's kubeconfig.
func (l Layout) Kubeconfig(user string) string { return l.Config(user + ".kubeconfig") }

// Log is the log of a component. The name of a component has a slash only after the name of its node.
func (l Layout) Log(component string) string { return l.Path("log", component+".log") }

// AuditLog is the path of the API server's audit log.
func (l Layout) AuditLog() string { return l.Path("log", "audit.log") }

// Node is a file of a node.
func (l Layout) Node(node string, names ...string) string {
	return l.Path(append([]string{"nodes", node}, names...)...)
}

// Volumes is the directory of the volumes, of the provisioner or of the CSI driver.
func (l Layout) Volumes() string { return l.Path("volumes") }

// Pool is the file with the filesystem that is mounted on Volumes for the CSI driver.
func (l Layout) Pool() string { return l.Path("pool.xfs") }

// CSISocket is the socket of the CSI driver's controller.
func (l Layout) CSISocket() string { return l.Path("csi.sock") }

// Binary is a copy of one of the clone's programs, which must remain when the clone is deleted.
func (l Layout) Binary(name string) string { return l.Path("bin", name) }

// PauseArchive is the sandbox image.
func (l Layout) PauseArchive() string { return l.Path("images", "pause.tar") }

// NodeMount is a directory of a node that is mounted at a standard path inside the node.
type NodeMount struct {
	// Name is the directory's name below the directory of the node.
	Name string
	// Target is its path inside the node.
	Target string
}

// NodeMounts are the directories that must differ between two nodes of one machine.
// /run is not in the list: each node has a fresh tmpfs there.
func NodeMounts() []NodeMount {
	return []NodeMount{
		{"kubelet", "/var/lib/kubelet"},
		{"containerd", "/var/lib/containerd"},
		{"cni", "/var/lib/cni"},
		{"net.d", "/etc/cni/net.d"},
		{"pods-log", "/var/log/pods"},
		{"containers-log", "/var/log/containers"},
	}
}
