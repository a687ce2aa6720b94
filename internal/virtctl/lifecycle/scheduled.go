// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package lifecycle

import (
	"fmt"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// scheduled says that a request was taken. Scripts written for KubeVirt look for this sentence.
func scheduled(c *cli.CLI, object subresources.Object, verb string) error {
	_, err := fmt.Fprintf(c.Out, "%s %s was scheduled to %s\n", object.Kind(), object.Name, verb)
	return err
}
