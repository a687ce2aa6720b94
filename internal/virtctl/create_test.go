// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/virtctl"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

func TestCreateVM(t *testing.T) {
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("a: \"b\" #c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{
		"least":         {},
		"containerdisk": {"--memory=1Gi", "--run-strategy=manual", "--termination-grace-period=5", "--volume-containerdisk=src:example.com:5000/image:tag,bootorder:2"},
		"namespace":     {"-n", "other", "--volume-pvc=src:claim,name:root"},
		"inferred":      {"--volume-containerdisk=src:image", "--volume-pvc=src:claim", "--infer-instancetype-from=claim", "--infer-preference-from=claim"},
		"instancetype":  {"--instancetype=VirtualMachineInstancetype/small", "--preference=fedora", "--volume-pvc=src:claim"},
		"imports": {"--volume-import=type:http,url:https://example.com/a.img,size:1Gi,name:a,extraheaders:X: 1;Y: 2",
			"--volume-import=type:blank,size:2Gi,name:b", "--volume-import=type:pvc,src:ns/claim,name:c,bootorder:1",
			"--volume-import=type:ds,src:source,name:d",
			"--volume-import=type:registry,url:docker://x/y,pullmethod:node,size:3Gi,name:e",
			"--volume-import=type:snapshot,src:ns/snap,name:f"},
		"deprecated": {"--volume-datasource=src:ns/source,name:d,size:4Gi", "--volume-blank=size:1Gi,name:b", "--volume-clone-pvc=src:ns/claim,name:c"},
		"user": {"--user=jdoe", "--ssh-key=ssh-ed25519 AAAA me@here", "--ssh-key=ssh-rsa BBBB", "--password-file=" + password,
			"--volume-sysprep=src:answers,type:Secret", "--ga-manage-ssh"},
		"credentials": {"--access-cred=src:keys,user:jdoe", "--access-cred=type:password,src:passwords", "--cloud-init=configDrive"},
		"userdata":    {"--cloud-init-user-data=I2Nsb3VkLWNvbmZpZwo=", "--access-cred=src:keys,method:noCloud"},
		"none":        {"--cloud-init=none", "--user=jdoe"},
	}
	for name, flags := range tests {
		t.Run(name, func(t *testing.T) {
			s := virtctltest.NewServer(t)
			got := s.Run(virtctl.Execute, append([]string{"create", "vm", "--name=demo"}, flags...)...)
			if got.Code != 0 {
				t.Fatal(got.ErrOut)
			}
			expectGolden(t, "create/vm-"+name+".yaml", got.Out)
			expectValid(t, "kubevirt.io_virtualmachines.yaml", "v1", got.Out)
		})
	}
}

func TestCreateVMNamesItself(t *testing.T) {
	s := virtctltest.NewServer(t)
	first, second := s.Run(virtctl.Execute, "create", "vm"), s.Run(virtctl.Execute, "create", "vm", "-ojson")
	if first.Code != 0 || !strings.Contains(first.Out, "name: vm-") || !strings.Contains(second.Out, `"name": "vm-`) {
		t.Errorf("%+v %+v", first, second)
	}
	if len(s.Writes()) > 0 {
		t.Errorf("create changed the cluster: %v", s.Writes())
	}
}

