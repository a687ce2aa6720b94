// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// signer is an API server that signs requests of a role when they are created.
type signer struct {
	*fake.Clientset // not the interface: its methods report to the watch what it does not support
	requests        atomic.Int32
	sign            func(*certificatesv1.CertificateSigningRequest) error
	disabled        atomic.Bool // does not sign
}

// newSigner returns an API server that signs with the CA and at the time that the functions return.
func newSigner(t *testing.T, role Role, authority func() Authority, at func() time.Time) *signer {
	t.Helper()
	clientset := fake.NewClientset()
	s := &signer{Clientset: clientset}
	clientset.PrependReactor("create", "certificatesigningrequests",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			create, ok := action.(clienttesting.CreateAction)
			if !ok {
				return false, nil, nil
			}
			csr, ok := create.GetObject().(*certificatesv1.CertificateSigningRequest)
			if !ok {
				return false, nil, nil
			}
			n := s.requests.Add(1)
			csr.Name, csr.UID = fmt.Sprintf("csr-%d", n), "u"
			// The fake ignores field selectors: the watch of one request gets all of them.
			if err := clientset.Tracker().Delete(create.GetResource(), "", fmt.Sprintf("csr-%d", n-1)); (err == nil) != (n > 1) {
				t.Error(err)
			}
			csr.Spec.Username = "system:serviceaccount:kubevirt:" + role.account
			csr.Spec.Extra = map[string]certificatesv1.ExtraValue{nodeNameExtra: {"blue"}}
			if s.disabled.Load() {
				return false, nil, nil
			}
			if err := s.sign(csr); err != nil {
				t.Errorf("the request of a Source is denied: %v", err)
			}
			return false, nil, nil
		})
	s.sign = func(csr *certificatesv1.CertificateSigningRequest) error {
		request, err := role.Validate(&csr.Spec, "kubevirt")
		if err != nil {
			return err
		}
		csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, LastUpdateTime: metav1.Now(),
		}}
		csr.Status.Certificate, err = authority().Sign(request, at(), lifetimes.ServerDuration)
		return err
	}
	return s
}

func run(t *testing.T, s *Source) {
	t.Helper()
	ctx, cancel := context.WithCancel(
		log.IntoContext(context.Background(), testr.NewWithOptions(t, testr.Options{Verbosity: 0})))
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// until waits for a condition.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("not seen: %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestRequestsOfSourcesAreValid(t *testing.T) {
	for _, role := range Roles() {
		w := newWorld(t)
		api := newSigner(t, role, func() Authority { return w.authorities[role.Name] }, time.Now)
		s := NewSource(&rest.Config{}, role, subjectOf(role), w.trust)
		s.connect = func() (kubernetes.Interface, error) { return api.Clientset, nil }
		changed := atomic.Bool{}
		s.OnChange(func() { changed.Store(true) })
		if crt, key := s.PEM(); s.Current() != nil || crt != nil || key != nil {
			t.Errorf("%s: there is a certificate before the first request", role.Name)
		}
		select {
		case <-s.Issued():
			t.Errorf("%s: Issued is closed before there is a certificate", role.Name)
		default:
		}
		run(t, s)
		until(t, role.Name+" has a certificate", func() bool { return s.Current() != nil && changed.Load() })
		select {
		case <-s.Issued():
		default:
			t.Errorf("%s: there is a certificate, and Issued is not closed", role.Name)
		}
		if err := verify(w.authorities[role.Name], *s.Current(), time.Now(), role.purposes[0]); err != nil {
			t.Errorf("%s: %v", role.Name, err)
		}
		if crt, key := s.PEM(); len(crt) == 0 || len(key) == 0 {
			t.Errorf("%s: no PEM", role.Name)
		}
	}
}

func TestReadyReportsTheFailure(t *testing.T) {
	w, role := newWorld(t), AgentServing
	clock := testclock.NewFakeClock(time.Now())
	api := newSigner(t, role, func() Authority { return w.authorities[role.Name] }, clock.Now)
	refused := atomic.Bool{}
	refused.Store(true)
	api.PrependReactor("create", "certificatesigningrequests", func(clienttesting.Action) (bool, runtime.Object, error) {
		return refused.Load(), nil,
			apierrors.NewForbidden(certificatesv1.Resource("certificatesigningrequests"), "", errors.New("it has no right to"))
	})
	s := NewSource(&rest.Config{}, role, subjectOf(role), w.trust)
	s.Clock = clock
	s.connect = func() (kubernetes.Interface, error) { return api.Clientset, nil }
	if err := s.Ready(nil); err == nil || !strings.Contains(err.Error(), role.Signer()) {
		t.Errorf("before the start: %v", err)
	}
	run(t, s)
	until(t, "what is missing", func() bool {
		err := s.Ready(nil)
		return err != nil && strings.Contains(err.Error(), role.Signer()) &&
			strings.Contains(err.Error(), "it has no right to")
	})
	refused.Store(false)
	until(t, "a certificate", func() bool {
		clock.Step(time.Minute)
		return s.Current() != nil
	})
	if err := s.Ready(nil); err != nil {
		t.Error(err)
	}
	// Nobody accepts what has ended.
	api.disabled.Store(true)
	clock.SetTime(s.Current().Leaf.NotAfter)
	if err := s.Ready(nil); err == nil {
		t.Error("ready with a certificate that has ended")
	}
}

