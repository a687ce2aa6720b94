// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command clientworld is the cluster for test/clientcompat. It is a separate process because KubeVirt's client needs
// older Kubernetes libraries. It runs an API server with the CRDs, the policy for status and the webhooks for the kinds
// of storage, virt-api behind the aggregation layer, and the agent of one node, which echoes. It writes an
// administrator's kubeconfig to the file that is its argument, prints "ready", and runs until its standard input is
// closed. KUBEBUILDER_ASSETS is the directory of the API server.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/pki"
	"github.com/vireo-project/vireo/test/rights"
)

// readyTimeout is how long virt-api may take to be available through the API server, on a loaded machine.
const readyTimeout = 2 * time.Minute

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "clientworld:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	if len(os.Args) != 2 {
		return errors.New("the argument is the file for the kubeconfig")
	}
	dir, err := os.MkdirTemp("", "clientworld")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	env := apiserver.New(filepath.Join("config", "crd", "bases"))
	w := &world{kubeconfig: filepath.Join(dir, "virt-api.kubeconfig")}
	pki.FrontProxy(w, env, dir)
	if env.WebhookInstallOptions, err = storageWebhooks(filepath.Join("config", "webhook", "manifests.yaml")); err != nil {
		return err
	}
	config, err := env.Start()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.Stop()) }()
	for file, user := range map[string]envtest.User{
		os.Args[1]:   {Name: "admin", Groups: []string{"system:masters"}},
		w.kubeconfig: {Name: rights.API.User()},
	} {
		if err := addUser(env, user, file); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.config, w.webhooks = config, env.WebhookInstallOptions
	defer w.cleanup()
	if err := w.start(ctx); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// addUser writes the kubeconfig of a new user to a file.
func addUser(env *envtest.Environment, user envtest.User, file string) error {
	added, err := env.AddUser(user, nil)
	if err != nil {
		return err
	}
	kubeconfig, err := added.KubeConfig()
	if err != nil {
		return err
	}
	return os.WriteFile(file, kubeconfig, 0o600)
}
