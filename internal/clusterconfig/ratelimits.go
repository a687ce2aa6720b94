// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// RateLimit is the rate of a component's requests to the API server.
type RateLimit struct {
	// QPS is the number of requests per second that the component may send for long.
	QPS float32
	// Burst is the number of requests that it may send at once.
	Burst int
}

// RateLimits are the rates of each component. Webhook is that of the webhooks, which run in virt-controller.
type RateLimits struct{ API, Webhook, Controller, Handler RateLimit }

// defaultRateLimits returns KubeVirt's, but for an agent: it sends the requests for all guests of its node (ADR 46). Source:
// kubevirt/kubevirt pkg/virt-config, DefaultVirt*QPS and DefaultVirt*Burst.
func defaultRateLimits() RateLimits {
	usual := RateLimit{QPS: 200, Burst: 400}
	return RateLimits{API: usual, Webhook: usual, Controller: usual, Handler: usual}
}

func (p *parser) rateLimits(s *v1.KubeVirtConfiguration, path *field.Path) {
	limits := &p.config.RateLimits
	p.rateLimit(&limits.API, s.APIConfiguration, path.Child("apiConfiguration"))
	p.rateLimit(&limits.Webhook, s.WebhookConfiguration, path.Child("webhookConfiguration"))
	p.rateLimit(&limits.Controller, s.ControllerConfiguration, path.Child("controllerConfiguration"))
	p.rateLimit(&limits.Handler, s.HandlerConfiguration, path.Child("handlerConfiguration"))
}

// rateLimit sets the rate of a component. Zero means that the field is empty: nothing could be sent.
func (p *parser) rateLimit(limit *RateLimit, s *v1.ReloadableComponentConfiguration, path *field.Path) {
	if s == nil || s.RestClient == nil || s.RestClient.RateLimiter == nil || s.RestClient.RateLimiter.TokenBucketRateLimiter == nil {
		return
	}
	bucket, path := s.RestClient.RateLimiter.TokenBucketRateLimiter, path.Child("restClient", "rateLimiter", "tokenBucketRateLimiter")
	switch qps := bucket.QPS; {
	case qps < 0:
		p.errs = append(p.errs, field.Invalid(path.Child("qps"), qps, "must be greater than 0"))
	case qps > 0:
		limit.QPS = qps
	}
	p.set(&limit.Burst, bucket.Burst, 1, 1<<30, path.Child("burst"))
}
