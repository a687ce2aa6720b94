// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BackupOptions is the body of a request to a VMI's subresource backup, by which virt-controller drives a backup of the
// running guest.
type BackupOptions struct {
	// backupName names the VirtualMachineBackup.
	BackupName string `json:"backupName,omitempty"`
	// cmd is Start, Abort or Export.
	Cmd BackupCmd `json:"cmd,omitempty"`
	// mode is Push or Pull.
	Mode BackupMode `json:"mode,omitempty"`
	// backupStartTime is when the backup started; the checkpoint is named after it.
	BackupStartTime *metav1.Time `json:"backupStartTime,omitempty"`
	// incremental names the checkpoint from which to start. Default: all of the data.
	Incremental *string `json:"incremental,omitempty"`
	// targetPath is the directory of the claim in the launcher Pod.
	TargetPath *string `json:"targetPath,omitempty"`
	// skipQuiesce leaves the guest's file systems as they are. Default: false.
	SkipQuiesce bool `json:"skipQuiesce,omitempty"`
	// exportServerAddr is the address of the server through which a backup is pulled, as host and port.
	ExportServerAddr *string `json:"exportServerAddr,omitempty"`
	// exportServerName is the name that the server's certificate is for.
	ExportServerName *string `json:"exportServerName,omitempty"`
	// backupKey is the key of the client's certificate, as PEM.
	BackupKey *string `json:"backupKey,omitempty"`
	// backupCert is the client's certificate, as PEM.
	BackupCert *string `json:"backupCert,omitempty"`
	// caCert is the certificate by which the server's is checked, as PEM.
	CACert *string `json:"caCert,omitempty"`
}

// BackupCmd is what to do about a backup.
type BackupCmd string

// Values of BackupCmd.
const (
	// Start starts it.
	Start BackupCmd = "Start"
	// Abort aborts it.
	Abort BackupCmd = "Abort"
	// Export connects the guest's disks to the server through which it is pulled.
	Export BackupCmd = "Export"
)
