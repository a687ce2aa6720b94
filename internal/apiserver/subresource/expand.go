// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/instancetype/reference"
	"github.com/vireo-project/vireo/internal/quantity"
)

// expandSpec returns a VM with its instance type and preference expanded.
func (a *API) expandSpec(w http.ResponseWriter, r *http.Request) error {
	vm, err := a.vm(r.Context(), key(r))
	if err != nil {
		return err
	}
	expanded, err := a.expand(r.Context(), vm)
	if err != nil {
		return apierrors.NewInternalError(err) // KubeVirt's code.
	}
	writeObject(w, expanded)
	return nil
}

// expandVMSpec does the same for the VM in the request's body, which need not exist.
func (a *API) expandVMSpec(w http.ResponseWriter, r *http.Request) error {
	vm, err := readVM(r.Body)
	if err != nil {
		return err
	}
	namespace := r.PathValue("namespace")
	if vm.Namespace != "" && vm.Namespace != namespace {
		return apierrors.NewBadRequest("VM namespace must be empty or " + namespace)
	}
	vm.Namespace = namespace
	expanded, err := a.expand(r.Context(), vm)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	writeObject(w, expanded)
	return nil
}

// expand returns a VM with the instance type and the preference that it uses: those of its ControllerRevisions, or else of the
// objects. Nothing is inferred from volumes. A VM without both is returned unchanged: other defaults are applied when its VMI is
// created.
func (a *API) expand(ctx context.Context, vm *v1.VirtualMachine) (*v1.VirtualMachine, error) {
	specs, err := reference.Finder{Objects: a.Client, Revisions: a.Client}.Find(ctx, vm)
	if err != nil {
		return nil, err
	}
	expanded, conflicts := reference.ExpandVM(vm, specs)
	if len(conflicts) > 0 {
		return nil, conflicts.ErrVM()
	}
	expanded.SetGroupVersionKind(v1.GroupVersion.WithKind("VirtualMachine"))
	return expanded, nil
}

// readVM decodes a VM as strictly as the API server does with fieldValidation=Strict.
func readVM(body io.Reader) (*v1.VirtualMachine, error) {
	raw, err := io.ReadAll(body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit))
	case err != nil:
		return nil, apierrors.NewBadRequest(err.Error())
	case len(bytes.TrimSpace(raw)) == 0:
		return nil, apierrors.NewBadRequest("empty request body")
	case !json.Valid(raw):
		return nil, decode(&http.Request{Body: io.NopCloser(bytes.NewReader(raw))}, &struct{}{})
	}
	vm := &v1.VirtualMachine{}
	if err := quantity.Check(raw, vm); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	strict, err := kjson.UnmarshalStrict(raw, vm)
	if err != nil {
		strict = append(strict, err)
	}
	if err == nil && vm.Spec.Template == nil {
		strict = append(strict, errors.New("spec.template: required value"))
	}
	if len(strict) == 0 {
		return vm, nil
	}
	invalid := apierrors.NewBadRequest("Object is not a valid VirtualMachine")
	invalid.ErrStatus.Details = &metav1.StatusDetails{}
	for _, problem := range strict {
		invalid.ErrStatus.Details.Causes = append(invalid.ErrStatus.Details.Causes, metav1.StatusCause{Message: problem.Error()})
	}
	return nil, invalid
}
