// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/test/apiserver"
)

// upstreamSuffix is the suffix of the groups in which KubeVirt's schemas are installed beside Vireo's. So the same API
// server validates, stores and merges objects with both.
const upstreamSuffix = ".upstream.example.org"

// server is an API server with Vireo's CRDs, and KubeVirt's in other groups.
type server struct {
	client  client.Client
	env     *envtest.Environment
	schemas *schemas
	crds    map[string]*apiextensionsv1.CustomResourceDefinition
}

var started *server

// startServer starts the API server at the first call. TestMain stops it.
var startServer = sync.OnceValues(func() (*server, error) {
	all, err := bothSchemas()
	if err != nil {
		return nil, err
	}
	s := &server{schemas: all, crds: map[string]*apiextensionsv1.CustomResourceDefinition{}, env: apiserver.New()}
	var install []*apiextensionsv1.CustomResourceDefinition
	for _, p := range pairs {
		if p.crd == "" {
			continue
		}
		if _, found := s.crds[p.crd]; !found {
			crd, err := readCRD(p.crd)
			if err != nil {
				return nil, err
			}
			s.crds[p.crd] = crd
			install = append(install, crd)
		}
		theirs, err := s.upstreamCRD(p)
		if err != nil {
			return nil, err
		}
		install = append(install, theirs)
	}
	s.env.CRDInstallOptions.CRDs = install
	config, err := s.env.Start()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the API server (is KUBEBUILDER_ASSETS set?): %w", err), s.env.Stop())
	}
	started = s
	config.QPS, config.Burst = -1, -1
	// The API server warns about deprecated versions.
	config.WarningHandler = rest.NoWarnings{}
	s.client, err = client.New(config, client.Options{})
	return s, err
})

func readCRD(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	data, err := os.ReadFile(filepath.Join("..", "..", "config", "crd", "bases", name+".yaml"))
	if err != nil {
		return nil, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, crd); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return crd, nil
}

// upstreamCRD returns Vireo's CRD with KubeVirt's schema of one version. It keeps Vireo's status subresource:
// KubeVirt's VMI has none, but that only changes how the status is written, and not which values are valid.
func (s *server) upstreamCRD(p pair) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := s.crds[p.crd].DeepCopy()
	crd.Spec.Group = upstreamGroup(crd.Spec.Group, p.version)
	crd.Name = crd.Spec.Names.Plural + "." + crd.Spec.Group
	crd.Spec.Names.ShortNames, crd.Spec.Names.Categories = nil, nil
	at := slices.IndexFunc(crd.Spec.Versions,
		func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == p.version })
	if at < 0 {
		return nil, fmt.Errorf("%s has no version %s", p.crd, p.version)
	}
	version := crd.Spec.Versions[at]
	version.Storage = true
	full, err := s.upstreamSchema(p)
	if err != nil {
		return nil, err
	}
	full = *full.DeepCopy()
	full.Properties["metadata"] = apiextensionsv1.JSONSchemaProps{Type: "object"}
	version.Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &full}
	version.SelectableFields = nil
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{version}
	return crd, nil
}

// upstreamSchema returns the schema of KubeVirt's CRD for a version, which is that of the stored version (see
// olderVersion).
func (s *server) upstreamSchema(p pair) (apiextensionsv1.JSONSchemaProps, error) {
	for _, candidate := range pairs {
		if candidate.crd != p.crd {
			continue
		}
		for i := range s.crds[p.crd].Spec.Versions {
			if v := &s.crds[p.crd].Spec.Versions[i]; v.Storage && v.Name == candidate.version {
				return s.schemas.of(reflect.TypeOf(candidate.upstream))
			}
		}
	}
	return apiextensionsv1.JSONSchemaProps{}, fmt.Errorf("the stored version of %s is in no pair", p.crd)
}

// upstreamGroup returns a separate group for each version.
func upstreamGroup(group, version string) string {
	return version + "." + group + upstreamSuffix
}

