// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package create

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// inference are the flags of an instance type or a preference: its name, or the volume from whose labels it is inferred.
type inference struct {
	flag  string
	kinds []string

	name  string
	infer bool
	from  string
}

func (i *inference) addTo(cmd *cobra.Command, what string) {
	flags := cmd.Flags()
	flags.StringVar(&i.name, i.flag, "", fmt.Sprintf("The %s, as NAME (cluster-wide) or KIND/NAME with kind %s.", what, strings.Join(i.kinds, " or ")))
	flags.BoolVar(&i.infer, "infer-"+i.flag, true, fmt.Sprintf("Infer the %s from the labels of the volume that boots first.", what))
	flags.StringVar(&i.from, "infer-"+i.flag+"-from", "", fmt.Sprintf("Infer the %s from the labels of this volume.", what))
}

// isExplicit reports whether the user requested inference. Otherwise it is optional.
func (i *inference) isExplicit(cmd *cobra.Command) bool {
	return cmd.Flags().Changed("infer-"+i.flag) || cmd.Flags().Changed("infer-"+i.flag+"-from")
}

// matcher parses the name. If it has no kind, the API's default applies.
func (i *inference) matcher() (kind, name string, err error) {
	if kind, name, err = splitPrefix(i.name); err != nil {
		return "", "", flagError(i.flag, "%w", err)
	}
	if kind = strings.ToLower(kind); kind != "" && !slices.Contains(i.kinds, kind) {
		return "", "", flagError(i.flag, "invalid %s kind %q, supported values are: %s", i.flag, kind, strings.Join(i.kinds, ", "))
	}
	return kind, name, nil
}

func (b *builder) useInstancetype() error {
	if b.instancetype.name == "" {
		return nil
	}
	kind, name, err := b.instancetype.matcher()
	b.vm.Spec.Template.Spec.Domain.Memory = nil
	b.vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: name, Kind: kind}
	return err
}

func (b *builder) usePreference() error {
	if b.preference.name == "" {
		return nil
	}
	kind, name, err := b.preference.matcher()
	b.vm.Spec.Preference = &v1.PreferenceMatcher{Name: name, Kind: kind}
	return err
}

func (b *builder) inferInstancetype() error {
	i := &b.instancetype
	if !i.infer || i.name != "" || b.cmd.Flags().Changed("memory") {
		return nil
	}
	volume, err := b.inferFrom(i)
	if err != nil {
		return b.unlessOptional(i, err)
	}
	b.vm.Spec.Instancetype = &v1.InstancetypeMatcher{InferFromVolume: volume}
	if i.isExplicit(b.cmd) {
		b.vm.Spec.Template.Spec.Domain.Memory = nil
		return nil
	}
	// The memory is used if the volume has no such labels.
	b.vm.Spec.Instancetype.InferFromVolumeFailurePolicy = ignore()
	return nil
}

func (b *builder) inferPreference() error {
	i := &b.preference
	if !i.infer || i.name != "" {
		return nil
	}
	volume, err := b.inferFrom(i)
	if err != nil {
		return b.unlessOptional(i, err)
	}
	b.vm.Spec.Preference = &v1.PreferenceMatcher{InferFromVolume: volume}
	if !i.isExplicit(b.cmd) {
		b.vm.Spec.Preference.InferFromVolumeFailurePolicy = ignore()
	}
	return nil
}

func ignore() *v1.InferFromVolumeFailurePolicy {
	policy := v1.IgnoreInferFromVolumeFailure
	return &policy
}

func (b *builder) unlessOptional(i *inference, err error) error {
	if i.isExplicit(b.cmd) {
		return err
	}
	return nil
}

// inferFrom returns the volume to infer from: that of the flag, or else the first in the boot order, or else the first one.
func (b *builder) inferFrom(i *inference) (string, error) {
	volumes := b.vm.Spec.Template.Spec.Volumes
	name := i.from
	switch {
	case name != "":
	case len(b.bootOrders) > 0:
		name = b.bootOrders[slices.Min(slices.Collect(maps.Keys(b.bootOrders)))]
	case len(volumes) > 0:
		name = volumes[0].Name
	default:
		return "", errors.New("at least one volume is needed to infer an instance type or preference")
	}
	volume := b.volume(name)
	if volume == nil {
		return "", fmt.Errorf("there is no volume with name %q", name)
	}
	return name, b.checkInferable(volume)
}

// checkInferable returns an error for a volume whose source has no labels to infer from.
func (b *builder) checkInferable(volume *v1.Volume) error {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return nil
	case volume.DataVolume == nil:
		return errors.New("inference of instancetype or preference works only with datasources, datavolumes or pvcs")
	}
	for _, template := range b.vm.Spec.DataVolumeTemplates {
		spec := template.Spec
		fromLabels := spec.SourceRef != nil || spec.Source != nil && (spec.Source.PVC != nil || spec.Source.Registry != nil || spec.Source.Snapshot != nil)
		if template.Name == volume.DataVolume.Name && !fromLabels {
			return errors.New("this datavolume is not valid to infer an instancetype or preference from " +
				"(source needs to be PVC, Registry or Snapshot, sourceRef needs to be DataSource)")
		}
	}
	return nil
}
