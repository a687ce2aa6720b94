// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// validateKubeVirt returns the errors of a KubeVirt object's spec that clusterconfig.FromKubeVirt does not find.
func validateKubeVirt(p *field.Path, spec *v1.KubeVirtSpec) field.ErrorList {
	var errs field.ErrorList
	if spec.Infra != nil && spec.Infra.Replicas != nil && *spec.Infra.Replicas == 0 {
		errs = append(errs, field.Invalid(p.Child("infra", "replicas"), 0, "infra replica count can't be 0"))
	}
	errs = append(errs, validatePlacement(p.Child("infra", "nodePlacement"), spec.Infra)...)
	errs = append(errs, validatePlacement(p.Child("workloads", "nodePlacement"), spec.Workloads)...)
	errs = append(errs, validatePatches(p.Child("customizeComponents", "patches"), spec.CustomizeComponents.Patches)...)
	return append(errs, validateSelectors(p.Child("configuration"), &spec.Configuration)...)
}

// validatePlacement applies the rules for the affinity of VMIs, and those of Kubernetes for Pods.
func validatePlacement(p *field.Path, component *v1.ComponentConfig) field.ErrorList {
	if component == nil || component.NodePlacement == nil {
		return nil
	}
	c := &check{path: p, spec: &v1.VirtualMachineInstanceSpec{Affinity: component.NodePlacement.Affinity}}
	checkAffinity(c)
	errs := slices.Concat(c.errs,
		metav1validation.ValidateLabels(component.NodePlacement.NodeSelector, p.Child("nodeSelector")))
	for i := range component.NodePlacement.Tolerations {
		errs = append(errs, validateToleration(p.Child("tolerations"), i, &component.NodePlacement.Tolerations[i])...)
	}
	return errs
}

// Values that Kubernetes permits in tolerations.
var (
	tolerationOperators = []corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}
	taintEffects        = []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
		corev1.TaintEffectNoExecute}
)

