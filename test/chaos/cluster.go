// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// localCluster is the local cluster, controlled through hack/cluster/cluster.
type localCluster struct {
	program string
	env     map[string]string
}

func openCluster(ctx context.Context, program string) (*localCluster, error) {
	if program == "" {
		return nil, errors.New(
			"chaos kills processes of the cluster: set --cluster or VIREO_CLUSTER to the program of a local cluster")
	}
	c := &localCluster{program: program}
	if err := c.refresh(ctx); err != nil {
		return nil, err
	}
	if len(c.nodes()) != 2 {
		return nil, fmt.Errorf("chaos needs a cluster of exactly two nodes, and this one has %v", c.nodes())
	}
	return c, nil
}

// refresh reads the cluster's environment again, with the process IDs of its components.
func (c *localCluster) refresh(ctx context.Context) error {
	output, err := exec.CommandContext(ctx, c.program, "env").Output()
	if err != nil {
		return fmt.Errorf("read the environment of the cluster: %w", err)
	}
	c.env = map[string]string{}
	for line := range strings.Lines(string(output)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		c.env[name] = strings.Trim(value, "'")
	}
	return nil
}

func (c *localCluster) nodes() []string { return strings.Fields(c.env["VIREO_CLUSTER_NODES"]) }

func (c *localCluster) state() string { return c.env["VIREO_CLUSTER_STATE"] }

func (c *localCluster) kubeconfig() string { return c.env["KUBECONFIG"] }

// containerd is the directory of a node's containerd.
func (c *localCluster) containerd(node string) string {
	return filepath.Join(c.state(), "nodes", node, "containerd")
}

// log is the path of a component's log.
func (c *localCluster) log(component string) string {
	return filepath.Join(c.env["VIREO_CLUSTER_LOGS"], component+".log")
}

// pid is the process ID of a component at the last refresh.
func (c *localCluster) pid(component string) (int, error) {
	name := strings.ToUpper(strings.NewReplacer("/", "_", "-", "_").Replace(component))
	return strconv.Atoi(c.env["VIREO_CLUSTER_PID_"+name])
}

// kill sends SIGKILL to a component.
func (c *localCluster) kill(component string) error {
	pid, err := c.pid(component)
	if err != nil {
		return fmt.Errorf("%s does not run: %w", component, err)
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// start starts the components of the cluster that are not running.
func (c *localCluster) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	output, err := exec.CommandContext(ctx, c.program, "start").CombinedOutput()
	if err != nil {
		return fmt.Errorf("start the killed components: %w: %s", err, output)
	}
	return c.refresh(ctx)
}

// enter runs a command in a node's network namespace, with the given standard input.
func (c *localCluster) enter(ctx context.Context, node, input string, command ...string) (string, error) {
	holder, err := c.pid(node + "/holder")
	if err != nil {
		return "", fmt.Errorf("node %s is not running: %w", node, err)
	}
	enter := exec.CommandContext(ctx, "nsenter",
		append([]string{"--target", strconv.Itoa(holder), "--net", "--"}, command...)...)
	enter.Stdin = strings.NewReader(input)
	output, err := enter.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s on %s: %w: %s", strings.Join(command, " "), node, err, output)
	}
	return string(output), nil
}
