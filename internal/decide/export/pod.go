// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package export

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/memorylimit"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
)

const (
	// ServiceLabel selects the Pod of an export. KubeVirt's.
	ServiceLabel = "kubevirt.io.virt-export-service"
	// ContentAnnotation of the Pod contains what it serves. The kubelet makes it available to the exporter as a file,
	// and updates the file.
	ContentAnnotation = "export.vireo.io/content"
	// CertificateEndAnnotation of the Pod contains the time at which its certificate expires.
	CertificateEndAnnotation = "export.vireo.io/certificate-end"
	// ImageAnnotation of the Pod is "true" if its exporter computes the digests of an OCI image when it starts. It
	// never changes.
	ImageAnnotation = "export.vireo.io/oci"
	// exporterUser is QEMU's user and group, who owns the disks of VMs. KubeVirt's.
	exporterUser = 107
	// grace is the Pod's grace period: how long downloads may continue after the deletion of an export.
	grace = 30
	// certificateMargin is how long the certificate is valid after the export has expired.
	certificateMargin = 5 * time.Minute
	// renewal is how long before the expiry of its certificate a Pod is replaced.
	renewal = 10 * time.Minute
	// maxDeadline is the maximum deadline of a Pod in seconds. Source: k8s.io/kubernetes pkg/apis/core/validation,
	// ValidatePodSpec.
	maxDeadline = math.MaxInt32
)

// Container is the name of the exporter's container. KubeVirt's.
const Container = "exporter"

// Names of volumes of the Pod.
const (
	certificateVolume = "certificates"
	tokenVolume       = "token"
	contentVolume     = "content"
)

// service returns the export's Service.
func (o *Observed) service() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: o.meta(),
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{ServiceLabel: o.labelValue()},
			Ports: []corev1.ServicePort{{
				Name: "export", Protocol: corev1.ProtocolTCP, Port: content.ServicePort, TargetPort: intstr.FromInt32(content.Port),
			}},
		},
	}
}

// meta returns the metadata that the Service and the Pod share. Both get the labels and annotations of the export, as
// in KubeVirt, except for those of KubeVirt's components, because Pods with these are trusted.
func (o *Observed) meta() metav1.ObjectMeta {
	meta := metav1.ObjectMeta{
		Namespace: o.Export.Namespace, Name: content.ServiceName(o.Export.Name),
		OwnerReferences: []metav1.OwnerReference{ownerRef(o.Export)},
		Labels:          map[string]string{}, Annotations: map[string]string{},
	}
	for key, value := range o.Export.Labels {
		if !reserved(key) {
			meta.Labels[key] = value
		}
	}
	for key, value := range o.Export.Annotations {
		if !reserved(key) && key != corev1.LastAppliedConfigAnnotation {
			meta.Annotations[key] = value
		}
	}
	meta.Labels[v1.AppLabel] = exportv1.App
	return meta
}

// labelValue returns the value of ServiceLabel. KubeVirt's is the name of the export, which may be too long.
func (o *Observed) labelValue() string {
	if len(o.Export.Name) <= 63 {
		return o.Export.Name
	}
	return content.ServiceName(o.Export.Name)
}

// CertificateEnd returns when the certificate of a Pod that is created now expires: later than the export, but not
// later than the CA.
func (o *Observed) CertificateEnd() time.Time {
	end := Expiry(o.Export).Add(certificateMargin)
	if o.Config.CAEnd.Before(end) {
		end = o.Config.CAEnd
	}
	return end.UTC().Truncate(time.Second)
}

// CertificateSecret returns the name of the Secret of a certificate. virt-controller reads no Secrets of tenants, and
// identifies them by name.
func CertificateSecret(vmExport *exportv1.VirtualMachineExport, end time.Time) string {
	sum := sha256.Sum256([]byte(string(vmExport.UID) + "/" + end.Format(time.RFC3339)))
	return "secret-" + hex.EncodeToString(sum[:])[:20]
}

