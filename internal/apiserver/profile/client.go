// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package profile is virt-api's client of the components' profilers. It finds the Pods of the components, verifies by
// its certificate that each belongs to its component, and limits what it accepts: an agent may be hostile.
package profile

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/printable"
	"github.com/vireo-project/vireo/internal/component/profiler"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// Components, by the label kubevirt.io of their Pods.
const (
	API        = "virt-api"
	Controller = "virt-controller"
	Handler    = "virt-handler"
)

// ports are the names of the ports on which components serve profiles.
var ports = map[string]string{API: "metrics", Controller: "metrics", Handler: "console"}

const (
	// podTimeout bounds a request to one Pod, and totalTimeout the requests to all of them.
	podTimeout, totalTimeout = 5 * time.Second, 25 * time.Second
	// parallel limits the concurrent requests to Pods, and parallelDumps the concurrent requests for profiles.
	parallel, parallelDumps = 20, 4
	// defaultPage and maxPage are the default and the maximum number of Pods on a page of profiles. KubeVirt's values.
	defaultPage, maxPage = 10, 20
	// maxPageBytes bounds the profiles of a page.
	maxPageBytes = 64 << 20
	// maxHeader bounds the headers of a response, and maxError its body if it is an error.
	maxHeader, maxError = 16 << 10, 512
)

// Client requests profiles from the components.
type Client struct {
	// Pods lists Pods, without a cache.
	Pods client.Reader
	// Namespace is the install namespace.
	Namespace string
	// TLS returns the configuration of a connection to the Pod of a component on a node. Both sides authenticate.
	TLS func(component, node string) (*tls.Config, error)

	dumping sync.Mutex
}

// Start starts CPU profiles in all components. If some fail, the others are started.
func (c *Client) Start(ctx context.Context) error { return c.each(ctx, profiler.StartPath) }

// Stop stops the CPU profiles in all components.
func (c *Client) Stop(ctx context.Context) error { return c.each(ctx, profiler.StopPath) }

func (c *Client) each(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, totalTimeout)
	defer cancel()
	pods, _, err := c.list(ctx, client.MatchingLabelsSelector{Selector: components})
	if err != nil {
		return err
	}
	if len(pods) == 0 {
		return errors.New("no component pods found")
	}
	var group errgroup.Group
	group.SetLimit(parallel)
	for i := range pods {
		pod := &pods[i]
		group.Go(func() error {
			_, err := c.get(ctx, pod, path, maxError)
			return err
		})
	}
	return group.Wait()
}

// Dump calls respond with the profiles of a page of Pods; only the last page may be empty. Other calls fail until
// respond returns, because profiles are large and kept in memory.
func (c *Client) Dump(
	ctx context.Context, request v1.ClusterProfilerRequest, respond func(*v1.ClusterProfilerResults),
) error {
	if !c.dumping.TryLock() {
		return apierrors.NewTooManyRequests("virt-api is collecting profiles for another request", 1)
	}
	defer c.dumping.Unlock()
	results, err := c.collect(ctx, request)
	if err != nil {
		return err
	}
	respond(results)
	return nil
}

