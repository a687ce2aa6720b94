// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package limits

import "sync"

// Shares divide a capacity among tenants, none of which waits. A tenant gets more units as long as it then has at most
// as many as were free before: taking one at a time, one tenant gets half of the capacity, each of two tenants a third,
// and so on. So small requests of a tenant that has nothing find something left. A unit is whatever Take counts, such
// as a request or a byte.
type Shares struct {
	perTenant int64

	mu   sync.Mutex
	free int64
	// taken is what each tenant has. Tenants that have nothing are absent.
	taken map[string]int64
}

// NewShares returns Shares of a capacity. perTenant is the most that a tenant may have, if its share is larger; 0 means
// no such limit.
func NewShares(capacity, perTenant int64) *Shares {
	if perTenant == 0 {
		perTenant = capacity
	}
	return &Shares{perTenant: perTenant, free: capacity, taken: map[string]int64{}}
}

// Take takes units for a tenant and reports how many the tenant has now, and whether it got them. Units that it got are
// returned by Give.
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
