// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// What a guest agent answers is as long as the guest wants, up to libvirt's 4 MiB, and what Go makes of a few bytes of JSON
// can be large. So lists are read entry by entry, and what is beyond their cap is counted and thrown away.

// errAnswer is an answer that is none.
var errAnswer = errors.New("the guest agent's answer is not what the command answers with")

// openAnswer goes to the value of an answer, {"return": value}.
func openAnswer(answer []byte) (*json.Decoder, error) {
	d := json.NewDecoder(bytes.NewReader(answer))
	for _, wanted := range []json.Token{json.Delim('{'), "return"} {
		got, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errAnswer, err)
		}
		if got != wanted {
			return nil, errAnswer
		}
	}
	return d, nil
}

// parseAnswer reads an answer that is no list, and no longer than maxAgentAnswer.
func parseAnswer(answer []byte, into any) error {
	if len(answer) > maxAgentAnswer {
		return fmt.Errorf("%w: it has %d bytes, more than %d", errAnswer, len(answer), maxAgentAnswer)
	}
	d, err := openAnswer(answer)
	if err == nil {
		err = d.Decode(into)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errAnswer, err)
	}
	return nil
}

// parseList reads an answer that is a list.
func parseList[T any](answer []byte, limit int) (hypervisor.List[T], error) {
	d, err := openAnswer(answer)
	if err != nil {
		return hypervisor.List[T]{}, err
	}
	return decodeList[T](d, limit)
}

// parseInner reads a list within an entry of a list. One that is not there is empty.
func parseInner[T any](list json.RawMessage, limit int) ([]T, error) {
	if len(list) == 0 || string(list) == "null" {
		return nil, nil
	}
	out, err := decodeList[T](json.NewDecoder(bytes.NewReader(list)), limit)
	return out.Items, err
}

func decodeList[T any](d *json.Decoder, limit int) (hypervisor.List[T], error) {
	var list hypervisor.List[T]
	if open, err := d.Token(); err != nil || open != json.Delim('[') {
		return list, errAnswer
	}
	for d.More() {
		if len(list.Items) == limit {
			// Only its form is looked at.
			if err := d.Decode(&nothing{}); err != nil {
				return list, fmt.Errorf("%w: %w", errAnswer, err)
			}
			list.Omitted++
			continue
		}
		var entry T
		if err := d.Decode(&entry); err != nil {
			return list, fmt.Errorf("%w: %w", errAnswer, err)
		}
		list.Items = append(list.Items, entry)
	}
	if _, err := d.Token(); err != nil {
		return list, fmt.Errorf("%w: %w", errAnswer, err)
	}
	return list, nil
}

// nothing is a JSON value of which nothing is kept.
type nothing struct{}

// UnmarshalJSON keeps nothing.
func (*nothing) UnmarshalJSON([]byte) error { return nil }
