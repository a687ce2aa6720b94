// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package create

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// Fixed volume names.
const (
	sysprepDisk   = "sysprepdisk"
	cloudInitDisk = "cloudinitdisk"
)

func (o *vmOptions) addVolumeFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&o.containerDisks, "volume-containerdisk", nil,
		"An image with a disk (repeatable): src:IMAGE[,name:NAME][,bootorder:N].")
	flags.StringArrayVar(&o.claims, "volume-pvc", nil,
		"A PersistentVolumeClaim (repeatable): src:CLAIM[,name:NAME][,bootorder:N].")
	flags.StringArrayVar(&o.imports, "volume-import", nil,
		"A disk that CDI creates (repeatable): type:TYPE,PARAMETERS[,size:SIZE][,name:NAME][,bootorder:N]. Types and parameters:\n"+importHelp())
	flags.StringVar(&o.sysprep, "volume-sysprep", "", "An answer file of Windows: src:NAME[,type:configMap|secret].")
	for _, old := range []struct {
		values *[]string
		flag   string
		kind   string
	}{{&o.dataSources, "volume-datasource", "ds"}, {&o.clonedClaims, "volume-clone-pvc", "pvc"},
		{&o.blanks, "volume-blank", "blank"}} {
		flags.StringArrayVar(old.values, old.flag, nil,
			fmt.Sprintf("Deprecated: use --volume-import=type:%s with the same parameters.", old.kind))
	}
}

func (b *builder) addContainerDisks() error {
	for i, text := range b.containerDisks {
		p, err := parseKnown("volume-containerdisk", text, "src", "name", "bootorder")
		if err != nil {
			return err
		}
		image, err := p.need("src")
		if err != nil {
			return err
		}
		name := p.get("name")
		if name == "" {
			name = fmt.Sprintf("%s-containerdisk-%d", b.vm.Name, i)
		}
		if err := b.addVolume(p, name, v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: image}}); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) addClaims() error {
	for _, text := range b.claims {
		p, err := parseKnown("volume-pvc", text, "src", "name", "bootorder")
		if err != nil {
			return err
		}
		claim, err := p.localSource("pvc")
		if err != nil {
			return err
		}
		name := p.get("name")
		if name == "" {
			name = claim
		}
		source := &v1.PersistentVolumeClaimVolumeSource{}
		source.ClaimName = claim
		if err := b.addVolume(p, name, v1.VolumeSource{PersistentVolumeClaim: source}); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) addSysprep() error {
	if b.sysprep == "" {
		return nil
	}
	p, err := parseKnown("volume-sysprep", b.sysprep, "src", "type")
	if err != nil {
		return err
	}
	name, err := p.localSource("configmap or secret")
	if err != nil {
		return err
	}
	source := &v1.SysprepSource{}
	reference := &corev1.LocalObjectReference{Name: name}
	switch strings.ToLower(p.get("type")) {
	case "", "configmap":
		source.ConfigMap = reference
	case "secret":
		source.Secret = reference
	default:
		return p.errorf("invalid sysprep source type %q, supported values are: configmap, secret", p.get("type"))
	}
	return b.addVolume(p, sysprepDisk, v1.VolumeSource{Sysprep: source})
}

// addImports adds volumes that CDI creates: those of the deprecated flags, in KubeVirt's order, and then those of
// --volume-import.
func (b *builder) addImports() error {
	var all []string
	for _, old := range []struct {
		flag, kind string
		values     []string
	}{{"volume-blank", "blank", b.blanks}, {"volume-clone-pvc", "pvc", b.clonedClaims},
		{"volume-datasource", "ds", b.dataSources}} {
		if len(old.values) > 0 {
			_, _ = fmt.Fprintf(b.warn, "Flag --%s has been deprecated, use flag --volume-import instead\n", old.flag)
		}
		for _, value := range slices.Backward(old.values) {
			if value == "" {
				return flagError(old.flag, "params may not be empty")
			}
			all = append(all, "type:"+old.kind+","+value)
		}
	}
	for _, text := range append(all, b.imports...) {
		if err := b.addImport(text); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) addImport(text string) error {
	p, err := parse("volume-import", text)
	if err != nil {
		return err
	}
	kind, err := p.need("type")
	if err != nil {
		return err
	}
	index := slices.IndexFunc(importers, func(i importer) bool { return i.kind == kind })
	if index < 0 {
		return p.errorf("invalid volume import type %q, see help for supported values", kind)
	}
	importing := importers[index]
	if err := p.only(append([]string{"type", "size", "name", "bootorder"}, importing.parameters...)...); err != nil {
		return err
	}
	spec, err := importing.spec(p)
	if err != nil {
		return err
	}
	size, err := p.quantity("size")
	if err != nil {
		return err
	}
	spec.Storage = &cdiv1beta1.StorageSpec{}
	switch {
	case size != nil:
		spec.Storage.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *size}
	case !importing.hasSize:
		return p.errorf("size must be specified")
	}
	name := p.get("name")
	if name == "" {
		name = "imported-volume-" + rand.String(randomLength)
	}
	template := v1.DataVolumeTemplateSpec{Spec: spec}
	template.Name = name
	b.vm.Spec.DataVolumeTemplates = append(b.vm.Spec.DataVolumeTemplates, template)
	return b.addVolume(p, name, v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: name}})
}

// importer is a type of --volume-import.
type importer struct {
	kind       string
	parameters []string
	// hasSize reports whether the source has a size, so that the parameter size is optional.
	hasSize bool
	spec    func(params) (cdiv1beta1.DataVolumeSpec, error)
}

