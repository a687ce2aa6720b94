// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/virtctl"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

func TestGuestAgent(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Record(http.MethodGet, vmiPath+"guestosinfo", http.StatusOK,
		"{\"guestAgentVersion\":\"9.1\",\"os\":{\"name\":\"Debian\u009b2J\",\"id\":\"debian\"}}")
	s.Record(http.MethodGet, vmiPath+"userlist", http.StatusOK, `{"metadata":{},"items":[{"userName":"jdoe","loginTime":1.5}]}`)
	s.Record(http.MethodGet, vmiPath+"filesystemlist", http.StatusOK, `{"metadata":{},"items":[{"diskName":"vda1","mountPoint":"/"}]}`)
	for command, want := range map[string]string{
		"guestosinfo demo":     "{\n  \"guestAgentVersion\": \"9.1\",\n  \"os\": {\n    \"name\": \"Debian2J\",\n    \"id\": \"debian\"\n  }\n}\n",
		"userlist demo -oyaml": "items:\n- loginTime: 1.5\n  userName: jdoe\nmetadata: {}\n",
		"fslist vmi/demo":      "{\n  \"metadata\": {},\n  \"items\": [\n    {\n      \"diskName\": \"vda1\",\n      \"mountPoint\": \"/\"\n    }\n  ]\n}\n",
	} {
		t.Run(command, func(t *testing.T) {
			if got := s.Run(virtctl.Execute, strings.Fields(command)...); got != (virtctltest.Result{Out: want}) {
				t.Errorf("got %+v, want %q", got, want)
			}
		})
	}
	expectFailure(t, s.Run(virtctl.Execute, "fslist", "demo", "-o", "xml"), `"xml" is not known`)
}

func TestGuestAgentReportsTheServersError(t *testing.T) {
	s := virtctltest.NewServer(t)
	const refusal = "VMI does not have guest agent connected"
	s.Subresource(http.MethodGet, vmiPath+"guestosinfo", func(w http.ResponseWriter, _ *http.Request) {
		virtctltest.Refuse(w, http.StatusConflict, metav1.StatusReasonConflict, refusal)
	})
	expectFailure(t, s.Run(virtctl.Execute, "guestosinfo", "demo"), refusal)
}
