// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

const hook = "virtualmachine-validator.kubevirt.io"

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestOnlyThePathOfAWebhookLeadsToIt(t *testing.T) {
	p, _ := Paths{}.Renew(start, start)
	path := p.Path(hook)
	for _, segment := range strings.Split(path, "/")[1:] {
		if errs := validation.IsDNS1123Subdomain(segment); len(errs) > 0 {
			t.Errorf("Kubernetes refuses the segment %q of a path: %v", segment, errs)
		}
	}
	if name, ok := p.Webhook(path); !ok || name != hook {
		t.Errorf("got %q, %v", name, ok)
	}
	other, _ := Paths{}.Renew(start, start)
	for name, wrong := range map[string]string{
		"plain": "/" + hook, "empty": "", "root": "/", "no token": "//" + hook, "no webhook": strings.TrimSuffix(path, hook), "not rooted": path[1:],
		"token of another webhook": strings.TrimSuffix(p.Path("other.kubevirt.io"), "other.kubevirt.io") + hook,
		"token of another key":     other.Path(hook), "longer": path + "/", "shorter token": "/" + path[2:],
	} {
		if got, ok := p.Webhook(wrong); ok {
			t.Errorf("%s: %s leads to %q", name, wrong, got)
		}
	}
	if _, ok := (Paths{}).Webhook(Paths{}.Path(hook)); ok {
		t.Error("without a key, the token of an empty key is accepted")
	}
}

// The Secret reaches a replica late, and the configuration an API server: each by less than a lifetime.
func TestAPathIsAcceptedBeforeAndAfterItIsUsed(t *testing.T) {
	first, again := Paths{}.Renew(start, start)
	if !again.Equal(start.Add(PathLifetime)) {
		t.Errorf("it is renewed at %s", again)
	}
	leader := first
	for now := again; now.Before(start.Add(10 * PathLifetime)); now = again {
		late, used := leader, leader.Path(hook)
		leader, again = PathsFrom(leader.Data()).Renew(now, start)
		if leader.Path(hook) == used {
			t.Fatalf("at %s the path is that of before", now)
		}
		if _, ok := late.Webhook(leader.Path(hook)); !ok {
			t.Errorf("at %s a replica that has not read the Secret refuses the new path", now)
		}
		if _, ok := leader.Webhook(used); !ok {
			t.Errorf("at %s the path of an API server that has not read the configuration is refused", now)
		}
	}
	if _, ok := leader.Webhook(first.Path(hook)); ok {
		t.Error("an old path is still accepted")
	}
}

func TestANewLeaderRenewsThePaths(t *testing.T) {
	first, _ := Paths{}.Renew(start, start)
	if same, _ := first.Renew(start.Add(PathLifetime/2), start); same.Path(hook) != first.Path(hook) {
		t.Error("the path changes before it is due")
	}
	leading := start.Add(PathLifetime / 2)
	renewed, _ := first.Renew(leading.Add(time.Second), leading)
	if renewed.Path(hook) == first.Path(hook) {
		t.Error("a new leader keeps the path")
	}
	if same, _ := renewed.Renew(leading.Add(time.Minute), leading); same.Path(hook) != renewed.Path(hook) {
		t.Error("a leader renews the path more than once")
	}
}
