// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clientcompat

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"kubevirt.io/client-go/kubecli"
)

// mainModule is the directory of the main module.
const mainModule = "../.."

var (
	// kubevirt is KubeVirt's client of the cluster that the tests share, with an administrator's rights.
	kubevirt kubecli.KubevirtClient
	// component is the same with the name of virt-controller, so that it may write status.
	component kubecli.KubevirtClient
)

func TestMain(m *testing.M) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		fmt.Println("KUBEBUILDER_ASSETS is not set: run this through make test-clientcompat, which builds the API server")
		return
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

// run starts the cluster and runs the tests.
func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "clientcompat")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program, kubeconfig := filepath.Join(dir, "world"), filepath.Join(dir, "kubeconfig")
	build := exec.Command("go", "build", "-o", program, "./test/clientworld")
	build.Dir, build.Stdout, build.Stderr = mainModule, os.Stdout, os.Stderr
	if err := build.Run(); err != nil {
		return 0, fmt.Errorf("cannot build clientworld: %w", err)
	}
	world := exec.Command(program, kubeconfig)
	world.Dir = mainModule
	logs, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return 0, err
	}
	world.Stderr = logs
	input, err := world.StdinPipe()
	if err != nil {
		return 0, err
	}
	output, err := world.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := world.Start(); err != nil {
		return 0, err
	}
	// It stops when its standard input is closed.
	defer func() { err = errors.Join(err, input.Close(), world.Wait()) }()
	if line, err := bufio.NewReader(output).ReadString('\n'); line != "ready\n" {
		text, _ := os.ReadFile(logs.Name())
		return 0, fmt.Errorf("clientworld did not start: %q %w\n%s", line, err, text)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return 0, err
	}
	if kubevirt, err = kubecli.GetKubevirtClientFromRESTConfig(config); err != nil {
		return 0, err
	}
	controller := rest.CopyConfig(config)
	controller.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:kubevirt:kubevirt-controller",
		Groups: []string{"system:masters"}}
	if component, err = kubecli.GetKubevirtClientFromRESTConfig(controller); err != nil {
		return 0, err
	}
	return m.Run(), nil
}