// objects generates random objects of a pair, in KubeVirt's group and in Vireo's.
type objects struct {
	generator *generator
	schema    apiextensionsv1.JSONSchemaProps
	crd       *apiextensionsv1.CustomResourceDefinition
	version   string
}

func (s *server) objects(p pair, g *generator) (*objects, error) {
	full, err := s.upstreamSchema(p)
	return &objects{generator: g, schema: full, crd: s.crds[p.crd], version: p.version}, err
}

// next returns the content of an object without its name.
func (o *objects) next() map[string]any {
	content := map[string]any{}
	for _, name := range []string{"spec", "status"} {
		if part, found := o.schema.Properties[name]; found {
			content[name] = o.generator.value(o.crd.Spec.Names.Kind+"."+name, &part)
			complete(content[name], o.crd.Spec.Names.Kind+"."+name)
		}
	}
	return content
}

// alwaysWritten are the fields that KubeVirt's encoder writes even if they are empty, other than those that are
// required.
var alwaysWritten = map[string]map[string]any{
	"VirtualMachineInstance.status": {"guestOSInfo": map[string]any{}, "runtimeUser": int64(0)},
}

// complete adds what is always written to a part of an object.
func complete(part any, path string) {
	fields, isObject := part.(map[string]any)
	for name, value := range alwaysWritten[path] {
		if _, has := fields[name]; isObject && !has {
			fields[name] = value
		}
	}
}

// object returns an object with a content in one of the two groups.
func (o *objects) object(content map[string]any, name string, upstream bool) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	maps.Copy(u.Object, content)
	u = u.DeepCopy()
	group := o.crd.Spec.Group
	if upstream {
		group = upstreamGroup(group, o.version)
	}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: o.version, Kind: o.crd.Spec.Names.Kind})
	u.SetName(name)
	if o.crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
		u.SetNamespace("default")
	}
	return u
}

// hasStatus reports whether there is a status subresource.
func (o *objects) hasStatus() bool {
	for i := range o.crd.Spec.Versions {
		if v := &o.crd.Spec.Versions[i]; v.Name == o.version {
			return v.Subresources != nil && v.Subresources.Status != nil
		}
	}
	return false
}

// store writes an object and its status, and returns the stored object.
func (s *server) store(
	ctx context.Context, o *objects, content map[string]any, name string, upstream bool,
) (*unstructured.Unstructured, error) {
	u := o.object(content, name, upstream)
	if err := s.client.Create(ctx, u.DeepCopy()); err != nil {
		return nil, err
	}
	got := u.DeepCopy()
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(u), got); err != nil {
		return nil, err
	}
	if status, found := u.Object["status"]; found && o.hasStatus() {
		got.Object["status"] = status
		if err := s.client.Status().Update(ctx, got); err != nil {
			return nil, fmt.Errorf("status: %w", err)
		}
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(u), got); err != nil {
			return nil, err
		}
	}
	if !upstream {
		if err := s.readInEveryVersion(ctx, o, got); err != nil {
			return nil, err
		}
	}
	return got, s.client.Delete(ctx, u)
}

// readInEveryVersion returns an error if an object differs in another served version.
func (s *server) readInEveryVersion(ctx context.Context, o *objects, want *unstructured.Unstructured) error {
	for i := range o.crd.Spec.Versions {
		other := &unstructured.Unstructured{}
		other.SetGroupVersionKind(
			schema.GroupVersionKind{Group: o.crd.Spec.Group, Version: o.crd.Spec.Versions[i].Name, Kind: o.crd.Spec.Names.Kind})
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(want), other); err != nil {
			return err
		}
		for _, part := range []string{"spec", "status"} {
			if diff := cmp.Diff(want.Object[part], other.Object[part]); diff != "" {
				return fmt.Errorf("%s in version %s (-as written +as read):\n%s", part, o.crd.Spec.Versions[i].Name, diff)
			}
		}
	}
	return nil
}

func mustServer(t *testing.T) *server {
	t.Helper()
	s, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	return s
}
