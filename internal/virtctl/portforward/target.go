// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package portforward

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// ParseTarget parses type/name[/namespace]. A name without a type is that of an instance, which is also that of its VM.
func ParseTarget(target, namespace string) (subresources.Object, error) {
	parts := strings.Split(target, "/")
	if len(parts) == 1 {
		parts = []string{"vmi", target}
	}
	if len(parts) > 3 {
		return subresources.Object{}, fmt.Errorf("target %q has more than two '/': it is type/name or type/name/namespace", target)
	}
	resource, err := cli.Resource(parts[0])
	if err != nil {
		return subresources.Object{}, fmt.Errorf("target %q: %w, as in vm/myvm or vmi/myvmi/mynamespace", target, err)
	}
	if parts[1] == "" {
		return subresources.Object{}, fmt.Errorf("target %q: name cannot be empty", target)
	}
	if len(parts) == 3 {
		if namespace = parts[2]; namespace == "" {
			return subresources.Object{}, fmt.Errorf("target %q: namespace cannot be empty", target)
		}
	}
	return subresources.Object{Namespace: namespace, Resource: resource, Name: parts[1]}, nil
}

// Supported protocols.
const (
	tcp = "tcp"
	udp = "udp"
)

// port is a local port and the guest's port to which it is forwarded.
type port struct {
	protocol      string
	local, remote int
}

// parsePorts parses arguments of the form [protocol/]localPort[:targetPort].
func parsePorts(arguments []string) ([]port, error) {
	ports := make([]port, 0, len(arguments))
	for _, argument := range arguments {
		p, err := parsePort(argument)
		if err != nil {
			return nil, fmt.Errorf("port %q: %w; it is [protocol/]localPort[:targetPort], such as 8080, 8080:80 or udp/5353:53", argument, err)
		}
		ports = append(ports, p)
	}
	return ports, nil
}

func parsePort(argument string) (port, error) {
	p := port{protocol: tcp}
	if protocol, rest, found := strings.Cut(argument, "/"); found {
		p.protocol, argument = strings.ToLower(protocol), rest
	}
	if p.protocol != tcp && p.protocol != udp {
		return port{}, fmt.Errorf("unknown protocol %q", p.protocol)
	}
	local, target, hasTarget := strings.Cut(argument, ":")
	if local == "" && hasTarget {
		local = "0" // ":80" is any free local port.
	}
	var err error
	if p.local, err = number(local, 0); err != nil {
		return port{}, err
	}
	if !hasTarget {
		target = local
	}
	p.remote, err = number(target, 1)
	return p, err
}

func number(text string, minimum int) (int, error) {
	if text == "" {
		return 0, errors.New("a number is missing")
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < minimum || n > 65535 {
		return 0, fmt.Errorf("%q is not a number between %d and 65535", text, minimum)
	}
	return n, nil
}
