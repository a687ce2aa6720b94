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

// localCluster is the cluster of this machine, by its program.
type localCluster struct {
	program string
	env     map[string]string
}

func openCluster(ctx context.Context, program string) (*localCluster, error) {
	if program == "" {
		return nil, errors.New("chaos kills processes of the cluster: --cluster or VIREO_CLUSTER must name the program of a local one")
	}
	c := &localCluster{program: program}
	if err := c.refresh(ctx); err != nil {
		return nil, err
	}
	if len(c.nodes()) != 2 {
		return nil, fmt.Errorf("a guest needs two nodes to move between, and no third is looked at here: there are %v", c.nodes())
	}
	return c, nil
}

// refresh reads what runs with which process ids.
func (c *localCluster) refresh(ctx context.Context) error {
	output, err := exec.CommandContext(ctx, c.program, "env").Output()
	if err != nil {
		return fmt.Errorf("ask the cluster for its processes: %w", err)
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

// containerd is a node's folder of containerd.
func (c *localCluster) containerd(node string) string {
	return filepath.Join(c.state(), "nodes", node, "containerd")
}

// log is the log of a component, as the cluster names it.
func (c *localCluster) log(component string) string {
	return filepath.Join(c.env["VIREO_CLUSTER_LOGS"], component+".log")
}

// pid is the process of a component, as it was when the cluster was asked.
func (c *localCluster) pid(component string) (int, error) {
	name := strings.ToUpper(strings.NewReplacer("/", "_", "-", "_").Replace(component))
	return strconv.Atoi(c.env["VIREO_CLUSTER_PID_"+name])
}

// kill ends a component as a crash would.
func (c *localCluster) kill(component string) error {
	pid, err := c.pid(component)
	if err != nil {
		return fmt.Errorf("%s does not run: %w", component, err)
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// up starts what of the cluster does not run.
func (c *localCluster) up(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	output, err := exec.CommandContext(ctx, c.program, "up", "--nodes", strconv.Itoa(len(c.nodes()))).CombinedOutput()
	if err != nil {
		return fmt.Errorf("start what was killed: %w: %s", err, output)
	}
	return c.refresh(ctx)
}

// enter runs a command in a node's network, with an input.
func (c *localCluster) enter(ctx context.Context, node, input string, command ...string) (string, error) {
	holder, err := c.pid(node + "/holder")
	if err != nil {
		return "", fmt.Errorf("%s is not there: %w", node, err)
	}
	enter := exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(holder), "--net", "--"}, command...)...)
	enter.Stdin = strings.NewReader(input)
	output, err := enter.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s on %s: %w: %s", strings.Join(command, " "), node, err, output)
	}
	return string(output), nil
}
