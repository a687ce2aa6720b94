// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package adm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/rand"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// Values of --cmd.
const (
	profilerStart, profilerStop, profilerDump = "start", "stop", "dump"
)

// profiler contains the flags of cluster-profiler, which are those of KubeVirt's program of that name.
type profiler struct {
	cli      *cli.CLI
	cmd      string
	dir      string
	reuse    bool
	selector string
	token    string
	pageSize int64
}

func clusterProfiler(c *cli.CLI) *cobra.Command {
	p := &profiler{cli: c}
	cmd := &cobra.Command{
		Use:   "cluster-profiler",
		Short: "Profile the components of KubeVirt.",
		Long: "Profile the components of KubeVirt: start and stop CPU profiles, and write all profiles to files for go tool pprof.\n" +
			"spec.configuration.developerConfiguration.clusterProfiler of the KubeVirt object has to be true.",
		Example: c.Examples(`
# Take CPU profiles while something is slow, and write them to the directory cluster-profiler-results:
virtctl adm cluster-profiler --cmd start
virtctl adm cluster-profiler --cmd stop
virtctl adm cluster-profiler --cmd dump

# Write the profiles of virt-controller only:
virtctl adm cluster-profiler --cmd dump -l kubevirt.io=virt-controller`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&p.cmd, "cmd", "", "The profiler command: start, stop or dump.")
	flags.StringVar(&p.dir, "output-dir", "cluster-profiler-results",
		"The directory for the profiles. One that exists is renamed.")
	flags.BoolVar(&p.reuse, "reuse-output-dir", false, "Use the output directory even if it exists.")
	flags.StringVarP(&p.selector, "l", "l", "", "Dump only the profiles of Pods with these labels.")
	flags.StringVar(&p.token, "continue", "", "Continue a dump that failed, with the token that it printed.")
	flags.Int64Var(&p.pageSize, "page-size", 10, "Number of Pods whose profiles are fetched at once, at most 20.")
	return cmd
}

func (p *profiler) validate() error {
	if !slices.Contains([]string{profilerStart, profilerStop, profilerDump}, p.cmd) {
		if p.cmd == "" {
			return errors.New("--cmd must be set. Valid values are [start|stop|dump]")
		}
		return fmt.Errorf("unknown profiler --cmd value, [%s]. must be of type start|stop|dump", p.cmd)
	}
	if p.cmd != profilerDump && p.selector != "" {
		return errors.New("labelSelector can only be used with 'dump' command")
	}
	if p.pageSize <= 0 {
		return fmt.Errorf("page-size has to be larger than 0; got %d", p.pageSize)
	}
	if _, err := labels.Parse(p.selector); err != nil {
		return fmt.Errorf("failed to parse label selector: %w", err)
	}
	return nil
}

func (p *profiler) run(ctx context.Context) error {
	if err := p.validate(); err != nil {
		return err
	}
	server, err := p.cli.Subresources()
	if err != nil {
		return err
	}
	if p.cmd == profilerDump {
		return p.dump(ctx, server)
	}
	if err := server.GetGroupWith(ctx, p.cmd+"-cluster-profiler", nil, nil); err != nil {
		return fmt.Errorf("error cluster profiler %s: %w", p.cmd, err)
	}
	done := map[string]string{profilerStart: "started", profilerStop: "stopped"}[p.cmd]
	_, err = fmt.Fprintf(p.cli.Out, "SUCCESS: %s cpu profiling KubeVirt control plane\n", done)
	return err
}

// dump writes the profiles page by page. A dump that fails can be continued.
func (p *profiler) dump(ctx context.Context, server *subresources.Client) error {
	if err := p.prepare(); err != nil {
		return err
	}
	request := v1.ClusterProfilerRequest{LabelSelector: p.selector, Continue: p.token, PageSize: p.pageSize}
	count := 0
	for {
		page := v1.ClusterProfilerResults{}
		err := server.GetGroupWith(ctx, "dump-cluster-profiler", request, &page)
		if err == nil {
			err = p.write(page.ComponentResults)
		}
		if err != nil {
			return fmt.Errorf("error cluster profiler dump: %w\nContinue token from last successful profiles fetch: %q",
				err, request.Continue)
		}
		count += len(page.ComponentResults)
		if page.Continue == "" || len(page.ComponentResults) == 0 {
			break
		}
		request.Continue = page.Continue
	}
	_, err := fmt.Fprintf(p.cli.Out, "SUCCESS: Dumped PProf %d results for KubeVirt control plane to [%s]\n", count, p.dir)
	return err
}

// prepare creates the directory. It renames an existing one.
func (p *profiler) prepare() error {
	if _, err := os.Lstat(p.dir); err == nil && !p.reuse {
		old := fmt.Sprintf("%s-old-%s", p.dir, rand.String(4))
		if _, err := fmt.Fprintf(p.cli.ErrOut, "Moving already existing %q => %q\n", p.dir, old); err != nil {
			return err
		}
		if err := os.Rename(p.dir, old); err != nil {
			return err
		}
	}
	return os.MkdirAll(p.dir, 0o750)
}

// write writes a directory for each Pod, with a file for each profile. The names are the server's, so it rejects those
// that lead out of the directory.
func (p *profiler) write(results map[string]v1.ProfilerResult) error {
	root, err := os.OpenRoot(p.dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for pod, result := range results {
		if pod != filepath.Base(pod) || !filepath.IsLocal(pod) {
			return fmt.Errorf("the server returned profiles of %q, which is not the name of a Pod", pod)
		}
		if err := root.Mkdir(pod, 0o750); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		for name, content := range result.PprofData {
			if name != filepath.Base(name) || !filepath.IsLocal(name) {
				return fmt.Errorf("the server returned a profile with the name %q", name)
			}
			if err := root.WriteFile(filepath.Join(pod, name), content, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}
