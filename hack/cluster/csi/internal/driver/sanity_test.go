// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// TestSanity runs the suite of the CSI project, for volumes with a filesystem and for block volumes, against a
// controller and a node.
func TestSanity(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Dir(w.dir)
	controller, node := filepath.Join(dir, "controller.sock"), filepath.Join(dir, "node.sock")
	ctx, cancel := context.WithCancel(context.Background())
	var group errgroup.Group
	group.Go(func() error {
		return Serve(ctx, controller, quiet(), func(s grpc.ServiceRegistrar) {
			csi.RegisterIdentityServer(s, Identity{})
			csi.RegisterControllerServer(s, w.controller)
			csi.RegisterGroupControllerServer(s, w.controller)
		})
	})
	group.Go(func() error {
		return Serve(ctx, node, quiet(), func(s grpc.ServiceRegistrar) {
			csi.RegisterIdentityServer(s, Identity{})
			csi.RegisterNodeServer(s, w.nodes[0])
		})
	})
	connections := make([]*grpc.ClientConn, 2)
	for i, socket := range []string{node, controller} {
		var err error
		if connections[i], err = grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.WaitForReady(true))); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = connections[i].Close() }()
	}
	for _, access := range []string{"mount", "block"} {
		config := sanity.NewTestConfig()
		config.TargetPath, config.StagingPath = filepath.Join(dir, "target-"+access), filepath.Join(dir, "staging-"+access)
		config.TestVolumeAccessType = access
		config.TestVolumeSize, config.TestVolumeExpandSize = gib, 2*gib
		ginkgo.Describe(access, func() {
			suite := sanity.GinkgoTest(&config)
			// The suite's own way to connect fails after a minute if the driver is ready before it begins to wait for that.
			suite.Conn, suite.ControllerConn = connections[0], connections[1]
		})
	}
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, "CSI sanity")
	cancel()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}
