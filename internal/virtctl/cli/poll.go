// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cli

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Poll calls done until it returns true or an error, or the context ends: often at first, then every two seconds.
func Poll(ctx context.Context, done func(context.Context) (bool, error)) error {
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 1.5, Steps: 100, Cap: 2 * time.Second}
	return backoff.DelayFunc().Until(ctx, true, false, done)
}
