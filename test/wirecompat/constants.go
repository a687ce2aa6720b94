// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

// constantsNotOurs are constants of KubeVirt's that we have no use for, and why.
var constantsNotOurs = map[string]string{
	"FuncTestBlockLauncherPrepareMigrationTargetAnnotation": "how KubeVirt's own functional tests break things",
	"FuncTestForceIgnoreMigrationBackoffAnnotation":         "how KubeVirt's own functional tests break things",
	"FuncTestForceLauncherMigrationFailureAnnotation":       "how KubeVirt's own functional tests break things",
	"FuncTestLauncherFailFastAnnotation":                    "how KubeVirt's own functional tests break things",
	"FuncTestMemoryHotplugFailAnnotation":                   "how KubeVirt's own functional tests break things",
	"FuncTestMigrationTargetImageOverrideAnnotation":        "how KubeVirt's own functional tests break things",
	"EphemeralBackupObject":                                 "bookkeeping of KubeVirt's operator, which ours has no use for",
	"InstallStrategyConfigMapEncoding":                      "bookkeeping of KubeVirt's operator, which ours has no use for",
	"InstallStrategyIdentifierAnnotation":                   "bookkeeping of KubeVirt's operator, which ours has no use for",
	"InstallStrategyLabel":                                  "bookkeeping of KubeVirt's operator, which ours has no use for",
	"InstallStrategyRegistryAnnotation":                     "bookkeeping of KubeVirt's operator, which ours has no use for",
	"InstallStrategyVersionAnnotation":                      "bookkeeping of KubeVirt's operator, which ours has no use for",
	"KubeVirtCustomizeComponentAnnotationHash":              "bookkeeping of KubeVirt's operator, which ours has no use for",
	"KubeVirtGenerationAnnotation":                          "bookkeeping of KubeVirt's operator, which ours has no use for",
	"ManagedByLabelOperatorOldValue":                        "bookkeeping of KubeVirt's operator, which ours has no use for",
	"HotplugDiskDir":                                        "inside KubeVirt's launcher Pod",
	"MDevResourcePrefix":                                    "inside KubeVirt's launcher Pod",
	"PCIResourcePrefix":                                     "inside KubeVirt's launcher Pod",
	"USBResourcePrefix":                                     "inside KubeVirt's launcher Pod",
	"AppName":                                               "of KubeVirt's Go client alone",
	"KubeVirtClientGoSchemeRegistrationVersionEnvVar":       "of KubeVirt's Go client alone",
	"BridgeInterface":                                       "names of members of an interface, which a JSON tag says",
	"DeprecatedSlirpInterface":                              "names of members of an interface, which a JSON tag says",
	"MasqueradeInterface":                                   "names of members of an interface, which a JSON tag says",
}
