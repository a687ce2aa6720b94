// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// auditEvent is the part of an audit.k8s.io/v1 Event that counting needs.
type auditEvent struct {
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

// change is one write to one object.
type change struct {
	when                     time.Time
	resource, name, username string
	creation                 bool
}

// ours reports whether one of our components did it; kubelet, scheduler and the benchmark are others.
func (c change) ours() bool {
	return strings.HasPrefix(c.username, "system:serviceaccount:kubevirt:")
}

// auditOffset returns the present length of the audit log.
func auditOffset(path string) (int64, error) {
	if path == "" {
		return 0, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("read the API server's audit log: %w", err)
	}
	return info.Size(), nil
}

// changesSince reads the successful writes in a namespace that the API server logged after an offset.
func changesSince(path string, offset int64, namespace string) ([]change, error) {
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
	var found []change
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 0, 64<<10), 16<<20)
	for lines.Scan() {
		var event auditEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			// The last line may not be complete yet.
			continue
		}
		if event.Stage != "ResponseComplete" || event.ObjectRef.Namespace != namespace || event.ResponseStatus.Code >= 300 {
			continue
		}
		switch event.Verb {
		case "create", "update", "patch":
			found = append(found, change{
				when: event.StageTimestamp, resource: event.ObjectRef.Resource, name: event.ObjectRef.Name,
				username: event.User.Username, creation: event.Verb == "create" && event.ObjectRef.Subresource == "",
			})
		}
	}
	return found, lines.Err()
}

// perVM averages the writes to the objects of VMs, for each VM until it was observed as running. An object is a VM's if its name is or
// contains that of the VM. Creations do not count, except those of Events and ControllerRevisions. All ControllerRevisions count,
// because the names of some contain the VM's UID instead.
func perVM(changes []change, running map[string]time.Time, counts func(change) bool) writes {
	var total writes
	for _, c := range changes {
		if c.resource == "controllerrevisions" && counts(c) {
			total.Revision++
			continue
		}
		vm, until := owner(c, running)
		if vm == "" || c.when.After(until) || !counts(c) {
			continue
		}
		switch {
		case c.resource == "events":
			total.Event++
		case c.creation:
		case c.resource == "virtualmachines":
			total.VM++
		case c.resource == "virtualmachineinstances":
			total.VMI++
		case c.resource == "pods":
			total.Pod++
		}
	}
	n := float64(max(len(running), 1))
	return writes{VM: total.VM / n, VMI: total.VMI / n, Pod: total.Pod / n, Event: total.Event / n, Revision: total.Revision / n}
}

// owner finds the VM that an object belongs to: the object has its name, virt-launcher-<name>-… or <name>.….
func owner(c change, running map[string]time.Time) (string, time.Time) {
	name := strings.TrimPrefix(c.name, "virt-launcher-")
	for end := len(name); end > 0; end = strings.LastIndexAny(name[:end], "-.") {
		if until, ok := running[name[:end]]; ok {
			return name[:end], until
		}
	}
	return "", time.Time{}
}
