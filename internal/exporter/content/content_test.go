// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package content

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct{ raw, want string }{
		"a disk":            {`{"export":"e","volumes":[{"name":"root.disk","disk":true,"block":true},{"name":"data"}]}`, ""},
		"no JSON":           {`{`, "read the content"},
		"a path":            {`{"export":"e","volumes":[{"name":"../etc"}]}`, `the name "../etc" of the volume is not valid`},
		"no name":           {`{"export":"","volumes":[]}`, `of the export is not valid`},
		"twice":             {`{"export":"e","volumes":[{"name":"a"},{"name":"a"}]}`, "two volumes"},
		"files of a device": {`{"export":"e","volumes":[{"name":"a","block":true}]}`, "has no files"},
		"too large":         {strings.Repeat(" ", MaxSize+1), "at most"},
	} {
		c, err := Parse([]byte(tc.raw))
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s: got %v", name, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: got %+v, %v", name, c, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"export":"e","volumes":[{"name":"root","disk":true}],"manifests":{"virtualMachine":{"spec":{"dataVolumeTemplates":[{"metadata":{"name":"a"},"spec":{}}]}},` +
		`"templates":{"a":"root"},"dataVolumes":[{"name":"b","volume":"root"}]}}`))
	f.Add([]byte(`{"export":"e","volumes":[{"name":"root"}],"manifests":{"virtualMachine":{"spec":[]}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := Parse(raw)
		if err != nil {
			return
		}
		for _, v := range c.Volumes {
			if strings.Contains(v.Name, "/") {
				t.Errorf("a name is a path: %q", v.Name)
			}
		}
		if c.Manifests != nil {
			c.AllManifests(Side{Address: "host"})
		}
	})
}
