// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveness_test

// base is a guest to which most fields apply.
const base = `
domain:
  cpu: {sockets: 1, cores: 2, threads: 1, model: Nehalem}
  memory: {guest: 1Gi}
  firmware: {uuid: 9d2f7f5c-1f3c-4b8e-8f0c-0d7c3d1a2b4e}
  devices:
    disks: [{name: disk, disk: {bus: virtio}}]
    interfaces: [{name: nic, masquerade: {}}]
networks: [{name: nic, pod: {}}]
volumes: [{name: disk, emptyDisk: {capacity: 1Gi}}]
`

// scenes are fragments for base with which a field has a meaning. The scene with the longest prefix of a field's path
// applies.
var scenes = map[string]string{
	"domain.resources.overcommitGuestOverhead": `{domain: {resources: {requests: {memory: 1Gi}}}}`,
	"domain.cpu.features":                      `{domain: {cpu: {features: [{name: apic, policy: require}]}}}`,
	"domain.cpu.dedicatedCpuPlacement":         `{domain: {resources: {requests: {memory: 1Gi}}}}`,
	"domain.cpu.isolateEmulatorThread":         `{domain: {cpu: {dedicatedCpuPlacement: true}, resources: {requests: {memory: 1Gi}}}}`,
	"domain.cpu.numa": `{domain: {cpu: {dedicatedCpuPlacement: true}, memory: {hugepages: {pageSize: 2Mi}},
      resources: {requests: {memory: 1Gi}}}}`,
	"domain.cpu.realtime": `{domain: {cpu: {dedicatedCpuPlacement: true, numa: {guestMappingPassthrough: {}}, realtime: {}},
      memory: {hugepages: {pageSize: 2Mi}}, resources: {requests: {memory: 1Gi}}}}`,
	"domain.firmware.bootloader.efi.secureBoot":  `{domain: {features: {smm: {enabled: true}}, firmware: {bootloader: {efi: {secureBoot: false}}}}}`,
	"domain.firmware.bootloader.efi.persistent":  `{domain: {firmware: {bootloader: {efi: {secureBoot: false}}}}}`,
	"domain.firmware.kernelBoot":                 `{domain: {firmware: {kernelBoot: {container: {image: "boot:1", kernelPath: /k, initrdPath: /i}}}}}`,
	"domain.firmware.acpi":                       withVolume(`secret: {secretName: s}`, ``),
	"domain.features.hyperv.spinlocks.spinlocks": `{domain: {features: {hyperv: {spinlocks: {enabled: true}}}}}`,
	"domain.features.hyperv.vendorid":            `{domain: {features: {hyperv: {vendorid: {enabled: true, vendorid: KVMHv}}}}}`,
	"domain.features.hyperv.synictimer.direct":   `{domain: {features: {hyperv: {synictimer: {enabled: true}}}}}`,
	"domain.features.hyperv.tlbflush":            `{domain: {features: {hyperv: {tlbflush: {enabled: true}}}}}`,
	"domain.clock":                               `{domain: {clock: {utc: {}}}}`,
	"domain.clock.timezone":                      `{domain: {clock: {}}}`,
	"domain.devices.disks[].lun":                 withVolume(`persistentVolumeClaim: {claimName: block}`, `lun: {}`),
	"domain.devices.disks[].cdrom":               withVolume(`emptyDisk: {capacity: 1Gi}`, `cdrom: {bus: sata}`),
	"domain.devices.disks[].disk.readonly":       withVolume(`persistentVolumeClaim: {claimName: c}`, `disk: {bus: virtio}`),
	"domain.devices.disks[].shareable":           withVolume(`persistentVolumeClaim: {claimName: c}`, `disk: {bus: virtio}`),
	"domain.devices.disks[].blockSize.custom":    withVolume(`emptyDisk: {capacity: 1Gi}`, `disk: {bus: virtio}, blockSize: {custom: {logical: 512, physical: 4096}}`),
	"domain.devices.disks[].tag":                 configDrive,
	"domain.devices.interfaces[].tag":            configDrive,
	"domain.devices.interfaces[].masquerade":     `{domain: {devices: {interfaces: [{name: nic, bridge: {}}]}}}`,
	"domain.devices.interfaces[].bridge":         `{domain: {devices: {interfaces: [{name: nic, masquerade: {}}]}}}`,
	"domain.devices.interfaces[].ports":          `{domain: {devices: {interfaces: [{name: nic, masquerade: {}, ports: [{name: web, protocol: TCP, port: 81}]}]}}}`,
	"domain.devices.interfaces[].portRanges":     `{domain: {devices: {interfaces: [{name: nic, masquerade: {}, portRanges: [{protocol: TCP, start: 80, end: 90}]}]}}}`,
	"domain.devices.interfaces[].dhcpOptions":    `{domain: {devices: {interfaces: [{name: nic, masquerade: {}, dhcpOptions: {privateOptions: [{option: 240, value: x}]}}]}}}`,
	"domain.devices.inputs":                      `{domain: {devices: {inputs: [{name: i, type: tablet, bus: usb}]}}}`,
	"domain.devices.autoattachPodInterface":      `{domain: {devices: {interfaces: []}}, networks: []}`,
	"domain.devices.sound":                       `{domain: {devices: {sound: {name: s, model: ich9}}}}`,
	"domain.devices.watchdog":                    `{domain: {devices: {watchdog: {name: w, i6300esb: {action: reset}}}}}`,
	"domain.devices.watchdog.diag288":            `{domain: {devices: {watchdog: {name: w}}}}`,
	"domain.devices.tpm":                         `{domain: {devices: {tpm: {}}}}`,
	"domain.devices.panicDevices":                `{domain: {devices: {panicDevices: [{model: isa}]}}}`,
	"domain.ioThreads":                           `{domain: {ioThreadsPolicy: supplementalPool, ioThreads: {supplementalPoolThreadCount: 1}}}`,
	"domain.memory.hugepages":                    `{domain: {memory: {guest: 1Gi}}}`,
	"domain.memory.reservedOverhead.memLock":     `{domain: {memory: {guest: 1Gi}}}`,
	"topologySpreadConstraints":                  `{topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]}`,
	"topologySpreadConstraints[].labelSelector.matchExpressions": `{topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone,
      whenUnsatisfiable: DoNotSchedule, labelSelector: {matchExpressions: [{key: a, operator: Exists}]}}]}`,
	"topologySpreadConstraints[].labelSelector.matchExpressions[].values": `{topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone,
      whenUnsatisfiable: DoNotSchedule, labelSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}}]}`,
	"topologySpreadConstraints[].matchLabelKeys": `{topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone,
      whenUnsatisfiable: DoNotSchedule, labelSelector: {}}]}`,
	"tolerations":                     `{tolerations: [{key: a, operator: Equal, value: b, effect: NoExecute}]}`,
	"volumes[].hostDisk":              withVolume(`hostDisk: {path: /data/new.img, type: DiskOrCreate, capacity: 1Gi}`, `disk: {bus: virtio}`),
	"volumes[].hostDisk.type":         withVolume(`hostDisk: {path: /data/new.img, type: Disk, capacity: 1Gi}`, `disk: {bus: virtio}`),
	"volumes[].dataVolume":            withVolume(`dataVolume: {name: c}`, `disk: {bus: virtio}`),
	"volumes[].persistentVolumeClaim": withVolume(`persistentVolumeClaim: {claimName: c}`, `disk: {bus: virtio}`),
	"volumes[].cloudInitNoCloud":      withVolume(`cloudInitNoCloud: {userData: a}`, `disk: {bus: virtio}`),
	"volumes[].cloudInitConfigDrive":  withVolume(`cloudInitConfigDrive: {userData: a}`, `disk: {bus: virtio}`),
	"volumes[].sysprep":               withVolume(`sysprep: {configMap: {name: a}}`, `cdrom: {bus: sata}`),
	"volumes[].sysprep.secret":        withVolume(`sysprep: {secret: {name: a}}`, `cdrom: {bus: sata}`),
	"volumes[].containerDisk":         withVolume(`containerDisk: {image: "a:1", path: /disk/disk.img}`, `disk: {bus: virtio}`),
	"volumes[].ephemeral":             withVolume(`ephemeral: {persistentVolumeClaim: {claimName: c}}`, `disk: {bus: virtio}`),
	"volumes[].configMap":             withVolume(`configMap: {name: a}`, `disk: {bus: virtio}`),
	"volumes[].secret":                withVolume(`secret: {secretName: a}`, `disk: {bus: virtio}`),
	"volumes[].serviceAccount":        withVolume(`serviceAccount: {serviceAccountName: a}`, `disk: {bus: virtio}`),
	"volumes[].downwardAPI":           withVolume(`downwardAPI: {fields: [{path: a, fieldRef: {fieldPath: metadata.labels}}]}`, `disk: {bus: virtio}`),
	"volumes[].downwardAPI.fields[].resourceFieldRef": withVolume(
		`downwardAPI: {fields: [{path: a, resourceFieldRef: {containerName: compute, resource: limits.cpu}}]}`, `disk: {bus: virtio}`),
	"livenessProbe":                      `{livenessProbe: {tcpSocket: {port: 80}}}`,
	"livenessProbe.exec":                 `{livenessProbe: {exec: {command: ["true"]}}}`,
	"livenessProbe.guestAgentPing":       `{}`,
	"livenessProbe.httpGet":              `{livenessProbe: {httpGet: {port: 80}}}`,
	"livenessProbe.httpGet.httpHeaders":  `{livenessProbe: {httpGet: {port: 80, httpHeaders: [{name: a, value: b}]}}}`,
	"readinessProbe":                     `{readinessProbe: {tcpSocket: {port: 80}}}`,
	"readinessProbe.exec":                `{readinessProbe: {exec: {command: ["true"]}}}`,
	"readinessProbe.guestAgentPing":      `{}`,
	"readinessProbe.httpGet":             `{readinessProbe: {httpGet: {port: 80}}}`,
	"readinessProbe.httpGet.httpHeaders": `{readinessProbe: {httpGet: {port: 80, httpHeaders: [{name: a, value: b}]}}}`,
	"networks[].multus":                  secondNIC,
	"networks[].resourceClaim":           secondNIC,
	"dnsConfig":                          `{dnsPolicy: None, dnsConfig: {nameservers: [10.0.0.10]}}`,
	"dnsConfig.options":                  `{dnsPolicy: None, dnsConfig: {nameservers: [10.0.0.10], options: [{name: ndots, value: "1"}]}}`,
	"accessCredentials":                  sshKeys + `, volumes: [{name: disk, cloudInitNoCloud: {userData: a}}]}`,
	"accessCredentials[].sshPublicKey.propagationMethod.configDrive": configDrive,
	"accessCredentials[].sshPublicKey.propagationMethod.noCloud":     `{volumes: [{name: disk, cloudInitNoCloud: {userData: a}}]}`,
	"accessCredentials[].sshPublicKey.propagationMethod.qemuGuestAgent": `{accessCredentials: [{sshPublicKey: {source: {secret: {secretName: s}},
      propagationMethod: {qemuGuestAgent: {users: [a]}}}}]}`,
	// The leaf adds the propagation method.
	"accessCredentials[].userPassword.propagationMethod": `{accessCredentials: [{userPassword: {source: {secret: {secretName: s}}, propagationMethod: {}}}]}`,
	"accessCredentials[].userPassword":                   `{accessCredentials: [{userPassword: {source: {secret: {secretName: s}}, propagationMethod: {qemuGuestAgent: {}}}}]}`,
	"resourceClaims":                                     `{resourceClaims: [{name: a, resourceClaimName: b}]}`,
	"resourceClaims[].resourceClaimTemplateName":         `{resourceClaims: [{name: a}]}`,
	// Selectors of nodes and Pods must be valid wherever they are.
	"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchExpressions": requiredNodes(`matchExpressions: [{key: a, operator: Exists}]`),
	"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchExpressions[].values": requiredNodes(
		`matchExpressions: [{key: a, operator: In, values: [b]}]`),
	"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchFields":       requiredNodes(`matchFields: [{key: metadata.name, operator: In, values: [b]}]`),
	"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchFields[].key": requiredNodes(`matchFields: []`),
	"affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution":                                      preferredNodes(`matchExpressions: [{key: a, operator: Exists}]`),
	"affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference.matchExpressions[].values": preferredNodes(
		`matchExpressions: [{key: a, operator: In, values: [b]}]`),
	"affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference.matchFields":                                         preferredNodes(`matchFields: [{key: metadata.name, operator: In, values: [b]}]`),
	"affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference.matchFields[].key":                                   preferredNodes(`matchFields: []`),
	"affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution":                                                                    requiredPods(`podAffinity`, `labelSelector: {}`),
	"affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[].labelSelector.matchExpressions":                                   requiredPods(`podAffinity`, `labelSelector: {matchExpressions: [{key: a, operator: Exists}]}`),
	"affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[].labelSelector.matchExpressions[].values":                          requiredPods(`podAffinity`, `labelSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}`),
	"affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector.matchExpressions":                               requiredPods(`podAffinity`, `namespaceSelector: {matchExpressions: [{key: a, operator: Exists}]}`),
	"affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector.matchExpressions[].values":                      requiredPods(`podAffinity`, `namespaceSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}`),
	"affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution":                                                                   preferredPods(`podAffinity`, `labelSelector: {}`),
	"affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.labelSelector.matchExpressions":                  preferredPods(`podAffinity`, `labelSelector: {matchExpressions: [{key: a, operator: Exists}]}`),
	"affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.labelSelector.matchExpressions[].values":         preferredPods(`podAffinity`, `labelSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}`),
	"affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.namespaceSelector.matchExpressions":              preferredPods(`podAffinity`, `namespaceSelector: {matchExpressions: [{key: a, operator: Exists}]}`),
	"affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.namespaceSelector.matchExpressions[].values":     preferredPods(`podAffinity`, `namespaceSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}`),
	"affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution":                                                                requiredPods(`podAntiAffinity`, `labelSelector: {}`),
	"affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[].labelSelector.matchExpressions":                               requiredPods(`podAntiAffinity`, `labelSelector: {matchExpressions: [{key: a, operator: Exists}]}`),
	"affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[].labelSelector.matchExpressions[].values":                      requiredPods(`podAntiAffinity`, `labelSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}`),
	"affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector.matchExpressions":                           requiredPods(`podAntiAffinity`, `namespaceSelector: {matchExpressions: [{key: a, operator: Exists}]}`),
	"affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector.matchExpressions[].values":                  requiredPods(`podAntiAffinity`, `namespaceSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}`),
	"affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution":                                                               preferredPods(`podAntiAffinity`, `labelSelector: {}`),
	"affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.labelSelector.matchExpressions":              preferredPods(`podAntiAffinity`, `labelSelector: {matchExpressions: [{key: a, operator: Exists}]}`),
	"affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.labelSelector.matchExpressions[].values":     preferredPods(`podAntiAffinity`, `labelSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}`),
	"affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.namespaceSelector.matchExpressions":          preferredPods(`podAntiAffinity`, `namespaceSelector: {matchExpressions: [{key: a, operator: Exists}]}`),
	"affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.namespaceSelector.matchExpressions[].values": preferredPods(`podAntiAffinity`, `namespaceSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}`),
}

