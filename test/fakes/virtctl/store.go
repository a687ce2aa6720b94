// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// store stores objects and serves the part of the Kubernetes API that virtctl uses.
type store struct {
	mu      sync.Mutex
	objects map[string]*unstructured.Unstructured
	kinds   []kind
	writes  []string
	// version is the resourceVersion of the last write.
	version int
}

// kind is a kind that the cluster serves.
type kind struct {
	groupVersion, kind, resource string
	cluster                      bool
}

// builtIn are the kinds that every cluster serves.
var builtIn = []kind{
	{"v1", "Pod", "pods", false},
	{"v1", "Node", "nodes", true},
	{"v1", "Event", "events", false},
	{"v1", "Secret", "secrets", false},
	{"v1", "Service", "services", false},
	{"v1", "PersistentVolumeClaim", "persistentvolumeclaims", false},
	{"v1", "ResourceQuota", "resourcequotas", false},
	{"policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", false},
	{"apps/v1", "Deployment", "deployments", false},
	{"apps/v1", "DaemonSet", "daemonsets", false},
	{"coordination.k8s.io/v1", "Lease", "leases", false},
	{"storage.k8s.io/v1", "StorageClass", "storageclasses", true},
	{"kubevirt.io/v1", "KubeVirt", "kubevirts", false},
	{"kubevirt.io/v1", "VirtualMachine", "virtualmachines", false},
	{"kubevirt.io/v1", "VirtualMachineInstance", "virtualmachineinstances", false},
	{"kubevirt.io/v1", "VirtualMachineInstanceReplicaSet", "virtualmachineinstancereplicasets", false},
	{"kubevirt.io/v1", "VirtualMachineInstanceMigration", "virtualmachineinstancemigrations", false},
}

func (k kind) root() string {
	if strings.Contains(k.groupVersion, "/") {
		return "/apis/" + k.groupVersion
	}
	return "/api/" + k.groupVersion
}

// AddKind adds a kind to the cluster, such as that of an add-on.
func (s *Server) AddKind(groupVersion, name, resource string) {
	k := kind{groupVersion, name, resource, false}
	s.addKind(k)
	s.store.serveKind(s.mux, k)
}

// AddClusterKind adds a kind without namespaces.
func (s *Server) AddClusterKind(groupVersion, name, resource string) {
	k := kind{groupVersion, name, resource, true}
	s.addKind(k)
	s.store.serveKind(s.mux, k)
}

// AddRequestKind adds a kind that is not stored: creating an object is a request that create serves.
func (s *Server) AddRequestKind(groupVersion, name, resource string, create http.HandlerFunc) {
	k := kind{groupVersion, name, resource, false}
	s.addKind(k)
	s.mux.HandleFunc("POST "+k.root()+"/namespaces/{namespace}/"+resource, create)
}

func (s *Server) addKind(k kind) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if !slices.ContainsFunc(s.store.kinds, func(other kind) bool { return other.groupVersion == k.groupVersion }) {
		s.store.serveGroup(s.mux, k.groupVersion)
	}
	s.store.kinds = append(s.store.kinds, k)
}

// Add stores objects.
func (s *Server) Add(objects ...client.Object) {
	s.t.Helper()
	for _, object := range objects {
		gvk, err := apiutil.GVKForObject(object, cli.Scheme)
		if err != nil {
			s.t.Fatal(err)
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			s.t.Fatal(err)
		}
		u := &unstructured.Unstructured{Object: content}
		u.SetGroupVersionKind(gvk)
		k := s.store.kindOf(u)
		if k == nil {
			s.t.Fatalf("the cluster has no %s", gvk)
		}
		s.store.put(k.resource, u)
	}
}

// Get returns an object, or nil if it does not exist.
func (s *Server) Get(resource, namespace, name string) *unstructured.Unstructured {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return s.store.objects[objectKey(resource, namespace, name)]
}

// Writes returns the writing requests so far, such as "POST services/tenant/myvm".
func (s *Server) Writes() []string {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return slices.Clone(s.store.writes)
}

func objectKey(resource, namespace, name string) string {
	return resource + "/" + namespace + "/" + name
}

func (s *store) kindOf(u *unstructured.Unstructured) *kind {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.kinds {
		if s.kinds[i].groupVersion == u.GetAPIVersion() && s.kinds[i].kind == u.GetKind() {
			return &s.kinds[i]
		}
	}
	return nil
}

func (s *store) put(resource string, u *unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(objectKey(resource, u.GetNamespace(), u.GetName()), u)
}

// keep stores an object under a new resourceVersion.
func (s *store) keep(key string, u *unstructured.Unstructured) {
	s.version++
	u.SetResourceVersion(strconv.Itoa(s.version))
	s.objects[key] = u
}

func (s *store) serve(mux *http.ServeMux) {
	s.objects = map[string]*unstructured.Unstructured{}
	s.kinds = slices.Clone(builtIn)
	groups := map[string]bool{}
	for _, k := range s.kinds {
		s.serveKind(mux, k)
		if !groups[k.groupVersion] {
			groups[k.groupVersion] = true
			s.serveGroup(mux, k.groupVersion)
		}
	}
	mux.HandleFunc("GET /api", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusOK,
			metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	})
	mux.HandleFunc("GET /apis", s.groups)
}

