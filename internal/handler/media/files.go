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
	// filesLabel is the label of a medium whose volume names none.
	// Source: kubevirt/kubevirt pkg/util/disk, CreateIsoImage.
	filesLabel = "cfgdata"
	// sysprepLabel is the label of a medium for Windows Setup, which finds it by its files.
	// Source: kubevirt/kubevirt pkg/config/sysprep.go.
	sysprepLabel = "unattendCD"
)

// answerFiles are what Windows Setup looks for at the root of a removable medium, in capitals or not.
// Source: learn.microsoft.com, Windows Setup Automation Overview.
var answerFiles = []string{"autounattend.xml", "unattend.xml"}

// fileMedium is a volume that becomes a medium with the files that the kubelet made of an object.
type fileMedium struct {
	kind  VolumeKind
	label string
	// object is what the files come from, for messages.
	object string
	// check refuses files that do not serve the medium's purpose.
	check func(files map[string][]byte) error
}

// fileMediumOf describes the medium of a volume, or returns nil for a volume that is not made of files.
func fileMediumOf(v *v1.Volume) *fileMedium {
	anything := func(map[string][]byte) error { return nil }
	switch {
	case v.ConfigMap != nil:
		return &fileMedium{ConfigMapVolume, v.ConfigMap.VolumeLabel, "ConfigMap " + v.ConfigMap.Name, anything}
	case v.Secret != nil:
		return &fileMedium{SecretVolume, v.Secret.VolumeLabel, "Secret " + v.Secret.SecretName, anything}
	case v.DownwardAPI != nil:
		return &fileMedium{DownwardAPIVolume, v.DownwardAPI.VolumeLabel, "downward API", anything}
	case v.ServiceAccount != nil:
		return &fileMedium{ProjectedVolume, "", "service account " + v.ServiceAccount.ServiceAccountName, anything}
	case v.Sysprep != nil && v.Sysprep.ConfigMap != nil:
		return &fileMedium{ConfigMapVolume, sysprepLabel, "ConfigMap " + v.Sysprep.ConfigMap.Name, hasAnswerFile}
	case v.Sysprep != nil && v.Sysprep.Secret != nil:
		return &fileMedium{SecretVolume, sysprepLabel, "Secret " + v.Sysprep.Secret.Name, hasAnswerFile}
	default:
		return nil
	}
}

func hasAnswerFile(files map[string][]byte) error {
	for name := range files {
		for _, answer := range answerFiles {
			if strings.EqualFold(name, answer) {
				return nil
			}
		}
	}
	return fmt.Errorf("has neither the key %s nor %s: add one of them", answerFiles[0], answerFiles[1])
}

// fileDisk makes a medium with the files of a volume. What is wrong with them ends when their object is mended.
func (p *preparer) fileDisk(ctx context.Context, v *v1.Volume, m *fileMedium) (*domain.DiskFact, error) {
	files, err := p.content.Files(m.kind, launcherpod.FilesVolume(v.Name))
	if errors.Is(err, ErrTooMuch) {
		return nil, &InvalidError{Passing: true, Err: fmt.Errorf("%s: %w", m.object, err)}
	}
	if err != nil {
		return nil, err
	}
	if err := m.check(files); err != nil {
		return nil, &InvalidError{Passing: true, Err: fmt.Errorf("%s %w", m.object, err)}
	}
	for name := range files {
		if len(name) > maxNameBytes {
			return nil, &InvalidError{Passing: true, Err: fmt.Errorf("%s: the name %.20s… has %d bytes, and a medium's files may have %d",
				m.object, name, len(name), maxNameBytes)}
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
