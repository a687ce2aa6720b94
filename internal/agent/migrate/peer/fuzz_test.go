// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package peer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/qemutls"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// onlyGuest is a cluster with one guest, which migrates from red to blue. It records what was done to the guest.
type onlyGuest struct {
	client.Reader
	did []types.NamespacedName
	// kept is how many bytes of state were stored, and added how many were written to overlays.
	kept, added int
}

func (g *onlyGuest) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	vmi, ok := into.(*v1.VirtualMachineInstance)
	if !ok || key.Namespace != "ns" || key.Name != "vm" {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	vmi.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: "vm"}
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "uid", SourceNode: "red",
		TargetNode: "blue", TargetPod: "p"}
	return nil
}

func (g *onlyGuest) TargetState(context.Context, string) (protocol.TargetDomain, error) {
	return protocol.TargetReceiving, nil
}

func (g *onlyGuest) Pool(context.Context, string, string) (*hypervisor.Pool, error) {
	return &hypervisor.Pool{Volumes: []hypervisor.Volume{{Name: fuzzedOverlay}}}, nil
}

func (g *onlyGuest) UploadAt(_ context.Context, _, name string, _ uint64, data []byte) error {
	if name != fuzzedOverlay {
		return errors.New("another file")
	}
	g.did, g.added = append(g.did, types.NamespacedName{Namespace: "ns", Name: "vm"}), g.added+len(data)
	return nil
}

func (g *onlyGuest) PutMigrationTLS(context.Context, qemutls.Files) error { return nil }

func (g *onlyGuest) KeepState(_ context.Context, _ hypervisor.StateFiles, nvram []byte) error {
	g.did, g.kept = append(g.did, types.NamespacedName{Namespace: "ns", Name: "vm"}), len(nvram)
	return nil
}

// fuzzedOverlay is the overlay of the guest's disk.
const fuzzedOverlay = "data-1048576.qcow2"

// FuzzRequest checks that only requests of the source's agent about this migration succeed, and that refusals have a
// bounded length, whatever another agent sends.
func FuzzRequest(f *testing.F) {
	guest := &onlyGuest{}
	targets := NewTargets()
	const domain = `<domain><os><nvram>/var/lib/vireo/state/nvram</nvram></os><devices><disk type="file" device="disk">
		<source file="` + launcherpod.TrackedDisksDir + "/" + fuzzedOverlay + `"><dataStore type="file"><source file="/disk.img"/></dataStore></source>
		<alias name="ua-disk-data"/></disk></devices></domain>`
	targets.Put("uid", Target{Pod: hypervisor.PodRef{UID: "pod"}, Address: "10.0.0.1", Domain: domain, Plain: true})
	peer := ""
	server, err := NewServer(ServerOptions{
		TLS:      &tls.Config{MinVersion: tls.VersionTLS13},
		PeerNode: func(tls.ConnectionState) (string, error) { return peer, nil },
		Node:     "blue", Incoming: guest, Targets: targets,
		Open:   func(hypervisor.PodRef) (Launcher, error) { return guest, nil },
		Tunnel: func(context.Context, hypervisor.PodRef) (net.Conn, error) { return nil, errors.New("no tunnel here") },
		Run: func(_ context.Context, vmi types.NamespacedName, _ types.UID) (time.Duration, error) {
			guest.did = append(guest.did, vmi)
			return time.Second, nil
		},
	})
	if err != nil {
		f.Fatal(err)
	}
	m := Attempt{VMI: types.NamespacedName{Namespace: "ns", Name: "vm"}, UID: "uid"}
	f.Add("red", http.MethodPut, m.path(bitmapsRequest),
		[]byte(`[{"volume":"data","bytes":1048576,"bitmaps":[{"name":"a","granularity":16,"parts":[{"at":0,"bits":"AQI="}]}]}]`))
	for _, what := range []string{destinationRequest, tunnelRequest, stateRequest, bitmapsRequest, releaseRequest} {
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost} {
			f.Add("red", method, m.path(what), []byte("state"))
		}
		f.Add("green", http.MethodPost, m.path(what), []byte{})
	}
	f.Fuzz(func(t *testing.T, from, method, target string, body []byte) {
		where, err := url.ParseRequestURI(target)
		if err != nil || !strings.HasPrefix(target, "/") {
			return
		}
		peer, guest.did, guest.kept, guest.added = from, nil, 0, 0
		r := httptest.NewRequest(http.MethodGet, "/", bytes.NewReader(body))
		r.Method, r.URL, r.RequestURI, r.TLS = method, where, target, &tls.ConnectionState{}
		w := httptest.NewRecorder()
		server.handler.ServeHTTP(w, r)
		if from != "red" && (len(guest.did) > 0 || w.Code/100 == 2) {
			t.Errorf("the agent of node %q did %s %s: %d", from, method, target, w.Code)
		}
		for _, vmi := range guest.did {
			if vmi != m.VMI {
				t.Errorf("%s %s is about %s", method, target, vmi)
			}
		}
		if guest.kept > len(body) || guest.added > MaxAdded || w.Body.Len() > 8<<10 {
			t.Errorf("%d bytes were stored, %d returned", guest.kept, w.Body.Len())
		}
	})
}

// fixedResponse is a peer that always returns the same response.
type fixedResponse struct {
	code int
	body []byte
}

func (f fixedResponse) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: f.code, Body: io.NopCloser(bytes.NewReader(f.body)), Request: r,
		Header: http.Header{}}, nil
}

// FuzzResponse checks that a response of a target's agent is accepted or causes an error of a bounded length, whatever
// it contains.
func FuzzResponse(f *testing.F) {
	f.Fuzz(func(t *testing.T, code uint16, body []byte) {
		c := &Client{http: &http.Client{Transport: fixedResponse{int(code), body}}}
		m := Attempt{VMI: types.NamespacedName{Namespace: "ns", Name: "vm"}, UID: "uid", TargetNode: "blue",
			Agent: "10.0.0.1"}
		destination, err := c.Destination(t.Context(), m)
		if (destination == nil) == (err == nil) || err != nil && len(err.Error()) > 4096+len(fmt.Sprint(m)) {
			t.Errorf("%v, and an error of %d bytes", destination, len(fmt.Sprint(err)))
		}
		if runs, err := c.Release(t.Context(), m); runs < 0 || err != nil && runs != 0 {
			t.Errorf("it runs for %s (%v)", runs, err)
		}
	})
}
