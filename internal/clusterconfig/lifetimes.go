// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Certificates are the lifetimes of certificates, and how long before their expiry they are renewed.
type Certificates struct {
	CADuration, CARenewBefore         time.Duration
	ServerDuration, ServerRenewBefore time.Duration
}

// renewFraction sets when certificates are renewed by default: when 1/renewFraction of their lifetime is left.
const renewFraction = 5

// Shorter lifetimes are raised to these.
const (
	// leastLifetime is the least lifetime of a certificate. Shorter ones would be renewed without a pause.
	leastLifetime = time.Minute
	// leastOverlap is the least CARenewBefore. A CA signs when half of it is over, and has to be trusted everywhere then. The kubelet
	// updates a mounted ConfigMap when it synchronizes the Pod, which is every 60 to 90 s.
	// Source: kubernetes pkg/kubelet/pod_workers.go, completeWork; the default of syncFrequency in the KubeletConfiguration.
	leastOverlap = 4 * time.Minute
	// leastAuthority is the least lifetime of a CA. It is a third of that old when it signs, and signs for another third.
	leastAuthority = 6 * time.Minute
)

// lifetimeFields are the fields of one kind of certificate. The deprecated ones win, as in KubeVirt.
type lifetimeFields struct {
	duration, renewBefore         *metav1.Duration
	durationPath, renewBeforePath *field.Path
}

func (p *parser) certificates(s *v1.KubeVirtSelfSignConfiguration, path *field.Path) {
	if old := s.CARotateInterval != nil || s.CertRotateInterval != nil || s.CAOverlapInterval != nil; old && (s.CA != nil || s.Server != nil) {
		p.errs = append(p.errs, field.Forbidden(path, "caRotateInterval, certRotateInterval and caOverlapInterval are deprecated and "+
			"conflict with CertConfig defined rotation parameters. Keep ca and server."))
	}
	c := &p.config.Certificates
	p.lifetime(lifetimesOf(s.CA, path.Child("ca")).override(s.CARotateInterval, path.Child("caRotateInterval"),
		s.CAOverlapInterval, path.Child("caOverlapInterval")), &c.CADuration, &c.CARenewBefore)
	c.CADuration, c.CARenewBefore = max(c.CADuration, leastAuthority), max(c.CARenewBefore, leastOverlap)
	server := lifetimesOf(s.Server, path.Child("server")).override(s.CertRotateInterval, path.Child("certRotateInterval"), nil, nil)
	p.lifetime(server, &c.ServerDuration, &c.ServerRenewBefore)
	if c.ServerDuration > c.CADuration {
		p.errs = append(p.errs, field.Invalid(server.durationPath, c.ServerDuration.String(),
			fmt.Sprintf("Certificate duration cannot exceed CA, which lasts %s", c.CADuration)))
		c.ServerDuration, c.ServerRenewBefore = c.CADuration, c.CADuration/renewFraction
	}
}

func lifetimesOf(s *v1.CertConfig, path *field.Path) lifetimeFields {
	f := lifetimeFields{durationPath: path.Child("duration"), renewBeforePath: path.Child("renewBefore")}
	if s != nil {
		f.duration, f.renewBefore = s.Duration, s.RenewBefore
	}
	return f
}

// override returns the fields with those that are set in place of their successors.
func (f lifetimeFields) override(duration *metav1.Duration, durationPath *field.Path, renewBefore *metav1.Duration, renewBeforePath *field.Path) lifetimeFields {
	if duration != nil {
		f.duration, f.durationPath = duration, durationPath
	}
	if renewBefore != nil {
		f.renewBefore, f.renewBeforePath = renewBefore, renewBeforePath
	}
	return f
}

// lifetime sets a lifetime and when to renew. An invalid duration keeps its default, an invalid renewBefore is a fifth of the
// duration.
func (p *parser) lifetime(f lifetimeFields, duration, renew *time.Duration) {
	if d := f.duration; d != nil && d.Duration <= 0 {
		p.errs = append(p.errs, field.Invalid(f.durationPath, d.Duration.String(), "must be greater than 0"))
	} else if d != nil {
		*duration = max(d.Duration, leastLifetime)
	}
	*renew = *duration / renewFraction
	r := f.renewBefore
	switch {
	case r == nil:
	case r.Duration > *duration:
		p.errs = append(p.errs, field.Invalid(f.renewBeforePath, r.Duration.String(),
			fmt.Sprintf("RenewBefore cannot exceed Duration, which is %s", *duration)))
	case r.Duration <= 0 || r.Duration == *duration:
		// KubeVirt accepts both, but 0 would renew after the expiry, and the duration permanently. Admission warns.
	default:
		*renew = r.Duration
	}
}
