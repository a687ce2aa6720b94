// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"net/http"
)

// act is a verb that does one thing to the guest and answers with nothing. What came of it is told by the instance's status.
func act(do func(Machine, context.Context, string) error) verb {
	return func(w http.ResponseWriter, r *http.Request, t *target) error {
		if err := do(t.machine, r.Context(), t.domain); err != nil {
			return err
		}
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
}
