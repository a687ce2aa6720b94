// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package explain

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/liveupdate"
)

// restartRequired reports changes of the template that the running guest does not have. The table of changes says why, as far as the
// condition names the fields.
func restartRequired(s *Snapshot) []Finding {
	restart := s.vmCondition(v1.VirtualMachineRestartRequired)
	if restart.Status != corev1.ConditionTrue {
		return nil
	}
	f := Finding{
		What: "The VM was changed, and the guest still runs with its former configuration.", Why: []string{short(restart.Message)},
		Do: "Restart it, or take the change back:", Commands: []string{fmt.Sprintf("%s restart %s --namespace %s", s.Program, s.Name, s.Namespace)},
	}
	explained := map[string]bool{}
	for _, field := range liveupdate.FieldsIn(restart.Message) {
		entry := liveupdate.EntryOf(field)
		if entry == nil || explained[entry.Path] {
			continue
		}
		explained[entry.Path] = true
		switch {
		case entry.Effect == liveupdate.Live:
			f.Why = append(f.Why, short(fmt.Sprintf("%s changes while the guest runs only if %s.", field, entry.Condition())))
		case entry.Effect == liveupdate.Migration:
			f.Why = append(f.Why, short(fmt.Sprintf("%s changes by a migration only if %s.", field, entry.Condition())))
		case entry.Note != "":
			f.Why = append(f.Why, short(fmt.Sprintf("%s changes at a start only. %s", field, entry.Note)))
		}
	}
	return []Finding{f}
}
