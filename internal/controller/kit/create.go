// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/podspec"
)

// CreatePod creates a Pod. If a LimitRange of its namespace refuses the resources of a container of Vireo's own, it
// creates the Pod with what the LimitRange demands. LimitRanges are read only then: few namespaces have such a one.
func CreatePod(ctx context.Context, c client.Client, apiReader client.Reader, pod *corev1.Pod, container string) error {
	err := c.Create(ctx, pod)
	if !apierrors.IsForbidden(err) {
		return err
	}
	ranges, failed := LimitRanges(ctx, apiReader, pod.Namespace)
	if failed != nil {
		return errors.Join(err, failed)
	}
	if !podspec.Fit(pod, container, ranges) {
		return err
	}
	return c.Create(ctx, pod)
}

// maxLimits is how many limits of a namespace are considered. If there are more, the API server may refuse a Pod, and
// says why.
const maxLimits = 1000

// LimitRanges returns what the LimitRanges of a namespace demand of the CPUs and the memory of Pods and containers, as
// they are on the API server: few Pods need it, so they are not watched.
func LimitRanges(ctx context.Context, live client.Reader, namespace string) ([]corev1.LimitRange, error) {
	var limits []corev1.LimitRangeItem
	err := EachPage(ctx, live, &corev1.LimitRangeList{}, func(page *corev1.LimitRangeList) {
		for i := range page.Items {
			for j := range page.Items[i].Spec.Limits {
				item := &page.Items[i].Spec.Limits[j]
				if len(limits) < maxLimits && (item.Type == corev1.LimitTypePod || item.Type == corev1.LimitTypeContainer) {
					limits = append(limits, corev1.LimitRangeItem{
						Type: item.Type, Min: computing(item.Min), Max: computing(item.Max),
						MaxLimitRequestRatio: computing(item.MaxLimitRequestRatio),
					})
				}
			}
		}
	}, client.InNamespace(namespace))
	switch {
	case err != nil:
		return nil, fmt.Errorf("list the LimitRanges of namespace %s: %w", namespace, err)
	case len(limits) == 0:
		return nil, nil
	default:
		return []corev1.LimitRange{{Spec: corev1.LimitRangeSpec{Limits: limits}}}, nil
	}
}

// computing returns the CPUs and the memory of a list of resources.
func computing(all corev1.ResourceList) corev1.ResourceList {
	var kept corev1.ResourceList
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if quantity, ok := all[name]; ok {
			if kept == nil {
				kept = corev1.ResourceList{}
			}
			kept[name] = quantity
		}
	}
	return kept
}

// CreateInBatches creates a number of objects like InBatches, and returns those that were made, also beside an error.
// It is no error if nothing can be created in the namespace any more.
func CreateInBatches[T any](count int, create func() (*T, error)) ([]*T, error) {
	results := make([]*T, count)
	err := InBatches(count, func(i int) (err error) {
		results[i], err = create()
		return err
	})
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		err = nil
	}
	return slices.DeleteFunc(results, func(made *T) bool { return made == nil }), err
}

// InBatches calls do count times, concurrently in batches that double in size. After a batch with errors it stops and
// returns the first error; the others most likely have the same cause.
func InBatches(count int, do func(i int) error) error {
	for done, size := 0, 1; done < count; done, size = done+size, 2*size {
		size = min(size, count-done)
		errs := make([]error, size)
		var batch sync.WaitGroup
		for i := range size {
			batch.Go(func() { errs[i] = do(done + i) })
		}
		batch.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// The API server makes a name from generateName by appending this number of characters of this alphabet to a prefix of
// at most this length. Source: k8s.io/apiserver pkg/storage/names, k8s.io/apimachinery pkg/util/rand.
const (
	SuffixLength = 5
	PrefixLength = 63 - SuffixLength
	alphabet     = "bcdfghjklmnpqrstvwxz2456789"
)

// Suffix returns the name suffix with the given index in the sequence that follows from uid. A name with it has the
// format of generateName, and is deterministic: two reconciliations of the same state create an object of the same
// name, so the API server accepts only one of them.
func Suffix(uid types.UID, index uint64) string {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(uid), index))
	number := binary.BigEndian.Uint64(sum[:])
	out := make([]byte, SuffixLength)
	for i := range out {
		out[i] = alphabet[number%uint64(len(alphabet))]
		number /= uint64(len(alphabet))
	}
	return string(out)
}
