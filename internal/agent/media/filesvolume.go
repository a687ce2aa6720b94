// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// filesLabel is the default label of a medium.
	// Source: kubevirt/kubevirt pkg/util/disk, CreateIsoImage.
	filesLabel = "cfgdata"
	// sysprepLabel is the label of a medium for Windows Setup.
	// Source: kubevirt/kubevirt pkg/config/sysprep.go.
	sysprepLabel = "unattendCD"
)

// answerFiles are the files that Windows Setup reads at the root of a removable medium, regardless of case.
// Source: learn.microsoft.com, Windows Setup Automation Overview.
var answerFiles = []string{"autounattend.xml", "unattend.xml"}

// filesVolume is a volume that becomes a medium with the files of a Pod's volume.
type filesVolume struct {
	kind  VolumeKind
	label string
	// object is the source of the files, for messages.
	object string
	// check returns an error if the medium needs other files.
	check func(files map[string][]byte) error
}

// filesVolumeOf returns the filesVolume of a volume, nil if it is of another kind.
func filesVolumeOf(v *v1.Volume) *filesVolume {
	anything := func(map[string][]byte) error { return nil }
	switch {
	case v.ConfigMap != nil:
		return &filesVolume{ConfigMapVolume, v.ConfigMap.VolumeLabel, "ConfigMap " + v.ConfigMap.Name, anything}
	case v.Secret != nil:
		return &filesVolume{SecretVolume, v.Secret.VolumeLabel, "Secret " + v.Secret.SecretName, anything}
	case v.DownwardAPI != nil:
		return &filesVolume{DownwardAPIVolume, v.DownwardAPI.VolumeLabel, "downward API", anything}
	case v.ServiceAccount != nil:
		return &filesVolume{ProjectedVolume, "", "service account " + v.ServiceAccount.ServiceAccountName, anything}
	case v.Sysprep != nil && v.Sysprep.ConfigMap != nil:
		return &filesVolume{ConfigMapVolume, sysprepLabel, "ConfigMap " + v.Sysprep.ConfigMap.Name, hasAnswerFile}
	case v.Sysprep != nil && v.Sysprep.Secret != nil:
		return &filesVolume{SecretVolume, sysprepLabel, "Secret " + v.Sysprep.Secret.Name, hasAnswerFile}
	default:
		return nil
	}
}

func hasAnswerFile(files map[string][]byte) error {
	for name := range files {
		for _, file := range answerFiles {
			if strings.EqualFold(name, file) {
				return nil
			}
		}
	}
	return fmt.Errorf("has neither the key %s nor %s: add one of them", answerFiles[0], answerFiles[1])
}

// fileDisk creates a medium with the files of a volume. Errors in the files are retryable: the object can be corrected.
func (p *preparer) fileDisk(ctx context.Context, v *v1.Volume, m *filesVolume) (*domain.DiskFact, error) {
	files, err := p.content.Files(m.kind, launcherpod.FilesVolume(v.Name))
	if errors.Is(err, ErrTooMuch) {
		return nil, &InvalidError{Retryable: true, Err: fmt.Errorf("%s: %w", m.object, err)}
	}
	if err != nil {
		return nil, err
	}
	if err := m.check(files); err != nil {
		return nil, &InvalidError{Retryable: true, Err: fmt.Errorf("%s %w", m.object, err)}
	}
	for name := range files {
		if !isoName(name) {
			return nil, &InvalidError{Retryable: true,
				Err: fmt.Errorf("%s: a medium cannot have a file %.20s…, with a part of more than %d bytes",
					m.object, name, maxNameBytes)}
		}
	}
	label := m.label
	if label == "" {
		label = filesLabel
	}
	if len(label) > maxLabelBytes {
		return nil, invalid("volumeLabel %q has %d bytes, and a medium's label may have %d", label, len(label), maxLabelBytes)
	}
	return p.medium(ctx, v.Name, label, files)
}
