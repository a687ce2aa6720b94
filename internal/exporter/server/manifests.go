// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"encoding/json"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/internal/exporter/content"
)

// all returns the handler of the manifests for downloads from a side.
func (s *Server) all(name string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		exported, err := s.options.Content()
		if err != nil {
			return err
		}
		if exported.Manifests == nil {
			return &problem{http.StatusNotFound,
				"the export has no manifests. If it exports a VM, the condition Ready of the VirtualMachineExport has the reason"}
		}
		side := exported.Manifests.Internal
		if name == content.ExternalSide {
			side = exported.Manifests.External
		}
		if side == nil {
			return &problem{http.StatusNotFound,
				"the export cannot be reached from this side: external manifests need an Ingress or a Route to virt-exportproxy"}
		}
		return write(w, r, exported.AllManifests(*side))
	}
}

// secret serves the Secret with the token.
func (s *Server) secret(w http.ResponseWriter, r *http.Request) error {
	exported, err := s.options.Content()
	if err != nil {
		return err
	}
	token, err := s.options.Token()
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	return write(w, r, []map[string]any{exported.SecretManifest(token)})
}

// write writes objects as YAML documents if the client accepts these, and otherwise as a list in JSON.
func write(w http.ResponseWriter, r *http.Request, objects []map[string]any) error {
	if r.Header.Get("Accept") != runtime.ContentTypeYAML {
		items := make([]any, 0, len(objects))
		for _, object := range objects {
			items = append(items, object)
		}
		raw, err := json.MarshalIndent(map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{},
			"items": items}, "", "  ")
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_, err = w.Write(append(raw, '\n'))
		return err
	}
	w.Header().Set("Content-Type", runtime.ContentTypeYAML)
	for _, object := range objects {
		raw, err := yaml.Marshal(object)
		if err != nil {
			return err
		}
		if _, err := w.Write(append(raw, "---\n"...)); err != nil {
			return err
		}
	}
	return nil
}