// Fragments of scenes.
const (
	configDrive = `{volumes: [{name: disk, cloudInitConfigDrive: {userData: a}}]}`
	sshKeys     = `{accessCredentials: [{sshPublicKey: {source: {secret: {secretName: s}}, propagationMethod: {noCloud: {}}}}]`
	secondNIC   = `{domain: {devices: {interfaces: [{name: nic, bridge: {}}]}}, networks: [{name: nic, multus: {networkName: net}}]}`
)

func requiredNodes(term string) string {
	return `{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{` + term + `}]}}}}`
}

func preferredNodes(preference string) string {
	return `{affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {` + preference + `}}]}}}`
}

func requiredPods(kind, term string) string {
	return `{affinity: {` + kind + `: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, ` + term + `}]}}}`
}

func preferredPods(kind, term string) string {
	return `{affinity: {` + kind + `: {preferredDuringSchedulingIgnoredDuringExecution: [
      {weight: 1, podAffinityTerm: {topologyKey: zone, ` + term + `}}]}}}`
}

// withVolume is a scene in which the disk has another source and is another device.
func withVolume(source, device string) string {
	disk := `[{name: disk, ` + device + `}]`
	if device == "" {
		disk = `[]`
	}
	return `{domain: {devices: {disks: ` + disk + `}}, volumes: [{name: disk, ` + source + `}]}`
}