func TestSourceDoesNotWaitForTheEndWhenItsAuthorityIsLost(t *testing.T) {
	synctest.Test(t, sourceThatLosesItsAuthority)
}

func sourceThatLosesItsAuthority(t *testing.T) {
	w, role := newWorld(t), AgentServing
	authority := atomic.Pointer[Authority]{}
	first := w.authorities[role.Name]
	authority.Store(&first)
	// An hour ago, so that the certificate is not new.
	api := newSigner(t, role, func() Authority { return *authority.Load() },
		func() time.Time { return time.Now().Add(-time.Hour) })
	s := NewSource(&rest.Config{}, role, subjectOf(role), w.trust)
	s.connect = func() (kubernetes.Interface, error) { return api.Clientset, nil }
	run(t, s)
	until(t, "a certificate", func() bool { return s.Current() != nil })
	old := s.Current()
	time.Sleep(10 * checkInterval) // several checks, without a reason to renew
	if n := api.requests.Load(); n != 1 {
		t.Fatalf("%d requests for a certificate that is trusted", n)
	}

	second := newWorld(t).authorities[role.Name]
	authority.Store(&second)
	w.authorities[role.Name] = second
	api.disabled.Store(true)
	w.publish(t, role)
	time.Sleep(10 * checkInterval) // the one pending request is not repeated
	if n := api.requests.Load(); n != 2 || s.Current() != old {
		t.Fatalf("%d requests while no request is signed, another certificate: %t", n, s.Current() != old)
	}

	api.disabled.Store(false)
	csr, err := api.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "csr-2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.sign(csr); err != nil {
		t.Fatal(err)
	}
	if _, err := api.CertificatesV1().CertificateSigningRequests().UpdateStatus(t.Context(), csr,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "a certificate of the new authority", func() bool {
		return s.Current() != old && verify(second, *s.Current(), time.Now(), role.purposes[0]) == nil
	})
	if crt, _ := s.PEM(); len(crt) == 0 {
		t.Error("the PEM is not that of the new one")
	}
}

func TestNewCertificateIsNotOrphaned(t *testing.T) {
	w, role := newWorld(t), APIClient
	s := NewSource(&rest.Config{}, role, subjectOf(role), w.trust)
	c := issue(t, newWorld(t).authorities[role.Name], subjectOf(role), time.Now())
	if s.isOrphaned(&c, time.Now()) {
		t.Error("orphaned at once")
	}
	if !s.isOrphaned(&c, time.Now().Add(time.Hour)) {
		t.Error("not orphaned after an hour")
	}
	s.trust = Trust(t.TempDir())
	if s.isOrphaned(&c, time.Now().Add(time.Hour)) {
		t.Error("orphaned although there are no CA certificates")
	}
}

func TestSourceRenewsBeforeExpiry(t *testing.T) {
	w, role := newWorld(t), APIServing
	clock := testclock.NewFakeClock(time.Now())
	api := newSigner(t, role, func() Authority { return w.authorities[role.Name] }, clock.Now)
	s := NewSource(&rest.Config{}, role, subjectOf(role), w.trust)
	s.Clock = clock
	s.connect = func() (kubernetes.Interface, error) { return api.Clientset, nil }
	run(t, s)
	until(t, "a certificate", func() bool { return s.Current() != nil })
	for range 3 {
		old := s.Current()
		life := old.Leaf.NotAfter.Sub(clock.Now())
		at := RenewAt(old.Leaf, lifetimes)
		if rest := old.Leaf.NotAfter.Sub(at); rest < life/5 || rest > life/3 {
			t.Errorf("of a life of %s, %s are left when it is renewed", life, rest)
		}
		clock.SetTime(at.Add(time.Second))
		until(t, "the next certificate", func() bool { return s.Current() != old })
	}
	if n := api.requests.Load(); n != 4 {
		t.Errorf("%d requests for 4 certificates", n)
	}
}

