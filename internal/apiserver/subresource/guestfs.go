// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// guestfsName is the image's name in the references that clients construct.
const guestfsName = "libguestfs-tools"

// guestfs returns the image of libguestfs-tools.
func (a *API) guestfs(w http.ResponseWriter, _ *http.Request) error {
	if a.GuestfsImage == "" {
		return apierrors.NewInternalError(errors.New("the cluster has no libguestfs-tools image: specify one with virtctl's flag --image"))
	}
	writeObject(w, guestfsInfo(a.GuestfsImage))
	return nil
}

// guestfsInfo splits an image reference. A reference that clients could not reconstruct is returned in GsImage.
func guestfsInfo(image string) v1.GuestfsInfo {
	rest, digest, _ := strings.Cut(image, "@")
	registry, name := "", rest
	if slash := strings.LastIndexByte(rest, '/'); slash >= 0 {
		registry, name = rest[:slash], rest[slash+1:]
	}
	name, tag, _ := strings.Cut(name, ":")
	prefix, found := strings.CutSuffix(name, guestfsName)
	if !found || tag == "" && digest == "" {
		return v1.GuestfsInfo{GsImage: image}
	}
	return v1.GuestfsInfo{Registry: registry, Tag: tag, Digest: digest, ImagePrefix: prefix}
}