// importers are CDI's sources.
var importers = []importer{
	{"blank", nil, false, func(params) (cdiv1beta1.DataVolumeSpec, error) {
		return from(cdiv1beta1.DataVolumeSource{Blank: &cdiv1beta1.DataVolumeBlankImage{}}), nil
	}},
	{"gcs", []string{"url", "secretref"}, false, func(p params) (cdiv1beta1.DataVolumeSpec, error) {
		return from(cdiv1beta1.DataVolumeSource{GCS: &cdiv1beta1.DataVolumeSourceGCS{URL: p.get("url"),
			SecretRef: p.get("secretref")}}), p.needAll("url")
	}},
	{"http", []string{"url", "secretref", "certconfigmap", "extraheaders", "secretextraheaders"}, false, importHTTP},
	{"imageio", []string{"url", "diskid", "secretref", "certconfigmap"}, false,
		func(p params) (cdiv1beta1.DataVolumeSpec, error) {
			return from(cdiv1beta1.DataVolumeSource{Imageio: &cdiv1beta1.DataVolumeSourceImageIO{
				URL: p.get("url"), DiskID: p.get("diskid"), SecretRef: p.get("secretref"), CertConfigMap: p.get("certconfigmap"),
			}}), p.needAll("url", "diskid")
		}},
	{"pvc", []string{"src"}, true, importClaim},
	{"registry", []string{"url", "imagestream", "pullmethod", "secretref", "certconfigmap"}, false, importRegistry},
	{"s3", []string{"url", "secretref", "certconfigmap"}, false, func(p params) (cdiv1beta1.DataVolumeSpec, error) {
		return from(cdiv1beta1.DataVolumeSource{S3: &cdiv1beta1.DataVolumeSourceS3{
			URL: p.get("url"), SecretRef: p.get("secretref"), CertConfigMap: p.get("certconfigmap"),
		}}), p.needAll("url")
	}},
	{"vddk", []string{"url", "uuid", "thumbprint", "secretref", "backingfile", "initimageurl"}, false, importVDDK},
	{"snapshot", []string{"src"}, true, importSnapshot},
	{"ds", []string{"src"}, true, importDataSource},
}

func importHelp() string {
	lines := make([]string, 0, len(importers))
	for _, i := range importers {
		lines = append(lines, fmt.Sprintf("  %s %s", i.kind, strings.Join(i.parameters, ",")))
	}
	return strings.Join(lines, "\n")
}

func from(source cdiv1beta1.DataVolumeSource) cdiv1beta1.DataVolumeSpec {
	return cdiv1beta1.DataVolumeSpec{Source: &source}
}

func importHTTP(p params) (cdiv1beta1.DataVolumeSpec, error) {
	return from(cdiv1beta1.DataVolumeSource{HTTP: &cdiv1beta1.DataVolumeSourceHTTP{
		URL: p.get("url"), SecretRef: p.get("secretref"), CertConfigMap: p.get("certconfigmap"),
		ExtraHeaders: p.list("extraheaders"), SecretExtraHeaders: p.list("secretextraheaders"),
	}}), p.needAll("url")
}

func importRegistry(p params) (cdiv1beta1.DataVolumeSpec, error) {
	source := &cdiv1beta1.DataVolumeSourceRegistry{
		URL: p.optional("url"), ImageStream: p.optional("imagestream"), SecretRef: p.optional("secretref"),
		CertConfigMap: p.optional("certconfigmap"),
	}
	if (source.URL == nil) == (source.ImageStream == nil) {
		return cdiv1beta1.DataVolumeSpec{}, p.errorf("exactly one of url or imagestream must be defined")
	}
	switch method := cdiv1beta1.RegistryPullMethod(p.get("pullmethod")); method {
	case "":
	case cdiv1beta1.RegistryPullPod, cdiv1beta1.RegistryPullNode:
		source.PullMethod = &method
	default:
		return cdiv1beta1.DataVolumeSpec{}, p.errorf("pullmethod must be set to pod or node")
	}
	return from(cdiv1beta1.DataVolumeSource{Registry: source}), nil
}

func importVDDK(p params) (cdiv1beta1.DataVolumeSpec, error) {
	return from(cdiv1beta1.DataVolumeSource{VDDK: &cdiv1beta1.DataVolumeSourceVDDK{
		URL: p.get("url"), UUID: p.get("uuid"), Thumbprint: p.get("thumbprint"), SecretRef: p.get("secretref"),
		BackingFile: p.get("backingfile"), InitImageURL: p.get("initimageurl"),
	}}), p.needAll("url", "uuid", "thumbprint", "secretref", "backingfile")
}

// namespacedSource returns the parameter src of an object whose namespace is required by CDI's API.
func namespacedSource(p params, what string) (namespace, name string, err error) {
	namespace, name, err = p.source()
	if err == nil && namespace == "" {
		err = p.errorf("namespace of %s %q must be specified", what, name)
	}
	return namespace, name, err
}

func importClaim(p params) (cdiv1beta1.DataVolumeSpec, error) {
	namespace, name, err := namespacedSource(p, "pvc")
	return from(cdiv1beta1.DataVolumeSource{PVC: &cdiv1beta1.DataVolumeSourcePVC{Namespace: namespace, Name: name}}), err
}

func importSnapshot(p params) (cdiv1beta1.DataVolumeSpec, error) {
	namespace, name, err := namespacedSource(p, "snapshot")
	return from(cdiv1beta1.DataVolumeSource{Snapshot: &cdiv1beta1.DataVolumeSourceSnapshot{Namespace: namespace,
		Name: name}}), err
}

func importDataSource(p params) (cdiv1beta1.DataVolumeSpec, error) {
	namespace, name, err := p.source()
	reference := &cdiv1beta1.DataVolumeSourceRef{Kind: "DataSource", Name: name}
	if namespace != "" {
		reference.Namespace = &namespace
	}
	return cdiv1beta1.DataVolumeSpec{SourceRef: reference}, err
}