// values are valid values of leaves for which the samples of their type are not.
var values = map[string]string{
	"topologySpreadConstraints[].whenUnsatisfiable":                                                                                            `ScheduleAnyway`,
	"topologySpreadConstraints[].labelSelector.matchExpressions[].operator":                                                                    `DoesNotExist`,
	"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchExpressions[].operator":                     `DoesNotExist`,
	"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchFields[].operator":                          `NotIn`,
	"affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference.matchExpressions[].operator":                           `DoesNotExist`,
	"affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference.matchFields[].operator":                                `NotIn`,
	"affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[].labelSelector.matchExpressions[].operator":                          `DoesNotExist`,
	"affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector.matchExpressions[].operator":                      `DoesNotExist`,
	"affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.labelSelector.matchExpressions[].operator":         `DoesNotExist`,
	"affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.namespaceSelector.matchExpressions[].operator":     `DoesNotExist`,
	"affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[].labelSelector.matchExpressions[].operator":                      `DoesNotExist`,
	"affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector.matchExpressions[].operator":                  `DoesNotExist`,
	"affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.labelSelector.matchExpressions[].operator":     `DoesNotExist`,
	"affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm.namespaceSelector.matchExpressions[].operator": `DoesNotExist`,
	"domain.resources.requests":                                       `{cpu: "2"}`,
	"domain.resources.limits":                                         `{memory: 2Gi}`,
	"domain.cpu.maxSockets":                                           `8`,
	"domain.cpu.features[].policy":                                    `disable`,
	"domain.cpu.realtime.mask":                                        `"0-1,^0"`,
	"domain.memory.hugepages.pageSize":                                `2Mi`,
	"domain.memory.reservedOverhead.memLock":                          `Required`,
	"domain.machine.type":                                             `pc-q35-7.2`,
	"domain.firmware.uuid":                                            `5d307ca9-b3ef-428c-8861-06e72d69f223`,
	"domain.firmware.kernelBoot.container.kernelPath":                 `/other`,
	"domain.firmware.kernelBoot.container.initrdPath":                 `/other`,
	"domain.firmware.acpi.slicNameRef":                                `disk`,
	"domain.firmware.acpi.msdmNameRef":                                `disk`,
	"domain.clock.timezone":                                           `Europe/Berlin`,
	"domain.clock.timer.hpet.tickPolicy":                              `delay`,
	"domain.clock.timer.pit.tickPolicy":                               `discard`,
	"domain.clock.timer.rtc.tickPolicy":                               `catchup`,
	"domain.clock.timer.rtc.track":                                    `guest`,
	"domain.features.hyperv.spinlocks.spinlocks":                      `8191`,
	"domain.features.hyperv.vendorid.vendorid":                        `Other`,
	"domain.devices.disks[].disk.bus":                                 `sata`,
	"domain.devices.disks[].disk.pciAddress":                          `"0000:81:01.0"`,
	"domain.devices.disks[].lun.bus":                                  `scsi`,
	"domain.devices.disks[].cdrom.bus":                                `scsi`,
	"domain.devices.disks[].cdrom.tray":                               `open`,
	"domain.devices.disks[].cache":                                    `writethrough`,
	"domain.devices.disks[].io":                                       `threads`,
	"domain.devices.disks[].errorPolicy":                              `ignore`,
	"domain.devices.disks[].blockSize.custom.logical":                 `4096`,
	"domain.devices.disks[].blockSize.custom.physical":                `8192`,
	"domain.devices.disks[].blockSize.custom.discardGranularity":      `1024`,
	"domain.devices.watchdog.i6300esb.action":                         `poweroff`,
	"domain.devices.watchdog.diag288.action":                          `poweroff`,
	"domain.devices.interfaces[].model":                               `e1000`,
	"domain.devices.interfaces[].ports[].protocol":                    `UDP`,
	"domain.devices.interfaces[].portRanges[].protocol":               `UDP`,
	"domain.devices.interfaces[].portRanges[].start":                  `85`,
	"domain.devices.interfaces[].portRanges[].end":                    `95`,
	"domain.devices.interfaces[].dhcpOptions.ntpServers":              `[10.0.0.1]`,
	"domain.devices.interfaces[].dhcpOptions.privateOptions[].option": `241`,
	"domain.devices.interfaces[].macAddress":                          `"02:00:00:00:00:07"`,
	"domain.devices.interfaces[].pciAddress":                          `"0000:81:01.0"`,
	"domain.devices.interfaces[].state":                               `down`,
	"domain.devices.inputs[].bus":                                     `virtio`,
	"domain.devices.inputs[].type":                                    `keyboard`,
	"domain.devices.panicDevices[].model":                             `pvpanic`,
	"domain.devices.sound.model":                                      `ac97`,
	"domain.devices.video.type":                                       `virtio`,
	"domain.devices.tpm.enabled":                                      `false`,
	"domain.ioThreadsPolicy":                                          `auto`,
	"domain.rebootPolicy":                                             `Terminate`,
	"livenessProbe.failureThreshold":                                  `5`,
	"readinessProbe.failureThreshold":                                 `5`,
	"startStrategy":                                                   `Paused`,
	"evictionStrategy":                                                `LiveMigrate`,
	"volumes[].hostDisk.type":                                         `DiskOrCreate`,
	"volumes[].hostDisk.path":                                         `/data/other.img`,
	"volumes[].cloudInitNoCloud.userData":                             `other`,
	"volumes[].cloudInitNoCloud.networkDataBase64":                    `b3RoZXI=`,
	"volumes[].cloudInitConfigDrive.userData":                         `other`,
	"volumes[].cloudInitConfigDrive.networkDataBase64":                `b3RoZXI=`,
	"volumes[].containerDisk.image":                                   `b:1`,
	"volumes[].containerDisk.path":                                    `/disk/other.img`,
	"networks[].pod.vmNetworkCIDR":                                    `10.1.0.0/24`,
	"networks[].pod.vmIPv6NetworkCIDR":                                `fd11:0:2::/120`,
	"dnsPolicy":                                                       `Default`,
	"dnsConfig.nameservers":                                           `[10.0.0.11]`,
	"architecture":                                                    `arm64`,
}

