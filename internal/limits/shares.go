// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package limits

import "sync"

// Shares divide a capacity among tenants without anyone waiting. A tenant gets units as long as at least as many are free as it then has:
// taking one at a time, one tenant gets half of the capacity, each of two tenants a third, and so on. So there is always something left
// for a tenant that has nothing. A unit is whatever Take counts, such as a request or a byte.
type Shares struct {
	perTenant int64

	mu   sync.Mutex
	free int64
	// taken is what each tenant has. Tenants that have nothing are absent.
	taken map[string]int64
}

// NewShares returns Shares of a capacity. perTenant limits what a tenant has to less than its share; 0 means no such limit.
func NewShares(capacity, perTenant int64) *Shares {
	if perTenant == 0 {
		perTenant = capacity
	}
	return &Shares{perTenant: perTenant, free: capacity, taken: map[string]int64{}}
}

// Take takes units for a tenant and reports whether it got them, and how many it has now. A tenant that got units has to Give them back.
func (s *Shares) Take(tenant string, units int64) (has int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	has = s.taken[tenant]
	if has+units > min(s.perTenant, s.free) {
		return has, false
	}
	s.free -= units
	s.taken[tenant] += units
	return has + units, true
}

// Give returns units that a tenant took.
func (s *Shares) Give(tenant string, units int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free += units
	if s.taken[tenant] -= units; s.taken[tenant] == 0 {
		delete(s.taken, tenant)
	}
}