// pod returns the exporter's Pod. It complies with the Pod security standard restricted.
func (o *Observed) pod(s *source, served []byte) *corev1.Pod {
	token, _ := TokenName(o.Export)
	end := o.CertificateEnd()
	pod := &corev1.Pod{
		ObjectMeta: o.meta(),
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To[int64](grace),
			// If virt-controller does not run, the kubelet stops the Pod when the export has expired.
			ActiveDeadlineSeconds: ptr.To(min(max(1, int64(Expiry(o.Export).Sub(o.Now)/time.Second)), maxDeadline)),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](exporterUser),
				RunAsGroup: ptr.To[int64](exporterUser), FSGroup: ptr.To[int64](exporterUser),
				FSGroupChangePolicy: ptr.To(corev1.FSGroupChangeOnRootMismatch),
				SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{o.exporter()},
			Volumes: []corev1.Volume{
				{Name: certificateVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: CertificateSecret(o.Export, end)}}},
				{Name: tokenVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
					SecretName: token, Items: []corev1.KeyToPath{{Key: content.TokenKey, Path: content.TokenKey}},
				}}},
				{Name: contentVolume, VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{
					Path: content.ContentFile,
					FieldRef: &corev1.ObjectFieldSelector{FieldPath: fmt.Sprintf("metadata.annotations['%s']",
						ContentAnnotation)},
				}}}}},
			},
		},
	}
	pod.Labels[ServiceLabel] = o.labelValue()
	pod.Annotations[ContentAnnotation], pod.Annotations[CertificateEndAnnotation] = string(served),
		end.Format(time.RFC3339)
	pod.Annotations[ImageAnnotation] = strconv.FormatBool(o.hasImage(s))
	if s.backup != nil {
		pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{
			Name: "agent", Protocol: corev1.ProtocolTCP, ContainerPort: content.AgentPort,
		})
		pod.Spec.Affinity = nearGuest(o.Guest)
	}
	for i := range s.volumes {
		mount(&pod.Spec, fmt.Sprintf("volume-%d", i), &s.volumes[i])
	}
	return pod
}

// nearGuest prefers the guest's node, from which the exporter gets all that it serves. The term is KubeVirt's, with the
// label that no other guest has.
func nearGuest(guest *v1.VirtualMachineInstance) *corev1.Affinity {
	return &corev1.Affinity{
		PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
			Weight: 100,
			PodAffinityTerm: corev1.PodAffinityTerm{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{
					v1.AppLabel: launcherpod.AppLabelValue, v1.DeprecatedVirtualMachineNameLabel: podspec.Hostname(guest),
					v1.CreatedByLabel: string(guest.UID),
				}},
				TopologyKey: corev1.LabelHostname,
			},
		}}}}
}

func (o *Observed) exporter() corev1.Container {
	return corev1.Container{
		Name: Container, Image: o.Config.Image, ImagePullPolicy: o.Config.PullPolicy,
		Args:  []string{"--v", strconv.FormatUint(uint64(o.Config.Verbosity), 10)},
		Ports: []corev1.ContainerPort{{Name: "export", Protocol: corev1.ProtocolTCP, ContainerPort: content.Port}},
		Env: []corev1.EnvVar{{Name: memorylimit.Env, ValueFrom: &corev1.EnvVarSource{
			ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: Container, Resource: "limits.memory"},
		}}},
		Resources: o.resources(),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Scheme: corev1.URISchemeHTTPS, Port: intstr.FromInt32(content.Port), Path: content.ReadinessPath,
			}},
			PeriodSeconds: 2, TimeoutSeconds: 2,
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		VolumeMounts: []corev1.VolumeMount{
			{Name: certificateVolume, MountPath: content.CertificateDirectory, ReadOnly: true},
			{Name: tokenVolume, MountPath: content.TokenDirectory, ReadOnly: true},
			{Name: contentVolume, MountPath: content.ContentDirectory, ReadOnly: true},
		},
	}
}

// resources returns the exporter's requests and limits: KubeVirt's values, unless the configuration has others. The
// page cache of the files also counts as memory, but the kernel reclaims it.
func (o *Observed) resources() corev1.ResourceRequirements {
	out := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"),
			corev1.ResourceMemory: resource.MustParse("200Mi")},
		Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"),
			corev1.ResourceMemory: resource.MustParse("1Gi")},
	}
	override(out.Requests, o.Config.Resources.Requests)
	override(out.Limits, o.Config.Resources.Limits)
	for name, limit := range out.Limits {
		// A limit that is lower than the default request lowers that.
		if request, requested := out.Requests[name]; requested && request.Cmp(limit) > 0 {
			out.Requests[name] = limit
		}
	}
	return out
}

// override replaces the values that others have. As in KubeVirt, zero means the default.
func override(values, others corev1.ResourceList) {
	for name, value := range others {
		if !value.IsZero() {
			values[name] = value
		}
	}
}

func mount(spec *corev1.PodSpec, name string, v *volume) {
	// A device has no mount that could be read-only. For a file system, ReadOnly is set on the mount only: fsGroup does
	// not apply to a volume that is itself read-only.
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.claim.Name, ReadOnly: v.Block},
	}})
	c := &spec.Containers[0]
	if v.Block {
		c.VolumeDevices = append(c.VolumeDevices, corev1.VolumeDevice{Name: name, DevicePath: v.Mount()})
		return
	}
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: v.Mount(), ReadOnly: true})
}
