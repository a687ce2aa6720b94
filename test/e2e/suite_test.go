// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package e2e tests a real cluster with real guests through the API, as a user with manifests and kubectl would. It
// needs KUBECONFIG, a deployed Vireo and the images of `make images`. Specs that need more, such as killing a node's
// kubelet, are skipped on a cluster that `make cluster-up` did not create.
package e2e

import (
	"context"
	"os"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/api/cdi"
	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/api/csi"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	instancetypev1 "github.com/vireo-project/vireo/api/instancetype/v1beta1"
	migrationsv1alpha1 "github.com/vireo-project/vireo/api/migrations/v1alpha1"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/speclabels"
)

// How long guests and the control plane may take on a busy computer with two cores and software emulation. These only
// limit a hang; no spec asserts how fast something is.
var (
	shortTimeout  = scaled(90 * time.Second)
	bootTimeout   = scaled(4 * time.Minute)
	debianTimeout = scaled(12 * time.Minute)
)

const pollInterval = 500 * time.Millisecond

// slowness is the factor of all timeouts, for a cluster whose processors are emulated.
var slowness = numberOr("VIREO_E2E_SLOWNESS", 1)

func scaled(timeout time.Duration) time.Duration { return time.Duration(slowness) * timeout }

// specTimeout limits a spec, and nodeTimeout what is set up or cleaned up for it.
func specTimeout(limit time.Duration) SpecTimeout { return SpecTimeout(scaled(limit)) }

func nodeTimeout(limit time.Duration) NodeTimeout { return NodeTimeout(scaled(limit)) }

var (
	restConfig *rest.Config
	k8s        client.Client
	clientset  kubernetes.Interface
	imageTag   = valueOr("TAG", "dev")
	registry   = valueOr("IMG_REGISTRY", "localhost/vireo")
)

func valueOr(variable, otherwise string) string {
	if value := os.Getenv(variable); value != "" {
		return value
	}
	return otherwise
}

func image(name string) string { return registry + "/" + name + ":" + imageTag }

func TestEndToEnd(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "End to end", Label("e2e"))
}

// extended labels specs that `make test-e2e` does not run for each commit; `make test-e2e-all` runs all of them.
var extended = speclabels.Extended

// slow labels specs that take more than five minutes and whose subject another suite also covers: only `make
// test-e2e-all` runs them.
func slow() Labels { return Label("extended", "slow") }

var _ = BeforeSuite(func(ctx context.Context) {
	ctrllog.SetLogger(GinkgoLogr)
	path := os.Getenv("KUBECONFIG")
	Expect(path).NotTo(BeEmpty(), "KUBECONFIG must name the cluster to test; `make test-e2e` brings one up and sets it")
	var err error
	restConfig, err = clientcmd.BuildConfigFromFlags("", path)
	Expect(err).NotTo(HaveOccurred())
	restConfig.QPS, restConfig.Burst = 100, 200
	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1.AddToScheme(scheme)).To(Succeed())
	Expect(instancetypev1.AddToScheme(scheme)).To(Succeed())
	Expect(migrationsv1alpha1.AddToScheme(scheme)).To(Succeed())
	Expect(poolv1.AddToScheme(scheme)).To(Succeed())
	Expect(cdi.AddToScheme(scheme)).To(Succeed())
	Expect(csi.AddToScheme(scheme)).To(Succeed())
	Expect(snapshotv1beta1.AddToScheme(scheme)).To(Succeed())
	Expect(clonev1beta1.AddToScheme(scheme)).To(Succeed())
	Expect(exportv1.AddToScheme(scheme)).To(Succeed())
	Expect(backupv1alpha1.AddToScheme(scheme)).To(Succeed())
	k8s, err = client.New(restConfig, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	clientset, err = kubernetes.NewForConfig(restConfig)
	Expect(err).NotTo(HaveOccurred())

	By("waiting for Vireo to be available")
	Eventually(func(g Gomega) {
		list := &v1.KubeVirtList{}
		g.Expect(k8s.List(ctx, list)).To(Succeed())
		g.Expect(list.Items).To(HaveLen(1))
		g.Expect(list.Items[0].Status.Phase).To(Equal(v1.KubeVirtPhaseDeployed))
		nodes := &corev1.NodeList{}
		g.Expect(k8s.List(ctx, nodes, client.MatchingLabels{v1.NodeSchedulable: "true"})).To(Succeed())
		g.Expect(nodes.Items).NotTo(BeEmpty(), "no node is schedulable for VMs")
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}, nodeTimeout(6*time.Minute))