// A change of the configured lifetime applies to a running process, and lifetimes of minutes are kept.
func TestSourceFollowsTheConfiguredLifetime(t *testing.T) {
	w, role := newWorld(t), APIServing
	clock := testclock.NewFakeClock(time.Now())
	configured := atomic.Pointer[clusterconfig.Certificates]{}
	configured.Store(&lifetimes)
	api := newSigner(t, role, func() Authority { return w.authorities[role.Name] }, clock.Now)
	validate := api.sign
	api.sign = func(csr *certificatesv1.CertificateSigningRequest) error {
		if err := validate(csr); err != nil {
			return err
		}
		request, err := role.Validate(&csr.Spec, "kubevirt")
		if err != nil {
			return err
		}
		csr.Status.Certificate, err = w.authorities[role.Name].Sign(request, clock.Now(), configured.Load().ServerDuration)
		return err
	}
	s := NewSource(&rest.Config{}, role, subjectOf(role), w.trust)
	s.Clock, s.Lifetimes = clock, func() clusterconfig.Certificates { return *configured.Load() }
	s.connect = func() (kubernetes.Interface, error) { return api.Clientset, nil }
	run(t, s)
	until(t, "a certificate", func() bool { return s.Current() != nil })

	short := clusterconfig.Certificates{ServerDuration: 4 * time.Minute, ServerRenewBefore: 2 * time.Minute}
	configured.Store(&short)
	until(t, "one with the new lifetime", func() bool {
		clock.Step(checkInterval)
		return lifetime(s.Current().Leaf) == short.ServerDuration
	})
	for range 3 {
		old := s.Current()
		clock.SetTime(old.Leaf.NotAfter.Add(-short.ServerRenewBefore))
		until(t, "the next certificate", func() bool { return s.Current() != old })
	}
}

// A process and virt-controller do not get a change of the lifetime at the same time.
func TestSourceReplacesACertificateThatWasSignedWithAnEarlierLifetime(t *testing.T) {
	w, role := newWorld(t), APIServing
	clock := testclock.NewFakeClock(time.Now())
	short := clusterconfig.Certificates{ServerDuration: time.Hour, ServerRenewBefore: 20 * time.Minute}
	api := newSigner(t, role, func() Authority { return w.authorities[role.Name] }, clock.Now)
	validate, changed := api.sign, atomic.Bool{}
	api.sign = func(csr *certificatesv1.CertificateSigningRequest) error {
		err := validate(csr)
		if err != nil || !changed.Load() {
			return err
		}
		request, err := role.Validate(&csr.Spec, "kubevirt")
		if err != nil {
			return err
		}
		csr.Status.Certificate, err = w.authorities[role.Name].Sign(request, clock.Now(), short.ServerDuration)
		return err
	}
	s := NewSource(&rest.Config{}, role, subjectOf(role), w.trust)
	s.Clock, s.Lifetimes = clock, func() clusterconfig.Certificates { return short }
	s.connect = func() (kubernetes.Interface, error) { return api.Clientset, nil }
	run(t, s)
	until(t, "a certificate", func() bool { return s.Current() != nil })
	first := s.Current().Leaf
	if lifetime(first) != lifetimes.ServerDuration {
		t.Fatalf("it lasts %s", lifetime(first))
	}
	changed.Store(true)
	until(t, "one with the new lifetime", func() bool {
		clock.Step(checkInterval)
		return lifetime(s.Current().Leaf) == short.ServerDuration
	})
	if !clock.Now().Before(RenewAt(first, short)) {
		t.Error("it was replaced only because of its age")
	}
}

func TestRenewalOfACertificateThatEndsWithItsAuthority(t *testing.T) {
	w, role := newWorld(t), APIServing
	end := w.authorities[role.Name].current.certificate.NotAfter
	leaf := issue(t, w.authorities[role.Name], subjectOf(role), end.Add(-10*time.Minute)).Leaf
	if rest := leaf.NotAfter.Sub(RenewAt(leaf, lifetimes)); rest < 2*time.Minute || rest > 4*time.Minute {
		t.Errorf("of ten minutes, %s are left when it is renewed", rest)
	}
}

func TestExpiredCertificatesAreRequestedAtALimitedRate(t *testing.T) {
	w, role := newWorld(t), APIServing
	clock := testclock.NewFakeClock(time.Now())
	// The signer's clock is a week behind.
	api := newSigner(t, role, func() Authority { return w.authorities[role.Name] },
		func() time.Time { return clock.Now().Add(-7 * 24 * time.Hour) })
	s := NewSource(&rest.Config{}, role, subjectOf(role), w.trust)
	s.Clock = clock
	s.connect = func() (kubernetes.Interface, error) { return api.Clientset, nil }
	run(t, s)
	steps := int32(0)
	until(t, "some requests", func() bool {
		steps++
		clock.Step(checkInterval)
		return api.requests.Load() >= 4
	})
	if n := api.requests.Load(); n > steps+1 {
		t.Errorf("%d requests in %d minutes", n, steps)
	}
}
