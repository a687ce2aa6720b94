// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// filesMode makes files readable for the owner and the launcher's group only.
const filesMode int32 = 0o440

// tokenSeconds is the lifetime of the guest's token. The guest gets a copy, which is not renewed. With exactly this
// value the API server extends the lifetime to a year, for clients that do not renew their tokens, unless the cluster
// disables that. Source: kubernetes pkg/serviceaccount/claims.go, WarnOnlyBoundTokenExpirationPeriod.
const tokenSeconds int64 = 60*60 + 7

// rootCAConfigMap is the ConfigMap with the API server's CA in each namespace.
// Source: kubernetes pkg/controller/certificates/rootcacertpublisher.
const rootCAConfigMap = "kube-root-ca.crt"

// files mounts a volume of files, from which the agent makes a disk for the guest. Because the kubelet reads Secrets,
// requests tokens and waits for missing objects, no component of Vireo needs the right to read Secrets.
func (s *storage) files(name, dir string, source corev1.VolumeSource) {
	s.volumes = append(s.volumes, corev1.Volume{Name: name, VolumeSource: source})
	s.mounts = append(s.mounts, corev1.VolumeMount{Name: name, MountPath: dir, ReadOnly: true})
}

// filesSource returns the source of a volume of files, or nil for other volumes.
func filesSource(v *v1.Volume) *corev1.VolumeSource {
	switch {
	case v.ConfigMap != nil:
		return &corev1.VolumeSource{ConfigMap: configMapSource(v.ConfigMap.Name, v.ConfigMap.Optional)}
	case v.Secret != nil:
		return &corev1.VolumeSource{Secret: secretSource(v.Secret.SecretName, v.Secret.Optional)}
	case v.Sysprep != nil && v.Sysprep.ConfigMap != nil:
		return &corev1.VolumeSource{ConfigMap: configMapSource(v.Sysprep.ConfigMap.Name, nil)}
	case v.Sysprep != nil && v.Sysprep.Secret != nil:
		return &corev1.VolumeSource{Secret: secretSource(v.Sysprep.Secret.Name, nil)}
	case v.DownwardAPI != nil:
		return &corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
			Items: v.DownwardAPI.Fields, DefaultMode: ptr.To(filesMode),
		}}
	case v.ServiceAccount != nil:
		return &corev1.VolumeSource{Projected: tokenSource()}
	default:
		return nil
	}
}

func configMapSource(name string, optional *bool) *corev1.ConfigMapVolumeSource {
	return &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: optional, DefaultMode: ptr.To(filesMode),
	}
}

func secretSource(name string, optional *bool) *corev1.SecretVolumeSource {
	return &corev1.SecretVolumeSource{SecretName: name, Optional: optional, DefaultMode: ptr.To(filesMode)}
}

// tokenSource returns the volume that Kubernetes mounts into a Pod for its service account. It is for the guest; the
// Pod has no token.
func tokenSource() *corev1.ProjectedVolumeSource {
	return &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To(filesMode),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To(tokenSeconds)}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: rootCAConfigMap},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
			}}}},
		},
	}
}

// serviceAccount returns the Pod's service account: the one of the spec, or of the volume with a token, which must be
// the same.
func serviceAccount(vmi *v1.VirtualMachineInstance) (string, error) {
	name := vmi.Spec.ServiceAccountName
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		if v.ServiceAccount == nil {
			continue
		}
		wanted := v.ServiceAccount.ServiceAccountName
		if name != "" && name != wanted {
			return "", fmt.Errorf(
				"volume %s: the guest cannot get a token of service account %s because the Pod has %s: name the same one, "+
					"or leave spec.serviceAccountName out", v.Name, wanted, name)
		}
		name = wanted
	}
	return name, nil
}

// credentialSecrets returns the names of the Secrets with keys and passwords for the guest, without duplicates.
func credentialSecrets(vmi *v1.VirtualMachineInstance) []string {
	var names []string
	for i := range vmi.Spec.AccessCredentials {
		if name := vmi.Spec.AccessCredentials[i].SecretName(); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
