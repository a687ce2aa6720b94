// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package create

import (
	"fmt"
	"strings"

	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
)

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
		return from(cdiv1beta1.DataVolumeSource{GCS: &cdiv1beta1.DataVolumeSourceGCS{URL: p.get("url"), SecretRef: p.get("secretref")}}), p.needAll("url")
	}},
	{"http", []string{"url", "secretref", "certconfigmap", "extraheaders", "secretextraheaders"}, false, importHTTP},
	{"imageio", []string{"url", "diskid", "secretref", "certconfigmap"}, false, func(p params) (cdiv1beta1.DataVolumeSpec, error) {
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
		URL: p.optional("url"), ImageStream: p.optional("imagestream"), SecretRef: p.optional("secretref"), CertConfigMap: p.optional("certconfigmap"),
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
	return from(cdiv1beta1.DataVolumeSource{Snapshot: &cdiv1beta1.DataVolumeSourceSnapshot{Namespace: namespace, Name: name}}), err
}

func importDataSource(p params) (cdiv1beta1.DataVolumeSpec, error) {
	namespace, name, err := p.source()
	reference := &cdiv1beta1.DataVolumeSourceRef{Kind: "DataSource", Name: name}
	if namespace != "" {
		reference.Namespace = &namespace
	}
	return cdiv1beta1.DataVolumeSpec{SourceRef: reference}, err
}