func TestCreateVMRefuses(t *testing.T) {
	s := virtctltest.NewServer(t)
	for flags, want := range map[string]string{
		"--memory=much":                                                 `failed to parse "--memory" flag`,
		"--run-strategy=Sometimes":                                      "supported values are: Always, Manual, Halted, Once, RerunOnFailure",
		"--memory=1Gi --instancetype=a":                                 "none of the others can be",
		"--instancetype=pod/a":                                          `invalid instancetype kind "pod"`,
		"--instancetype=a/b/c":                                          "invalid count 2 of slashes",
		"--volume-containerdisk=image":                                  "params need to have at least one colon: image",
		"--volume-containerdisk=name:a":                                 "src must be specified",
		"--volume-containerdisk=src:a,color:b":                          "unknown param(s): color:b",
		"--volume-containerdisk=src:a,bootorder:0":                      "bootorder must be greater than 0",
		"--volume-containerdisk=src:a,name:A":                           `invalid name "A"`,
		"--volume-pvc=src:ns/claim":                                     "not allowed to specify namespace of pvc",
		"--volume-pvc=src:a --volume-pvc=src:a":                         `there is already a volume with name "a"`,
		"--volume-pvc=src:a,bootorder:1 --volume-pvc=src:b,bootorder:1": "bootorder 1 was specified multiple times",
		"--volume-import=size:1Gi":                                      "type must be specified",
		"--volume-import=type:tape":                                     `invalid volume import type "tape"`,
		"--volume-import=type:blank":                                    "size must be specified",
		"--volume-import=type:pvc,src:claim":                            `namespace of pvc "claim" must be specified`,
		"--volume-import=type:http,size:1Gi":                            "url must be specified",
		"--volume-import=type:registry,size:1Gi":                        "exactly one of url or imagestream",
		"--volume-import=type:blank,size:big":                           `failed to parse param "size"`,
		"--infer-instancetype":                                          "at least one volume is needed",
		"--infer-instancetype --volume-containerdisk=src:a":             "works only with datasources",
		"--infer-preference-from=x --volume-pvc=src:a":                  `there is no volume with name "x"`,
		"--access-cred=src:a":                                           "user must be specified",
		"--access-cred=src:a,method:noCloud --cloud-init=configDrive":   "have to match",
		"--access-cred=src:a,type:eye":                                  `invalid access credential type "eye"`,
		"--cloud-init=floppy":                                           `invalid cloud-init data source type "floppy"`,
		"--cloud-init-user-data=%":                                      "it must be base64",
		"--cloud-init-user-data=YQ== --user=a":                          "none of the others can be",
		"--password-file=/no/such/file":                                 "/no/such/file",
		"myvm":                                                          "unknown command",
	} {
		t.Run(flags, func(t *testing.T) {
			expectFailure(t, s.Run(virtctl.Execute,
				append([]string{"create", "vm", "--name=demo"}, strings.Fields(flags)...)...), want)
		})
	}
}

func TestCreateOthers(t *testing.T) {
	tests := map[string]struct{ command, crd, version string }{
		"instancetype":            {"instancetype --name=small --cpu=2 --memory=4Gi", "instancetype.kubevirt.io_virtualmachineclusterinstancetypes.yaml", "v1beta1"},
		"instancetype-devices":    {"instancetype --name=big -n other --namespaced --cpu=2 --memory=4Gi --gpu=name:g,devicename:a/b --hostdevice=name:h,devicename:c/d --iothreadspolicy=auto", "instancetype.kubevirt.io_virtualmachineinstancetypes.yaml", "v1beta1"},
		"preference":              {"preference --name=fast --volume-storage-class=fast --cpu-topology=preferCores --machine-type=q35", "instancetype.kubevirt.io_virtualmachineclusterpreferences.yaml", "v1beta1"},
		"preference-in-namespace": {"preference --name=fast -n other", "instancetype.kubevirt.io_virtualmachinepreferences.yaml", "v1beta1"},
		"preference-namespaced":   {"preference --name=fast --namespaced", "instancetype.kubevirt.io_virtualmachinepreferences.yaml", "v1beta1"},
		"clone":                   {"clone --name=c --source-name=a", "clone.kubevirt.io_virtualmachineclones.yaml", "v1beta1"},
		"clone-snapshot":          {"clone --name=c --source-name=a --source-type=VMSnapshot --target-name=b --label-filter=* --template-annotation-filter=!x --new-mac-address=default:02-00-00-00-00-01 --new-smbios-serial=s", "clone.kubevirt.io_virtualmachineclones.yaml", "v1beta1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := virtctltest.NewServer(t)
			got := s.Run(virtctl.Execute, append([]string{"create"}, strings.Fields(tt.command)...)...)
			if got.Code != 0 {
				t.Fatal(got.ErrOut)
			}
			expectGolden(t, "create/"+name+".yaml", got.Out)
			expectValid(t, tt.crd, tt.version, got.Out)
		})
	}
	s := virtctltest.NewServer(t)
	for command, want := range map[string]string{
		"instancetype --memory=1Gi":                                `required flag(s) "cpu" not set`,
		"instancetype --cpu=0 --memory=1Gi":                        "cpu value must be greater than zero",
		"instancetype --cpu=1 --memory=x":                          `failed to parse "--memory" flag`,
		"instancetype --cpu=1 --memory=1Gi --gpu=name:a":           "devicename must be specified",
		"instancetype --cpu=1 --memory=1Gi --iothreadspolicy=many": `invalid policy "many"`,
		"preference --cpu-topology=round":                          `invalid topology "round"`,
		"clone":                                                    `required flag(s) "source-name" not set`,
		"clone --source-name=a --source-type=pod":                  "source type pod is not supported",
		"clone --source-name=a --target-type=snapshot":             "target type snapshot is not supported",
		"clone --source-name=a --new-mac-address=x":                "exactly one ':' is expected",
	} {
		expectFailure(t, s.Run(virtctl.Execute, append([]string{"create"}, strings.Fields(command)...)...), want)
	}
}
