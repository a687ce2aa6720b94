// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

// constantsNotOurs are constants of KubeVirt that Vireo does not use, with the reason.
var constantsNotOurs = map[string]string{
	"FuncTestBlockLauncherPrepareMigrationTargetAnnotation": "for fault injection by KubeVirt's functional tests",
	"FuncTestForceIgnoreMigrationBackoffAnnotation":         "for fault injection by KubeVirt's functional tests",
	"FuncTestForceLauncherMigrationFailureAnnotation":       "for fault injection by KubeVirt's functional tests",
	"FuncTestLauncherFailFastAnnotation":                    "for fault injection by KubeVirt's functional tests",
	"FuncTestMemoryHotplugFailAnnotation":                   "for fault injection by KubeVirt's functional tests",
	"FuncTestMigrationTargetImageOverrideAnnotation":        "for fault injection by KubeVirt's functional tests",
	"EphemeralBackupObject":                                 "internal to KubeVirt's operator",
	"InstallStrategyConfigMapEncoding":                      "internal to KubeVirt's operator",
	"InstallStrategyIdentifierAnnotation":                   "internal to KubeVirt's operator",
	"InstallStrategyLabel":                                  "internal to KubeVirt's operator",
	"InstallStrategyRegistryAnnotation":                     "internal to KubeVirt's operator",
	"InstallStrategyVersionAnnotation":                      "internal to KubeVirt's operator",
	"KubeVirtCustomizeComponentAnnotationHash":              "internal to KubeVirt's operator",
	"KubeVirtGenerationAnnotation":                          "internal to KubeVirt's operator",
	"ManagedByLabelOperatorOldValue":                        "internal to KubeVirt's operator",
	"HotplugDiskDir":                                        "internal to KubeVirt's launcher Pod",
	"MDevResourcePrefix":                                    "internal to KubeVirt's launcher Pod",
	"PCIResourcePrefix":                                     "internal to KubeVirt's launcher Pod",
	"USBResourcePrefix":                                     "internal to KubeVirt's launcher Pod",
	"AppName":                                               "only for KubeVirt's Go client",
	"KubeVirtClientGoSchemeRegistrationVersionEnvVar":       "only for KubeVirt's Go client",
	"BridgeInterface":                                       "names of fields, which JSON tags contain",
	"DeprecatedSlirpInterface":                              "names of fields, which JSON tags contain",
	"MasqueradeInterface":                                   "names of fields, which JSON tags contain",
}
