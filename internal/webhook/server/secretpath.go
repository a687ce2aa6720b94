// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strings"
	"time"
)

const (
	// PathLifetime is for how long the webhook configurations contain the paths of one key.
	PathLifetime = time.Hour
	// tokenBytes is the length of a token before it is encoded.
	tokenBytes = 16
)

// Keys of the Secret.
const (
	currentKey  = "path-current"
	nextKey     = "path-next"
	previousKey = "path-previous"
	sinceKey    = "path-since"
)

// Paths are the keys that the tokens of paths are derived from at which API servers call the webhooks. Only API servers
// and administrators can read a token, because API servers present no client certificate to webhooks: docs/adr/0098. A
// key is accepted before and after the webhook configurations contain its paths: other replicas have it before an API
// server uses it, and an API server may use it until it has read the new configuration.
type Paths struct {
	current, next, previous []byte
	// since is when current became the current key.
	since time.Time
}

// PathsFrom reads the data of a Secret. What is invalid is treated as missing.
func PathsFrom(data map[string][]byte) Paths {
	since, _ := time.Parse(time.RFC3339Nano, string(data[sinceKey]))
	return Paths{current: data[currentKey], next: data[nextKey], previous: data[previousKey], since: since}
}

// Data returns the data of a Secret.
func (p Paths) Data() map[string][]byte {
	data := map[string][]byte{currentKey: p.current, nextKey: p.next, sinceKey: []byte(p.since.Format(time.RFC3339Nano))}
	if len(p.previous) > 0 {
		data[previousKey] = p.previous
	}
	return data
}

// Exist reports whether there is a key.
func (p Paths) Exist() bool { return len(p.current) > 0 }

// Renew replaces the current key by the next one if it is older than PathLifetime, or if it became the current one
// before leading, when this process became the leader: while no webhook responded, an API server may have named the
// path in an error that a user got. It returns when Renew has to be called again.
func (p Paths) Renew(now, leading time.Time) (Paths, time.Time) {
	again := p.since.Add(PathLifetime)
	if p.Exist() && len(p.next) > 0 && !p.since.Before(leading) && !p.since.After(now) && now.Before(again) {
		return p, again
	}
	renewed := Paths{previous: p.current, current: p.next, next: newKey(), since: now}
	if len(renewed.current) == 0 {
		renewed.current = newKey()
	}
	return renewed, now.Add(PathLifetime)
}

func newKey() []byte { return []byte(rand.Text()) }

// Path returns the path of a webhook. Each webhook has a token of its own, so that the path of one does not reveal
// those of others.
func (p Paths) Path(webhook string) string { return "/" + token(p.current, webhook) + "/" + webhook }

// Webhook returns the name of the webhook that a path leads to. ok is false if the path has none of the tokens of this
// webhook.
func (p Paths) Webhook(path string) (name string, ok bool) {
	path, rooted := strings.CutPrefix(path, "/")
	presented, name, found := strings.Cut(path, "/")
	if !rooted || !found {
		return "", false
	}
	equal := 0
	for _, key := range [][]byte{p.current, p.next, p.previous} {
		if len(key) > 0 {
			equal |= subtle.ConstantTimeCompare([]byte(presented), []byte(token(key, name)))
		}
	}
	return name, equal == 1
}

// token returns the token of a webhook. It has only characters that Kubernetes permits in a path of a webhook.
func token(key []byte, webhook string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(webhook))
	return hex.EncodeToString(mac.Sum(nil)[:tokenBytes])
}
