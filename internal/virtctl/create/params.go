// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package create

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// params is the value of a flag with parameters: name:value,name:value.
type params struct {
	flag   string
	values map[string]string
}

// flagError returns an error about a flag.
func flagError(flag, format string, arguments ...any) error {
	return fmt.Errorf("failed to parse \"--%s\" flag: %w", flag, fmt.Errorf(format, arguments...))
}

// errorf returns an error about the flag of the parameters.
func (p params) errorf(format string, arguments ...any) error {
	return flagError(p.flag, format, arguments...)
}

// parse parses a flag's value. The value of a parameter may contain colons, but no comma.
func parse(flag, text string) (params, error) {
	p := params{flag: flag, values: map[string]string{}}
	if text == "" {
		return p, p.errorf("params may not be empty")
	}
	for part := range strings.SplitSeq(text, ",") {
		name, value, found := strings.Cut(part, ":")
		if !found {
			return p, p.errorf("params need to have at least one colon: %s", part)
		}
		p.values[name] = value
	}
	return p, nil
}

// parseKnown parses a flag's value and returns an error for parameters that are not known.
func parseKnown(flag, text string, known ...string) (params, error) {
	p, err := parse(flag, text)
	if err != nil {
		return p, err
	}
	return p, p.only(known...)
}

// only returns an error if there are other parameters than the known ones.
func (p params) only(known ...string) error {
	var unknown []string
	for name, value := range p.values {
		if !slices.Contains(known, name) {
			unknown = append(unknown, name+":"+value)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	return p.errorf("unknown param(s): %s; known are %s", strings.Join(unknown, ","), strings.Join(known, ", "))
}

func (p params) get(name string) string { return p.values[name] }

// optional returns a parameter as a pointer, or nil if it is missing or empty.
func (p params) optional(name string) *string {
	if value, found := p.values[name]; found && value != "" {
		return &value
	}
	return nil
}

// list returns the values of a parameter, which are separated by semicolons.
func (p params) list(name string) []string {
	if p.values[name] == "" {
		return nil
	}
	return strings.Split(p.values[name], ";")
}

// need returns a parameter, or an error if it is missing or empty.
func (p params) need(name string) (string, error) {
	if p.values[name] == "" {
		return "", p.errorf("%s must be specified", name)
	}
	return p.values[name], nil
}

// needAll returns an error if one of the parameters is missing or empty.
func (p params) needAll(names ...string) error {
	for _, name := range names {
		if _, err := p.need(name); err != nil {
			return err
		}
	}
	return nil
}

// quantity returns a parameter such as 10Gi, or nil if it is missing.
func (p params) quantity(name string) (*resource.Quantity, error) {
	text, found := p.values[name]
	if !found {
		return nil, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return nil, p.errorf("failed to parse param %q: %w", name, err)
	}
	return &q, nil
}

// bootOrder returns the parameter bootorder, or nil if it is missing.
func (p params) bootOrder() (*uint, error) {
	text, found := p.values["bootorder"]
	if !found {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return nil, p.errorf("failed to parse param \"bootorder\": %w", err)
	}
	if n == 0 {
		return nil, p.errorf("bootorder must be greater than 0")
	}
	order := uint(n)
	return &order, nil
}

// source returns the parameter src, which is [prefix/]name.
func (p params) source() (prefix, name string, err error) {
	text, err := p.need("src")
	if err != nil {
		return "", "", err
	}
	if prefix, name, err = splitPrefix(text); err != nil {
		return "", "", p.errorf("src invalid: %w", err)
	}
	return prefix, name, nil
}

// localSource returns the parameter src of an object that must be in the VM's namespace.
func (p params) localSource(what string) (string, error) {
	prefix, name, err := p.source()
	if err == nil && prefix != "" {
		err = p.errorf("not allowed to specify namespace of %s %q", what, name)
	}
	return name, err
}

// splitPrefix splits [prefix/]name.
func splitPrefix(text string) (prefix, name string, err error) {
	parts := strings.Split(text, "/")
	switch len(parts) {
	case 1:
		name = parts[0]
	case 2:
		prefix, name = parts[0], parts[1]
	default:
		return "", "", fmt.Errorf("invalid count %d of slashes in prefix/name", len(parts)-1)
	}
	if name == "" {
		return "", "", errors.New("name cannot be empty")
	}
	return prefix, name, nil
}

// checkLabel returns an error if a name is not valid for a volume.
func (p params) checkLabel(name string) error {
	if faults := validation.IsDNS1123Label(name); len(faults) > 0 {
		return p.errorf("invalid name %q: %s", name, strings.Join(faults, ","))
	}
	return nil
}
