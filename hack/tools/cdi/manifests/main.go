// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command manifests prints the objects that install the Containerized Data Importer, as one JSON list for kubectl. They
// come from the importer's own packages, so that they fit the programs that are built from the same module.
//
//	manifests operator PREFIX TAG   the operator, whose images are PREFIX-operator:TAG and so on
//	manifests importer              the object that makes the operator install all other components
//	manifests profiles              what the importer cannot know about the local cluster's storage classes
//
// They are applied in this order: the operator creates the kinds of the importer's objects.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"kubevirt.io/containerized-data-importer/pkg/operator/resources/namespaced"
	"kubevirt.io/containerized-data-importer/pkg/operator/resources/operator"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// namespace is the one in which everyone installs the importer.
const namespace = "cdi"

// module is the importer's module, whose version the operator reports.
const module = "kubevirt.io/containerized-data-importer"

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}

func run(arguments []string, out io.Writer) error {
	var objects []client.Object
	var err error
	switch {
	case len(arguments) == 3 && arguments[0] == "operator":
		objects, err = operatorObjects(arguments[1], arguments[2])
	case len(arguments) == 1 && arguments[0] == "importer":
		objects = []client.Object{importer()}
	case len(arguments) == 1 && arguments[0] == "profiles":
		objects = []client.Object{profile("local"), profile("local-immediate")}
	default:
		return errors.New("usage: manifests operator PREFIX TAG | importer | profiles")
	}
	if err != nil {
		return err
	}
	items := make([]map[string]any, len(objects))
	for i, object := range objects {
		if items[i], err = runtime.DefaultUnstructuredConverter.ToUnstructured(object); err != nil {
			return fmt.Errorf("encode %s: %w", object.GetName(), err)
		}
		// The types have it always, and it is not ours to apply.
		delete(items[i], "status")
	}
	list := map[string]any{"apiVersion": "v1", "kind": "List", "items": items}
	if err := json.NewEncoder(out).Encode(list); err != nil {
		return fmt.Errorf("print the objects: %w", err)
	}
	return nil
}

func operatorObjects(prefix, tag string) ([]client.Object, error) {
	image := func(name string) string { return prefix + "-" + name + ":" + tag }
	version, err := moduleVersion()
	if err != nil {
		return nil, err
	}
	objects, err := operator.CreateOperatorResourceGroup("everything", &operator.FactoryArgs{
		Image: image("operator"),
		NamespacedArgs: namespaced.FactoryArgs{
			Namespace:              namespace,
			OperatorVersion:        version,
			DeployClusterResources: "true",
			ControllerImage:        image("controller"),
			ImporterImage:          image("importer"),
			ClonerImage:            image("cloner"),
			APIServerImage:         image("apiserver"),
			UploadProxyImage:       image("uploadproxy"),
			UploadServerImage:      image("uploadserver"),
			// The source oVirt needs a client that is written in Python, which the images do not have.
			OvirtPopulatorImage: image("importer"),
			Verbosity:           "1",
			PullPolicy:          string(corev1.PullIfNotPresent),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make the operator's objects: %w", err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return append([]client.Object{ns}, objects...), nil
}

func moduleVersion() (string, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", errors.New("this program does not know its modules: it must be built with Go modules")
	}
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return dependency.Version, nil
		}
	}
	return "", fmt.Errorf("this program was built without the module %s", module)
}

// importer returns the object that installs the importer, with the settings of its releases.
func importer() *v1beta1.CDI {
	o := &v1beta1.CDI{ObjectMeta: metav1.ObjectMeta{Name: "cdi"}}
	o.SetGroupVersionKind(v1beta1.SchemeGroupVersion.WithKind("CDI"))
	o.Spec.ImagePullPolicy = corev1.PullIfNotPresent
	// A claim of a class that waits for its first consumer is filled when a Pod needs it, as everywhere with VMs.
	o.Spec.Config = &v1beta1.CDIConfigSpec{FeatureGates: []string{"HonorWaitForFirstConsumer"}}
	return o
}

// profile describes a storage class of the local cluster's CSI driver, which the importer does not know. The first set
// is that of DataVolumes that name none.
func profile(class string) *v1beta1.StorageProfile {
	o := &v1beta1.StorageProfile{ObjectMeta: metav1.ObjectMeta{Name: class}}
	o.SetGroupVersionKind(v1beta1.SchemeGroupVersion.WithKind("StorageProfile"))
	o.Spec.CloneStrategy = ptr.To(v1beta1.CloneStrategyCsiClone)
	o.Spec.ClaimPropertySets = []v1beta1.ClaimPropertySet{
		{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, VolumeMode: ptr.To(corev1.PersistentVolumeBlock)},
		{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: ptr.To(corev1.PersistentVolumeBlock)},
		{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem)},
		{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem)},
	}
	return o
}