func (s *store) groups(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, k := range s.kinds {
		group, version, found := strings.Cut(k.groupVersion, "/")
		if !found || slices.ContainsFunc(list.Groups, func(g metav1.APIGroup) bool { return g.Name == group }) {
			continue
		}
		v := metav1.GroupVersionForDiscovery{GroupVersion: k.groupVersion, Version: version}
		list.Groups = append(list.Groups,
			metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
	}
	respond(w, http.StatusOK, list)
}

func (s *store) serveGroup(mux *http.ServeMux, groupVersion string) {
	mux.HandleFunc("GET "+kind{groupVersion: groupVersion}.root(), func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: groupVersion}
		for _, k := range s.kinds {
			if k.groupVersion == groupVersion {
				list.APIResources = append(list.APIResources, metav1.APIResource{
					Name: k.resource, Kind: k.kind, Namespaced: !k.cluster,
					Verbs: metav1.Verbs{"get", "list", "create", "update", "patch", "delete"},
				})
			}
		}
		respond(w, http.StatusOK, list)
	})
}

func (s *store) serveKind(mux *http.ServeMux, k kind) {
	single, all := k.root()+"/"+k.resource, k.root()+"/"+k.resource
	if !k.cluster {
		single = k.root() + "/namespaces/{namespace}/" + k.resource
		mux.HandleFunc("GET "+single, func(w http.ResponseWriter, r *http.Request) { s.list(w, r, k) })
	}
	mux.HandleFunc("GET "+all, func(w http.ResponseWriter, r *http.Request) { s.list(w, r, k) })
	mux.HandleFunc("POST "+single, func(w http.ResponseWriter, r *http.Request) { s.create(w, r, k) })
	mux.HandleFunc(single+"/{name}", func(w http.ResponseWriter, r *http.Request) { s.object(w, r, k) })
	mux.HandleFunc(single+"/{name}/status", func(w http.ResponseWriter, r *http.Request) { s.object(w, r, k) })
}

func (s *store) list(w http.ResponseWriter, r *http.Request, k kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(k.groupVersion)
	list.SetKind(k.kind + "List")
	prefix := k.resource + "/"
	if namespace := r.PathValue("namespace"); namespace != "" {
		prefix += namespace + "/"
	}
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		Refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}

	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		o := s.objects[key]
		if strings.HasPrefix(key, prefix) && selector.Matches(labels.Set(o.GetLabels())) {
			list.Items = append(list.Items, *o)
		}
	}
	respond(w, http.StatusOK, list)
}

func (s *store) create(w http.ResponseWriter, r *http.Request, k kind) {
	u := &unstructured.Unstructured{}
	content, _ := io.ReadAll(r.Body)
	if err := u.UnmarshalJSON(content); err != nil {
		Refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	u.SetNamespace(r.PathValue("namespace"))
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.GetName() == "" {
		u.SetName(fmt.Sprintf("%s%d", u.GetGenerateName(), len(s.objects)))
	}
	key := objectKey(k.resource, u.GetNamespace(), u.GetName())
	if s.objects[key] != nil {
		Refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists,
			fmt.Sprintf("%s %q already exists", k.resource, u.GetName()))
		return
	}
	s.writes = append(s.writes, "POST "+key)
	if r.URL.Query().Get("dryRun") == "" {
		s.keep(key, u)
	}
	respond(w, http.StatusCreated, u)
}

func (s *store) object(w http.ResponseWriter, r *http.Request, k kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := objectKey(k.resource, r.PathValue("namespace"), r.PathValue("name"))
	found := s.objects[key]
	if found == nil {
		group, _, _ := strings.Cut(k.groupVersion, "/")
		respond(w, http.StatusNotFound, metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusNotFound,
			Reason:  metav1.StatusReasonNotFound,
			Message: fmt.Sprintf("%s.%s %q not found", k.resource, group, r.PathValue("name")),
			Details: &metav1.StatusDetails{Name: r.PathValue("name"), Group: group, Kind: k.resource},
		})
		return
	}
	if r.Method == http.MethodGet {
		respond(w, http.StatusOK, found)
		return
	}
	s.writes = append(s.writes, r.Method+" "+key)
	if r.Method == http.MethodDelete {
		delete(s.objects, key)
		respond(w, http.StatusOK,
			metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
		return
	}
	changed, err := change(found, r)
	if err != nil {
		Refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, err.Error())
		return
	}
	if changed.GetResourceVersion() != found.GetResourceVersion() {
		Refuse(w, http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
		return
	}
	s.keep(key, changed)
	respond(w, http.StatusOK, changed)
}

// change applies an update or a patch to an object.
func change(found *unstructured.Unstructured, r *http.Request) (*unstructured.Unstructured, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	before, err := found.MarshalJSON()
	if err != nil {
		return nil, err
	}
	after := body
	switch r.Header.Get("Content-Type") {
	case "application/json-patch+json":
		var patch jsonpatch.Patch
		if patch, err = jsonpatch.DecodePatch(body); err == nil {
			after, err = patch.Apply(before)
		}
	case "application/merge-patch+json":
		after, err = jsonpatch.MergePatch(before, body)
	}
	if err != nil {
		return nil, err
	}
	changed := &unstructured.Unstructured{}
	return changed, changed.UnmarshalJSON(after)
}

// respond sends an object as JSON.
func respond(w http.ResponseWriter, code int, object any) {
	if u, ok := object.(*unstructured.UnstructuredList); ok {
		object = u.UnstructuredContent()
		if u.Items == nil {
			object.(map[string]any)["items"] = []any{}
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}
