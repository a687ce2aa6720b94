// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtapi

import (
	"crypto/tls"
	"net/http"
	"time"

	"github.com/vireo-project/vireo/internal/apiserver/profile"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/profiler"
)

// connection has what virt-api needs to connect to other components.
type connection struct {
	own       certificate.Provider
	trust     certificate.Trust
	namespace string
	now       func() time.Time
}

// to returns the configuration of one connection to a component. The node selects the agent, and is ignored for other components.
func (c connection) to(component, node string) (config *tls.Config, err error) {
	switch component {
	case profile.API:
		config, err = certificate.APIPeer(c.own, c.trust, c.namespace)
	case profile.Controller:
		config, err = certificate.ControllerClient(c.own, c.trust, c.namespace)
	default:
		config, err = certificate.AgentClient(c.own, c.trust, node)
	}
	if err != nil {
		return nil, err
	}
	config.Time = c.now
	return config, nil
}

// ownProfiles serves profiles of this process to virt-api's Pods.
func ownProfiles(store *clusterconfig.Store, trust certificate.Trust, now func() time.Time) http.Handler {
	verify := func(state *tls.ConnectionState) error {
		bundle, err := trust.Bundle(certificate.APIClient)
		if err != nil {
			return err
		}
		return certificate.VerifyAPI(state, bundle, now())
	}
	return profiler.OnlyAPI(verify, profiler.New(store).Handler())
}
