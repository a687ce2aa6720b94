// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"net/http"
)

// act returns a verb that performs one action on the guest and sends an empty response. The VMI's status shows the result.
func act(do func(Connection, context.Context, string) error) verb {
	return func(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
		if err := do(v.conn, r.Context(), v.domain); err != nil {
			return err
		}
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
}
