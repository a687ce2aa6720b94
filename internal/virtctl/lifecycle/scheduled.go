// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package lifecycle

import (
	"fmt"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// scheduled prints that the request was accepted. The sentence is KubeVirt's, because scripts match it.
func scheduled(c *cli.CLI, object subresources.Object, verb string) error {
	_, err := fmt.Fprintf(c.Out, "%s %s was scheduled to %s\n", object.Kind(), object.Name, verb)
	return err
}
