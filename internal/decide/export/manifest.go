// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package export

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/internal/exporter/content"
)

// content returns what the exporter serves, as JSON. problem is why it has no manifests although it should have some.
func (o *Observed) content(s *source) (raw []byte, problem string, err error) {
	c := &content.Content{Export: o.Export.Name}
	for i := range s.volumes {
		c.Volumes = append(c.Volumes, s.volumes[i].Volume)
	}
	c.Backup = s.backup
	if o.hasManifests(s) {
		if c.Manifests, err = o.manifests(s); err != nil {
			return nil, "", err
		}
		c.OCI = o.Config.OCI
	}
	if raw, err = json.Marshal(c); err != nil {
		return nil, "", fmt.Errorf("write the content of VirtualMachineExport %s: %w", o.Export.Name, err)
	}
	if len(raw) <= content.MaxSize || c.Manifests == nil {
		return raw, o.Problem, nil
	}
	c.Manifests, c.OCI, s.vm = nil, false, nil
	raw, err = json.Marshal(c)
	return raw, fmt.Sprintf("The VM is too large for a manifest: at most %d bytes are possible", content.MaxSize), err
}

// hasManifests reports whether the export has manifests from which the VM can be created.
func (o *Observed) hasManifests(s *source) bool {
	return s.vm != nil && s.vm.Spec.Template != nil && o.Problem == ""
}

// hasImage reports whether the export is also an OCI image.
func (o *Observed) hasImage(s *source) bool { return o.Config.OCI && o.hasManifests(s) }

// manifests returns the manifests of the exported VM. For a snapshot, this is the VM in the snapshot.
func (o *Observed) manifests(s *source) (*content.Manifests, error) {
	exported := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: s.vm.Name, Labels: s.vm.Labels,
		Annotations: map[string]string{}}, Spec: *s.vm.Spec.DeepCopy()}
	for key, value := range s.vm.Annotations {
		// A VM that is created from the manifest under its name is the same VM.
		if key == firmware.RecordAnnotation || key != corev1.LastAppliedConfigAnnotation && !reserved(key) {
			exported.Annotations[key] = value
		}
	}
	// The instance type and the preference have already been applied.
	exported.Spec.Instancetype, exported.Spec.Preference = nil, nil
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(exported)
	if err != nil {
		return nil, fmt.Errorf("write VirtualMachine %s: %w", s.vm.Name, err)
	}
	delete(raw, "status")
	raw["apiVersion"], raw["kind"] = v1.GroupVersion.String(), v1.VirtualMachineGroupVersionKind.Kind
	if metadata, ok := raw["metadata"].(map[string]any); ok {
		delete(metadata, "creationTimestamp")
	}
	out := &content.Manifests{VirtualMachine: raw, Templates: map[string]string{}, Internal: o.internal(),
		External: o.external()}
	templates := map[string]bool{}
	for i := range s.vm.Spec.DataVolumeTemplates {
		name := s.vm.Spec.DataVolumeTemplates[i].Name
		templates[name] = true
		if v := find(s.volumes, name); v != nil {
			out.Templates[name] = v.Name
		}
	}
	inVM := map[string]bool{}
	for i := range s.vm.Spec.Template.Spec.Volumes {
		inVM[capture.ClaimName(&s.vm.Spec.Template.Spec.Volumes[i])] = true
	}
	for i := range s.volumes {
		v := &s.volumes[i]
		if claim := v.ClaimName(); templates[claim] || !inVM[claim] { // The state claim is created when the VM starts.
			continue
		}
		size := v.claim.Spec.Resources.Requests[corev1.ResourceStorage]
		dv := content.DataVolume{Name: v.ClaimName(), Volume: v.Name, Size: size.String()}
		if v.Block {
			dv.VolumeMode = string(corev1.PersistentVolumeBlock)
		}
		out.DataVolumes = append(out.DataVolumes, dv)
	}
	return out, nil
}

// reserved reports whether a label or an annotation belongs to KubeVirt's components. Users must not set them through
// an export.
func reserved(key string) bool {
	domain, _, found := strings.Cut(key, "/")
	if !found {
		domain = key // kubevirt.io itself is a label
	}
	return domain == "kubevirt.io" || strings.HasSuffix(domain, ".kubevirt.io") ||
		strings.HasPrefix(domain, "kubevirt.io.")
}

func (o *Observed) internal() *content.Side {
	return &content.Side{Address: content.ServerName(o.Export.Namespace, o.Export.Name), CA: o.Config.CA}
}

func (o *Observed) external() *content.Side {
	if o.Config.External == nil {
		return nil
	}
	return &content.Side{Address: o.Config.External.Host + content.ProxyPath(o.Export.Namespace, o.Export.Name),
		CA: o.Config.External.CA}
}

// links returns the addresses at which the export can be downloaded.
func (o *Observed) links(s *source) *exportv1.VirtualMachineExportLinks {
	out := &exportv1.VirtualMachineExportLinks{Internal: o.link(s, *o.internal(), content.InternalSide)}
	if side := o.external(); side != nil {
		out.External = o.link(s, *side, content.ExternalSide)
	}
	return out
}

func (o *Observed) link(s *source, side content.Side, name string) *exportv1.VirtualMachineExportLink {
	base := "https://" + side.Address
	out := &exportv1.VirtualMachineExportLink{Cert: side.CA}
	for i := range s.volumes {
		v := &s.volumes[i]
		formats := []exportv1.VirtualMachineExportVolumeFormat{
			{Format: exportv1.KubeVirtRaw, Url: base + v.RawPath()}, {Format: exportv1.KubeVirtGz, Url: base + v.GzipPath()},
		}
		if !v.Disk {
			formats = []exportv1.VirtualMachineExportVolumeFormat{
				{Format: exportv1.Dir, Url: base + v.DirectoryPath()}, {Format: exportv1.ArchiveGz, Url: base + v.ArchivePath()},
			}
		}
		out.Volumes = append(out.Volumes, exportv1.VirtualMachineExportVolume{Name: v.Name, Formats: formats})
	}
	out.Backups = s.backups(base)
	if o.hasManifests(s) {
		out.Manifests = append(out.Manifests, exportv1.VirtualMachineExportManifest{Type: exportv1.AllManifests,
			Url: base + name + content.AllPath})
	}
	out.Manifests = append(out.Manifests, exportv1.VirtualMachineExportManifest{Type: exportv1.AuthHeader,
		Url: base + name + content.SecretPath})
	if o.hasImage(s) {
		out.Manifests = append(out.Manifests, exportv1.VirtualMachineExportManifest{Type: exportv1.OCI,
			Url: base + content.OCIPath})
	}
	return out
}
