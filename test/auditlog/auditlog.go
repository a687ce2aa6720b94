// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package auditlog reads the writes in a namespace from the API server's audit log.
package auditlog

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// event is the part of an audit.k8s.io/v1 Event that is read.
type event struct {
	Stage string `json:"stage"`
	Verb  string `json:"verb"`
	User  struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	StageTimestamp time.Time `json:"stageTimestamp"`
}

// Write is a successful write to one object.
type Write struct {
	When                 time.Time
	Resource, Name, User string
	// Verb is create, update, patch or delete.
	Verb string
	// Creation is set for the creation of an object, but not of a subresource.
	Creation bool
}

// Ours reports whether one of Vireo's components did it; kubelet, scheduler and users are others.
func (w Write) Ours() bool { return strings.HasPrefix(w.User, "system:serviceaccount:kubevirt:") }

// Offset returns the present length of an audit log. Without a path, there is none.
func Offset(path string) (int64, error) {
	if path == "" {
		return 0, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("read the API server's audit log: %w", err)
	}
	return info.Size(), nil
}

// Since reads the successful writes in a namespace that the API server logged after an offset.
func Since(path string, offset int64, namespace string) ([]Write, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return nil, err
	}
	var found []Write
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 0, 64<<10), 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			// The last line may not be complete yet.
			continue
		}
		if e.Stage != "ResponseComplete" || e.ObjectRef.Namespace != namespace || e.ResponseStatus.Code >= 300 {
			continue
		}
		switch e.Verb {
		case "create", "update", "patch", "delete":
			found = append(found, Write{
				When: e.StageTimestamp, Resource: e.ObjectRef.Resource, Name: e.ObjectRef.Name, User: e.User.Username,
				Verb: e.Verb, Creation: e.Verb == "create" && e.ObjectRef.Subresource == "",
			})
		}
	}
	return found, lines.Err()
}