// variants are fragments for leaves that cannot be changed alone.
var variants = map[string]string{
	"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchFields[].key": requiredNodes(`matchFields: [{key: metadata.name, operator: In, values: [b]}]`),
	"affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference.matchFields[].key":       preferredNodes(`matchFields: [{key: metadata.name, operator: In, values: [b]}]`),
	"livenessProbe.guestAgentPing":  `{livenessProbe: {guestAgentPing: {}}}`,
	"readinessProbe.guestAgentPing": `{readinessProbe: {guestAgentPing: {}}}`,
	"accessCredentials[].sshPublicKey.propagationMethod.configDrive": `{accessCredentials: [{sshPublicKey: {source: {secret: {secretName: s}},
      propagationMethod: {configDrive: {}}}}]}`,
	"accessCredentials[].sshPublicKey.propagationMethod.noCloud": sshKeys + `}`,
	"volumes[].cloudInitNoCloud.secretRef.name":                  `{volumes: [{name: disk, cloudInitNoCloud: {secretRef: {name: s}}}]}`,
	"volumes[].cloudInitNoCloud.userDataBase64":                  `{volumes: [{name: disk, cloudInitNoCloud: {userDataBase64: b3RoZXI=}}]}`,
	"volumes[].cloudInitConfigDrive.secretRef.name":              `{volumes: [{name: disk, cloudInitConfigDrive: {secretRef: {name: s}}}]}`,
	"volumes[].cloudInitConfigDrive.userDataBase64":              `{volumes: [{name: disk, cloudInitConfigDrive: {userDataBase64: b3RoZXI=}}]}`,
	"domain.devices.disks[].name": `{domain: {devices: {disks: [{name: other, disk: {bus: virtio}}]}},
      volumes: [{name: other, emptyDisk: {capacity: 1Gi}}]}`,
	"volumes[].name": `{domain: {devices: {disks: [{name: other, disk: {bus: virtio}}]}},
      volumes: [{name: other, emptyDisk: {capacity: 1Gi}}]}`,
	"domain.devices.interfaces[].name":       `{domain: {devices: {interfaces: [{name: other, masquerade: {}}]}}, networks: [{name: other, pod: {}}]}`,
	"networks[].name":                        `{domain: {devices: {interfaces: [{name: other, masquerade: {}}]}}, networks: [{name: other, pod: {}}]}`,
	"domain.devices.interfaces[].bridge":     `{domain: {devices: {interfaces: [{name: nic, bridge: {}}]}}}`,
	"domain.devices.interfaces[].masquerade": `{domain: {devices: {interfaces: [{name: nic, masquerade: {}}]}}}`,
}
