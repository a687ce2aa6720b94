// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package automigration

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// While the cache does not contain the migration that was created last, admission refuses another one: the guest has
// one already.
func TestARefusalBecauseOfTheSameMigrationIsNoFailure(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "u"}}
	for name, existing := range map[string]string{
		"the same":        NewHistory(nil).freeName("p-", vmi),
		"one of somebody": "other",
	} {
		other := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: existing}}
		world := fake.NewClientBuilder().WithScheme(scheme).WithObjects(vmi, other).WithInterceptorFuncs(interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
				return apierrors.NewBadRequest("in-flight migration detected")
			},
		}).Build()
		recorder := events.NewFakeRecorder(1)
		creator := Creator{Client: world, APIReader: world, Recorder: recorder, Prefix: "p-"}
		err := creator.Migrate(t.Context(), NewHistory(nil), vmi,
			func(*v1.VirtualMachineInstance, *v1.VirtualMachineInstanceMigration) bool { return true })
		if same := existing != "other"; same != (err == nil) || same != (len(recorder.Events) == 0) {
			t.Errorf("%s: %v, and %d events", name, err, len(recorder.Events))
		}
	}
}
