// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// ClusterProfilerRequest is the body of dump-cluster-profiler.
type ClusterProfilerRequest struct {
	// labelSelector picks components by their labels. Default: all.
	LabelSelector string `json:"labelSelector,omitempty"`
	// continue is the token of the page before. Default: the first page.
	Continue string `json:"continue,omitempty"`
	// pageSize is the maximum number of components in a response.
	PageSize int64 `json:"pageSize"`
}

// ClusterProfilerResults is the response of dump-cluster-profiler.
type ClusterProfilerResults struct {
	// componentResults are the profiles by component.
	ComponentResults map[string]ProfilerResult `json:"componentResults"`
	// continue is the token for the next page; empty on the last.
	Continue string `json:"continue,omitempty"`
}

// ProfilerResult are the profiles of one component.
type ProfilerResult struct {
	// pprofData are the profiles by name, in the format of pprof.
	PprofData map[string][]byte `json:"pprofData,omitempty"`
}