func (c *Client) collect(ctx context.Context, request v1.ClusterProfilerRequest) (*v1.ClusterProfilerResults, error) {
	ctx, cancel := context.WithTimeout(ctx, totalTimeout)
	defer cancel()
	pods, next, err := c.page(ctx, request)
	if err != nil {
		return nil, err
	}
	results := &v1.ClusterProfilerResults{ComponentResults: map[string]v1.ProfilerResult{}, Continue: next}
	var mu sync.Mutex
	total := 0
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelDumps)
	for i := range pods {
		pod := &pods[i]
		group.Go(func() error {
			result, err := c.dump(ctx, pod)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			for content := range maps.Values(result.PprofData) {
				total += len(content)
			}
			if total > maxPageBytes {
				return fmt.Errorf("the profiles of a page have more than %d bytes: request a smaller pageSize", maxPageBytes)
			}
			results.ComponentResults[pod.Name] = result
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return results, nil
}

// page returns the ready Pods of a page and the token of the next. A page without a ready Pod is skipped, because
// clients would take it for the last one.
func (c *Client) page(ctx context.Context, request v1.ClusterProfilerRequest) ([]corev1.Pod, string, error) {
	selector, err := labels.Parse(request.LabelSelector)
	if err != nil {
		return nil, "", apierrors.NewBadRequest(
			fmt.Sprintf("Internal error while looking up component pods for profiling: %v", err))
	}
	requirements, _ := components.Requirements()
	selector = selector.Add(requirements...)
	size := request.PageSize
	if size <= 0 {
		size = defaultPage
	}
	next := request.Continue
	for {
		var pods []corev1.Pod
		pods, next, err = c.list(ctx, client.MatchingLabelsSelector{Selector: selector},
			client.Limit(min(size, maxPage)), client.Continue(next))
		if err != nil || len(pods) > 0 || next == "" {
			return pods, next, err
		}
	}
}

// components selects the Pods of components.
var components = func() labels.Selector {
	requirement, err := labels.NewRequirement(v1.AppLabel, selection.In, []string{API, Controller, Handler})
	if err != nil {
		panic(err) // the values are constants
	}
	return labels.NewSelector().Add(*requirement)
}()

// list returns the Pods that are ready.
func (c *Client) list(ctx context.Context, options ...client.ListOption) ([]corev1.Pod, string, error) {
	list := &corev1.PodList{}
	if err := c.Pods.List(ctx, list, append(options, client.InNamespace(c.Namespace))...); err != nil {
		return nil, "", err
	}
	ready := list.Items[:0]
	for i := range list.Items {
		if isReady(&list.Items[i]) {
			ready = append(ready, list.Items[i])
		}
	}
	return ready, list.Continue, nil
}

func isReady(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && pod.Status.PodIP != "" &&
		podstate.Ready(pod)
}

// dump returns the profiles of a Pod. Names that no component uses are dropped: clients use them as names of files.
func (c *Client) dump(ctx context.Context, pod *corev1.Pod) (v1.ProfilerResult, error) {
	body, err := c.get(ctx, pod, profiler.DumpPath, profiler.MaxResponse)
	if err != nil {
		return v1.ProfilerResult{}, err
	}
	var response struct {
		PprofData knownProfiles `json:"pprofData"`
	}
	if err := json.Unmarshal(body, &response); err != nil {
		return v1.ProfilerResult{}, fmt.Errorf("pod %s returned something other than profiles", pod.Name)
	}
	return v1.ProfilerResult{PprofData: response.PprofData.byName()}, nil
}

// knownProfiles contains the profiles that components have. Others in a response are not decoded.
type knownProfiles struct {
	CPU          []byte `json:"cpu.pprof"`
	Goroutine    []byte `json:"goroutine.pprof"`
	Heap         []byte `json:"heap.pprof"`
	Allocs       []byte `json:"allocs.pprof"`
	Threadcreate []byte `json:"threadcreate.pprof"`
	Block        []byte `json:"block.pprof"`
	Mutex        []byte `json:"mutex.pprof"`
}

func (k *knownProfiles) byName() map[string][]byte {
	profiles := map[string][]byte{
		"cpu.pprof": k.CPU, "goroutine.pprof": k.Goroutine, "heap.pprof": k.Heap, "allocs.pprof": k.Allocs,
		"threadcreate.pprof": k.Threadcreate, "block.pprof": k.Block, "mutex.pprof": k.Mutex,
	}
	maps.DeleteFunc(profiles, func(_ string, content []byte) bool { return content == nil })
	return profiles
}

// get sends a request to a Pod and returns the body of the response.
func (c *Client) get(ctx context.Context, pod *corev1.Pod, path string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	component := pod.Labels[v1.AppLabel]
	port, err := portOf(pod, ports[component])
	if err != nil {
		return nil, err
	}
	config, err := c.TLS(component, pod.Spec.NodeName)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	own := &http.Client{
		// Requests are rare, so each has a connection of its own.
		Transport: &http.Transport{
			TLSClientConfig: config, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(pod.Status.PodIP,
		port)+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	response, err := own.Do(request)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxError))
		return nil, fmt.Errorf("pod %s responded with %d: %s", pod.Name, response.StatusCode,
			printable.Text(string(text), maxError))
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	if int64(len(body)) > limit {
		return nil, fmt.Errorf("pod %s responded with more than %d bytes", pod.Name, limit)
	}
	return body, nil
}

// portOf returns the number of a Pod's port.
func portOf(pod *corev1.Pod, name string) (string, error) {
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == name {
				return strconv.Itoa(int(port.ContainerPort)), nil
			}
		}
	}
	return "", fmt.Errorf("pod %s has no port %q", pod.Name, name)
}
