// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virttemplate replaces the client for VM templates. No command that is built here makes one.
package virttemplate

import (
	"errors"

	"k8s.io/client-go/rest"
)

// Client is never made.
type Client struct{}

// NewForConfig returns an error.
func NewForConfig(*rest.Config) (*Client, error) {
	return nil, errors.New("there is no client for VM templates in this program")
}

// TemplateV1beta1 returns the client itself.
func (c *Client) TemplateV1beta1() *Client { return c }

// RESTClient returns no client.
func (*Client) RESTClient() rest.Interface { return nil }
