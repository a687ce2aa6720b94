// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"strings"
	"time"

	"github.com/vireo-project/vireo/test/auditlog"
)

// perVM averages the writes to the objects of VMs, for each VM until it was observed as running. An object is a VM's if
// its name is or contains that of the VM. Creations do not count, except those of Events and ControllerRevisions. All
// ControllerRevisions count, because the names of some contain the VM's UID instead.
func perVM(changes []auditlog.Write, running map[string]time.Time, counts func(auditlog.Write) bool) writes {
	var total writes
	for _, c := range changes {
		if c.Verb == "delete" {
			continue
		}
		if c.Resource == "controllerrevisions" && counts(c) {
			total.Revision++
			continue
		}
		vm, until := owner(c, running)
		if vm == "" || c.When.After(until) || !counts(c) {
			continue
		}
		switch {
		case c.Resource == "events":
			total.Event++
		case c.Creation:
		case c.Resource == "virtualmachines":
			total.VM++
		case c.Resource == "virtualmachineinstances":
			total.VMI++
		case c.Resource == "pods":
			total.Pod++
		}
	}
	n := float64(max(len(running), 1))
	return writes{VM: total.VM / n, VMI: total.VMI / n, Pod: total.Pod / n, Event: total.Event / n,
		Revision: total.Revision / n}
}

// owner finds the VM that an object belongs to: the object has its name, virt-launcher-<name>-… or <name>.….
func owner(c auditlog.Write, running map[string]time.Time) (string, time.Time) {
	name := strings.TrimPrefix(c.Name, "virt-launcher-")
	for end := len(name); end > 0; end = strings.LastIndexAny(name[:end], "-.") {
		if until, ok := running[name[:end]]; ok {
			return name[:end], until
		}
	}
	return "", time.Time{}
}
