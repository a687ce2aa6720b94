// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineexport

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/vireo-project/vireo/internal/controller/storage/claimusers"
	"github.com/vireo-project/vireo/internal/decide/export"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// onNode selects the Pods that may use a volume: they have a node, and have not ended.
var onNode = fields.AndSelectors(fields.OneTermNotEqualSelector("spec.nodeName", ""), podstate.NotTerminal)

// readUsers reads whether other Pods use a claim of the source. What was found a moment ago suffices, since exports
// poll.
func (s *scope) readUsers(ctx context.Context, o *export.Observed) error {
	return s.readUsersNotOlder(ctx, o, claimusers.ResultTTL)
}

// readUsersNotOlder reads whether other Pods use a claim of the source, for which the export would have to wait. It
// stops at the first such claim, and reads no Pods if the export waits for something else. Launcher Pods are in the
// cache; those without a node count as well, because their guests are about to start. Of other Pods, a scan that found
// none counts if it is younger than maxAge.
func (s *scope) readUsersNotOlder(ctx context.Context, o *export.Observed, maxAge time.Duration) error {
	contested := o.Contested()
	for _, name := range contested {
		launchers, err := claimusers.Launchers(ctx, s.Client, s.export.Namespace, name)
		if err != nil {
			return err
		}
		for i := range launchers {
			if !isExporter(&launchers[i]) {
				o.Used[name] = true
				return nil
			}
		}
	}
	if len(contested) == 0 {
		return nil
	}
	scanner := claimusers.Scanner{Cached: s.Client, API: s.APIReader, Selector: onNode, Ignore: isExporter,
		Recent: &s.users}
	used, err := scanner.Used(ctx, s.export.Namespace, contested, s.now, maxAge)
	for name := range used {
		o.Used[name] = true
	}
	return err
}

// isExporter reports whether a Pod is one of an export. These do not exclude each other, because they only read.
func isExporter(pod *corev1.Pod) bool { return isExport(metav1.GetControllerOf(pod)) }