// validateToleration applies Kubernetes' rules to the i-th toleration of the list at p. Pods with an invalid one could
// not be created. The messages are those of Kubernetes (pkg/apis/core/validation), but KubeVirt's for the operator,
// which its CRD checks.
func validateToleration(p *field.Path, i int, t *corev1.Toleration) field.ErrorList {
	var errs field.ErrorList
	at := p.Index(i)
	if t.Key != "" {
		errs = append(errs, metav1validation.ValidateLabelName(t.Key, at.Child("key"))...)
	} else if t.Operator != corev1.TolerationOpExists {
		errs = append(errs, field.Invalid(at.Child("operator"), t.Operator,
			"operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
	}
	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		errs = append(errs, field.Invalid(at.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
	}
	switch t.Operator {
	case "", corev1.TolerationOpEqual:
		if faults := validation.IsValidLabelValue(t.Value); len(faults) > 0 {
			errs = append(errs, field.Invalid(at.Child("operator"), t.Value, strings.Join(faults, ";")))
		}
	case corev1.TolerationOpExists:
		if t.Value != "" {
			errs = append(errs, field.Invalid(at.Child("operator"), t.Value, "value must be empty when `operator` is 'Exists'"))
		}
	default:
		errs = append(errs, field.Invalid(at.Child("operator"), t.Operator,
			fmt.Sprintf("%s in body should be one of %v", p.Child("operator"), tolerationOperators)))
	}
	if t.Effect != "" && !slices.Contains(taintEffects, t.Effect) {
		errs = append(errs, field.NotSupported(at.Child("effect"), t.Effect, taintEffects))
	}
	return errs
}

func validatePatches(p *field.Path, patches []v1.CustomizeComponentsPatch) field.ErrorList {
	var errs field.ErrorList
	for i := range patches {
		if patch := patches[i].Patch; !json.Valid([]byte(patch)) {
			errs = append(errs, field.Invalid(p.Index(i).Child("patch"), patch,
				fmt.Sprintf("patch %q is not valid JSON", patch)))
		}
	}
	return errs
}

func validateSelectors(p *field.Path, c *v1.KubeVirtConfiguration) field.ErrorList {
	var errs field.ErrorList
	selector := func(at *field.Path, s *metav1.LabelSelector) {
		errs = append(errs, metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{},
			at)...)
	}
	if s := c.ChangedBlockTrackingLabelSelectors; s != nil {
		at := p.Child("changedBlockTrackingLabelSelectors")
		selector(at.Child("namespaceLabelSelector"), s.NamespaceLabelSelector)
		selector(at.Child("virtualMachineLabelSelector"), s.VirtualMachineLabelSelector)
	}
	if c.KSMConfiguration != nil {
		selector(p.Child("ksmConfiguration", "nodeLabelSelector"), c.KSMConfiguration.NodeLabelSelector)
	}
	return errs
}

// kubeVirtWarnings returns warnings for settings that are not implemented, deprecated or without effect.
func kubeVirtWarnings(p *field.Path, spec *v1.KubeVirtSpec) []string {
	warnings := specsupport.Warnings(specsupport.UnimplementedInKubeVirt(p, spec))
	warnings = append(warnings, unknownStrategy(p, spec.UninstallStrategy)...)
	configuration := p.Child("configuration")
	warnings = append(warnings,
		warnGates(configuration.Child("developerConfiguration"), spec.Configuration.DeveloperConfiguration)...)
	warnings = append(warnings,
		warnRenewal(p.Child("certificateRotateStrategy", "selfSigned"), spec.CertificateRotationStrategy.SelfSigned)...)
	warnings = append(warnings, warnDeprecated(configuration, &spec.Configuration)...)
	return append(warnings, warnMachines(configuration, &spec.Configuration)...)
}

// unknownStrategy warns about unknown uninstall strategies. KubeVirt accepts any text, and treats an unknown one as
// RemoveWorkloads.
func unknownStrategy(p *field.Path, strategy v1.KubeVirtUninstallStrategy) []string {
	switch strategy {
	case "", v1.KubeVirtUninstallStrategyRemoveWorkloads, v1.KubeVirtUninstallStrategyBlockUninstallIfWorkloadsExist:
		return nil
	default:
		return []string{fmt.Sprintf("%s: %q is not known, so that workloads are removed with KubeVirt. Use %s to keep them",
			p.Child("uninstallStrategy"), strategy, v1.KubeVirtUninstallStrategyBlockUninstallIfWorkloadsExist)}
	}
}

// warnGates warns about feature gates without an effect, because users rarely remove such gates from their lists.
func warnGates(p *field.Path, developer *v1.DeveloperConfiguration) []string {
	if developer == nil {
		return nil
	}
	var warnings []string
	for i, gate := range developer.FeatureGates {
		if end := aboutGate(gate, true); end != "" {
			warnings = append(warnings, fmt.Sprintf("%s: feature gate %s %s", p.Child("featureGates").Index(i), gate, end))
		}
	}
	for i, gate := range developer.DisabledFeatureGates {
		if end := aboutGate(gate, false); end != "" {
			warnings = append(warnings,
				fmt.Sprintf("%s: feature gate %s %s", p.Child("disabledFeatureGates").Index(i), gate, end))
		}
	}
	return warnings
}

// aboutGate returns the end of a warning about an enabled or disabled gate, or "" if there is nothing to warn about.
func aboutGate(gate string, enabled bool) string {
	stage, known := clusterconfig.StageOf(gate)
	switch {
	case !known:
		return "is not known and has no effect"
	case stage == clusterconfig.StageDiscontinued:
		return "was discontinued and has no effect"
	case stage == clusterconfig.StageGA && enabled:
		// KubeVirt's message.
		return "is deprecated, therefore it can be safely removed and is redundant"
	case stage == clusterconfig.StageGA:
		return "cannot be disabled any more and has no effect"
	case stage == clusterconfig.StageDeprecated && enabled:
		return "is deprecated and will go away"
	case !enabled:
		return ""
	}
	if reason, unimplemented := specsupport.UnimplementedGates[gate]; unimplemented {
		return "has no effect: " + reason
	}
	return ""
}

// warnRenewal warns about values of renewBefore that KubeVirt accepts but that cannot work.
func warnRenewal(p *field.Path, s *v1.KubeVirtSelfSignConfiguration) []string {
	if s == nil {
		return nil
	}
	var warnings []string
	for name, c := range map[string]*v1.CertConfig{"ca": s.CA, "server": s.Server} {
		if c == nil || c.RenewBefore == nil {
			continue
		}
		if r := c.RenewBefore.Duration; r <= 0 || c.Duration != nil && r == c.Duration.Duration {
			warnings = append(warnings,
				fmt.Sprintf("%s: a certificate cannot be renewed %s before its end: a fifth of its duration is used instead",
					p.Child(name, "renewBefore"), r))
		}
	}
	slices.Sort(warnings)
	return warnings
}

// warnDeprecated warns about deprecated fields, which still work, and names their successors.
func warnDeprecated(p *field.Path, c *v1.KubeVirtConfiguration) []string {
	var warnings []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"machineType", c.MachineType != ""},
		{"emulatedMachines", len(c.EmulatedMachines) > 0},
		{"ovmfPath", c.OVMFPath != ""},
	} {
		if f.set {
			warnings = append(warnings, fmt.Sprintf("%s is deprecated, use %s. It wins over that of every architecture",
				p.Child(f.name), p.Child("architectureConfiguration", "amd64", f.name)))
		}
	}
	if devices := c.MediatedDevicesConfiguration; devices != nil {
		at := p.Child("mediatedDevicesConfiguration")
		const format = "%s is deprecated, use mediatedDeviceTypes"
		if devices.MediatedDevicesTypes != nil {
			warnings = append(warnings, fmt.Sprintf(format, at.Child("mediatedDevicesTypes")))
		}
		for i := range devices.NodeMediatedDeviceTypes {
			if devices.NodeMediatedDeviceTypes[i].MediatedDevicesTypes != nil {
				warnings = append(warnings,
					fmt.Sprintf(format, at.Child("nodeMediatedDeviceTypes").Index(i).Child("mediatedDevicesTypes")))
			}
		}
	}
	return warnings
}

// warnMachines warns about malformed patterns of machine types, which do not match any machine type.
func warnMachines(p *field.Path, c *v1.KubeVirtConfiguration) []string {
	var warnings []string
	warn := func(at *field.Path, patterns []string) {
		for i, pattern := range patterns {
			if _, err := path.Match(pattern, ""); err != nil {
				warnings = append(warnings,
					fmt.Sprintf("%s: %q is not a valid pattern and allows no machine: %v", at.Index(i), pattern, err))
			}
		}
	}
	warn(p.Child("emulatedMachines"), c.EmulatedMachines)
	if a := c.ArchitectureConfiguration; a != nil {
		for name, arch := range map[string]*v1.ArchSpecificConfiguration{"amd64": a.Amd64, "arm64": a.Arm64,
			"s390x": a.S390x} {
			if arch != nil {
				warn(p.Child("architectureConfiguration", name, "emulatedMachines"), arch.EmulatedMachines)
			}
		}
	}
	slices.Sort(warnings)
	return warnings
}
