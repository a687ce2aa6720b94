// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package v1 implements the admission webhooks of the kubevirt.io/v1 kinds. They set the defaults of VMIs and check the rules
// that the schemas of the CRDs cannot express. A response lists all errors of an object, up to specsupport.MaxErrors.
//
// A rule is a method of check, or a function of one, in the file of its subject. Fields that are not implemented are in the tables of
// package specsupport. The paths and names of the webhooks are KubeVirt's.
package v1

import (
	"context"
	"errors"
	"net/http"

	"k8s.io/apimachinery/pkg/util/sets"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/instancetype/reference"
	"github.com/vireo-project/vireo/internal/quantity"
)

// Options configures the webhooks.
type Options struct {
	// Config returns the current configuration of the cluster. Required.
	Config ConfigSource
	// TrustedUsers are the user names of our components, which may change the spec of a VMI and write reserved labels.
	// See ServiceAccounts.
	TrustedUsers []string
	// Client and APIReader are used for the webhooks' requests to the API server, which thus have their own rate limit. Client reads from
	// the manager's cache. Default: the manager's.
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

// SetupWithManager registers every webhook of this package with the manager's webhook server.
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
	scheme, trusted := mgr.GetScheme(), sets.New(options.TrustedUsers...)
	vmi := admission.WithValidator(scheme, &vmiValidator{config: options.Config, trusted: trusted})
	migration := admission.WithValidator(scheme, &migrationValidator{config: options.Config, apiReader: options.APIReader, trusted: trusted})
	kubeVirt := admission.WithValidator(scheme, &kubeVirtValidator{reader: options.APIReader})
	finder := reference.Finder{Objects: options.Client, Revisions: options.APIReader}
	hooks := map[string]http.Handler{
		"/virtualmachines-mutate":   &admission.Webhook{Handler: &vmMutator{decoder: admission.NewDecoder(scheme)}},
		"/virtualmachines-validate": admission.WithValidator(scheme, &vmValidator{config: options.Config, trusted: trusted, finder: finder}),

		"/virtualmachinereplicaset-validate": admission.WithValidator(scheme, &replicaSetValidator{config: options.Config}),
		"/virtualmachinepool-validate":       admission.WithValidator(scheme, &poolValidator{config: options.Config}),

		"/virtualmachinesnapshots-validate": admission.WithValidator(scheme, &snapshotValidator{config: options.Config}),

		"/virtualmachinebackups-validate":        admission.WithValidator(scheme, &backupValidator[*backupv1alpha1.VirtualMachineBackup]{config: options.Config}),
		"/virtualmachinebackuptrackers-validate": admission.WithValidator(scheme, &backupValidator[*backupv1alpha1.VirtualMachineBackupTracker]{config: options.Config}),

		"/virtualmachineexports-validate": admission.WithValidator(scheme, exportValidator{}),

		"/virtualmachineinstances-mutate":          withBoundedQuantities(admission.WithDefaulter(scheme, &vmiDefaulter{config: options.Config}), &v1.VirtualMachineInstance{}),
		"/virtualmachineinstances-validate-create": vmi,
		"/virtualmachineinstances-validate-update": vmi,

		"/migration-mutate-create":   admission.WithDefaulter(scheme, migrationDefaulter{}),
		"/migration-validate-create": migration,
		"/migration-validate-update": migration,

		"/migration-policy-validate-create": admission.WithValidator(scheme, &migrationPolicyValidator{config: options.Config}),

		"/virtualmachinerestores-validate": admission.WithValidator(scheme, &restoreValidator{config: options.Config, reader: options.Client}),

		"/vm-clone-mutate-create":   &admission.Webhook{Handler: &cloneMutator{decoder: admission.NewDecoder(scheme)}},
		"/vm-clone-validate-create": admission.WithValidator(scheme, &cloneValidator{config: options.Config}),

		"/launcher-eviction-validate": withoutKeepAlive(&admission.Webhook{Handler: &evictionInterceptor{
			config: options.Config, apiReader: options.APIReader, writer: options.Client, liveMigration: options.LiveMigration,
		}}),

		"/kubevirt-validate-create": kubeVirt,
		"/kubevirt-validate-update": kubeVirt,
		"/kubevirt-validate-delete": kubeVirt,
	}
	for path, hook := range instancetypeHooks(scheme) {
		hooks[path] = hook
	}
	for path, hook := range hooks {
		mgr.GetWebhookServer().Register(path, hook)
	}
	return nil
}

// withBoundedQuantities rejects objects with quantities that take hours to decode. Mutating webhooks need it, because the API server calls
// them before it validates an object by its schema, which also rejects such quantities.
func withBoundedQuantities(hook *admission.Webhook, object any) *admission.Webhook {
	next := hook.Handler
	hook.Handler = admission.HandlerFunc(func(ctx context.Context, request admission.Request) admission.Response {
		if err := quantity.Check(request.Object.Raw, object); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		return next.Handle(ctx, request)
	})
	return hook
}
