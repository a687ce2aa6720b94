// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package v1 implements the admission webhooks of the kubevirt.io/v1 kinds. They set the defaults of VMIs and check the
// rules that the schemas of the CRDs cannot express. A response lists all errors of an object, up to
// specsupport.MaxErrors.
//
// A rule is a method of check, or a function of one, in the file of its subject. Fields that are not implemented are in
// the tables of package specsupport. The names of the webhooks are KubeVirt's. controller-gen needs a path for each,
// which "make manifests" removes: virt-controller writes the paths (docs/adr/0098).
package v1

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/sets"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/quantity"
)

// Options configures the webhooks.
type Options struct {
	// Config returns the current configuration of the cluster. Required.
	Config ConfigSource
	// TrustedUsers are the user names of our components, which may change the spec of a VMI and write reserved labels.
	// See ServiceAccounts.
	TrustedUsers []string
	// Client and APIReader are used for the webhooks' requests to the API server, which thus have their own rate limit.
	// Client reads from the manager's cache. Default: the manager's.
	Client    client.Client
	APIReader client.Reader
	// LiveMigration reports whether this installation can migrate guests.
	LiveMigration bool
}

// ServiceAccounts returns the user names of service accounts of a namespace.
func ServiceAccounts(namespace string, names ...string) []string {
	users := make([]string, 0, len(names))
	for _, name := range names {
		users = append(users, "system:serviceaccount:"+namespace+":"+name)
	}
	return users
}

// SetupWithManager registers every webhook of this package with the manager's webhook server, at the path /name.
func SetupWithManager(mgr ctrl.Manager, options Options) error {
	if options.Config == nil {
		return errors.New("webhooks need a source of the cluster's configuration: set Options.Config")
	}
	if options.Client == nil {
		options.Client = mgr.GetClient()
	}
	if options.APIReader == nil {
		options.APIReader = mgr.GetAPIReader()
	}
	for name, hook := range hooks(mgr.GetScheme(), options) {
		mgr.GetWebhookServer().Register("/"+name, hook)
	}
	return nil
}

// evictionHook is the name of the webhook of evictions.
const evictionHook = "virt-launcher-eviction-interceptor.kubevirt.io"

// hooks returns the webhooks by name. None of them decodes an object before its quantities are checked.
func hooks(scheme *runtime.Scheme, options Options) map[string]http.Handler {
	all := vmHooks(scheme, options)
	maps.Copy(all, storageHooks(scheme, options))
	maps.Copy(all, instancetypeHooks(scheme))
	served, kinds := map[string]http.Handler{}, newKinds(scheme)
	for name, hook := range all {
		served[name] = &admission.Webhook{Handler: kinds.bounded(hook.Handler)}
	}
	served[evictionHook] = withoutKeepAlive(served[evictionHook])
	return served
}

// vmHooks are the webhooks of VMs, their instances, migrations and the installation, by name.
func vmHooks(scheme *runtime.Scheme, options Options) map[string]*admission.Webhook {
	trusted := sets.New(options.TrustedUsers...)
	vmi := admission.WithValidator(scheme, &vmiValidator{config: options.Config, trusted: trusted})
	migration := admission.WithValidator(scheme,
		&migrationValidator{config: options.Config, apiReader: options.APIReader, trusted: trusted})
	kubeVirt := admission.WithValidator(scheme, &kubeVirtValidator{reader: options.APIReader})
	finder := reference.Finder{Objects: options.Client, Revisions: options.APIReader}
	return map[string]*admission.Webhook{
		"virtualmachines-mutator.kubevirt.io":                  {Handler: &vmMutator{decoder: admission.NewDecoder(scheme)}},
		"virtualmachine-validator.kubevirt.io":                 admission.WithValidator(scheme, &vmValidator{config: options.Config, trusted: trusted, finder: finder}),
		"virtualmachinereplicaset-validator.kubevirt.io":       admission.WithValidator(scheme, &replicaSetValidator{config: options.Config}),
		"virtualmachinepool-validator.kubevirt.io":             admission.WithValidator(scheme, &poolValidator{config: options.Config}),
		"virtualmachineinstances-mutator.kubevirt.io":          admission.WithDefaulter(scheme, &vmiDefaulter{config: options.Config}),
		"virtualmachineinstances-create-validator.kubevirt.io": vmi,
		"virtualmachineinstances-update-validator.kubevirt.io": vmi,
		"migrations-mutator.kubevirt.io":                       admission.WithDefaulter(scheme, migrationDefaulter{}),
		"migration-create-validator.kubevirt.io":               migration,
		"migration-update-validator.kubevirt.io":               migration,
		"migration-policy-validator.kubevirt.io":               admission.WithValidator(scheme, &migrationPolicyValidator{config: options.Config}),
		evictionHook: {Handler: &evictionInterceptor{
			config: options.Config, apiReader: options.APIReader, writer: options.Client, liveMigration: options.LiveMigration,
		}},
		"kubevirt-create-validator.kubevirt.io": kubeVirt,
		"kubevirt-update-validator.kubevirt.io": kubeVirt,
		"kubevirt-validator.kubevirt.io":        kubeVirt,
	}
}

// storageHooks are the webhooks of snapshots, restores, clones, backups and exports, by name.
func storageHooks(scheme *runtime.Scheme, options Options) map[string]*admission.Webhook {
	return map[string]*admission.Webhook{
		"virtualmachinesnapshot-validator.snapshot.kubevirt.io":    admission.WithValidator(scheme, &snapshotValidator{config: options.Config}),
		"virtualmachinebackup-validator.backup.kubevirt.io":        admission.WithValidator(scheme, &backupValidator[*backupv1alpha1.VirtualMachineBackup]{config: options.Config}),
		"virtualmachinebackuptracker-validator.backup.kubevirt.io": admission.WithValidator(scheme, &backupValidator[*backupv1alpha1.VirtualMachineBackupTracker]{config: options.Config}),
		"virtualmachineexport-validator.export.kubevirt.io":        admission.WithValidator(scheme, exportValidator{}),
		"virtualmachinerestore-validator.snapshot.kubevirt.io":     admission.WithValidator(scheme, &restoreValidator{config: options.Config, reader: options.Client}),
		"virtualmachineclones-mutator.kubevirt.io":                 {Handler: &cloneMutator{decoder: admission.NewDecoder(scheme)}},
		"vm-clone-validator.kubevirt.io":                           admission.WithValidator(scheme, &cloneValidator{config: options.Config}),
	}
}

// deletable admits every deletion of objects of a kind.
type deletable[T any] struct{}

// ValidateDelete implements admission.Validator.
func (deletable[T]) ValidateDelete(context.Context, T) (admission.Warnings, error) { return nil, nil }

// ConfigSource provides the current configuration. Admission reads it for each request, so that a change of the
// KubeVirt object takes effect at once. clusterconfig.Store implements it.
type ConfigSource interface {
	Current() clusterconfig.Config
}

// kinds are the types that a decoder may choose for an object, by the name of its kind: the decoder follows the kind
// that an object says it has, and not the one that a webhook expects.
type kinds map[string]sets.Set[reflect.Type]

func newKinds(scheme *runtime.Scheme) kinds {
	all := kinds{}
	for gvk, t := range scheme.AllKnownTypes() {
		if all[gvk.Kind] == nil {
			all[gvk.Kind] = sets.New[reflect.Type]()
		}
		all[gvk.Kind].Insert(t)
	}
	return all
}

// bounded rejects objects with quantities that take hours to decode. The schemas reject them too, but the API server
// validates an object after it has called mutating webhooks, and no schema applies to what others send.
func (k kinds) bounded(next admission.Handler) admission.Handler {
	return admission.HandlerFunc(func(ctx context.Context, request admission.Request) admission.Response {
		for _, object := range []runtime.RawExtension{request.Object, request.OldObject} {
			if err := k.check(object.Raw); err != nil {
				return admission.Errored(http.StatusBadRequest, err)
			}
		}
		return next.Handle(ctx, request)
	})
}

func (k kinds) check(raw []byte) error {
	if len(raw) == 0 {
		return nil
	}
	gvk, err := json.DefaultMetaFactory.Interpret(raw)
	if err != nil {
		return fmt.Errorf("cannot read the kind of the object: %w", err)
	}
	types := k[gvk.Kind]
	if len(types) == 0 {
		return fmt.Errorf("objects of the kind %q are not admitted here", gvk.Kind)
	}
	for t := range types {
		if err := quantity.Check(raw, reflect.Zero(t).Interface()); err != nil {
			return err
		}
	}
	return nil
}
