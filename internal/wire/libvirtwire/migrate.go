// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"context"
	"encoding/binary"
	"errors"
)

// A migration has five calls: Begin to the source, Prepare to the target, Perform to the source, Finish to the target
// and Confirm to the source. libvirt's C library makes them in one call and decides by itself how to handle a lost
// response, which is critical for the ownership of the guest. So the agent makes them one by one. Each returns an
// opaque cookie for the next. Source: libvirt src/libvirt-domain.c, virDomainMigrateVersion3Full, and docs/migration.

// MigrateFlags are the flags of a migration (virDomainMigrateFlags).
type MigrateFlags uint32

// Flags of a migration.
const (
	MigrateLive         MigrateFlags = 1 << 0
	MigratePersist      MigrateFlags = 1 << 3
	MigratePaused       MigrateFlags = 1 << 5
	MigrateCopyDisks    MigrateFlags = 1 << 7
	MigrateProtect      MigrateFlags = 1 << 8
	MigrateUnsafe       MigrateFlags = 1 << 9
	MigrateCompressed   MigrateFlags = 1 << 11
	MigrateAutoConverge MigrateFlags = 1 << 13
	MigratePostCopy     MigrateFlags = 1 << 15
	MigrateTLS          MigrateFlags = 1 << 16
	MigrateParallel     MigrateFlags = 1 << 17
)

// Names of parameters of a migration (VIR_MIGRATE_PARAM_*).
const (
	ParamURI                 = "migrate_uri"
	ParamListenAddress       = "listen_address"
	ParamName                = "destination_name"
	ParamXML                 = "destination_xml"
	ParamPersistentXML       = "persistent_xml"
	ParamDisks               = "migrate_disks"
	ParamDisksPort           = "disks_port"
	ParamBandwidth           = "bandwidth"
	ParamParallelConnections = "parallel.connections"
	ParamCompression         = "compression"
	ParamTLSDestination      = "tls.destination"
)

// Param is a parameter of a migration.
type Param struct {
	// Name is one of the Param constants.
	Name string
	// Value is an int32, a uint64 or a string.
	Value any
}

// Kinds of a typed parameter (virTypedParameterType).
const (
	paramInt    = 1
	paramULong  = 4
	paramString = 7
)

// errParam means that the type of a parameter's value is not supported.
var errParam = errors.New("a parameter is not an int32, uint64 or string")

func (e *encoder) params(params []Param) error {
	e.u32(uint32(len(params)))
	for _, p := range params {
		e.str(p.Name)
		switch v := p.Value.(type) {
		case int32:
			e.u32(paramInt)
			e.i32(v)
		case uint64:
			e.u32(paramULong)
			e.buf = binary.BigEndian.AppendUint64(e.buf, v)
		case string:
			e.u32(paramString)
			e.str(v)
		default:
			return errParam
		}
	}
	return nil
}

func (e *encoder) opaque(b []byte) {
	e.u32(uint32(len(b)))
	e.fixed(b)
}

// opaque reads bytes into a new slice.
func (d *decoder) opaque() []byte {
	n := d.u32()
	if d.err == nil && n > maxMessage {
		d.err = errShort
	}
	return append([]byte(nil), d.take(int(n))...)
}

// MigrateBegin returns the source's description of the guest for the target. With MigrateProtect it starts the
// migration job, which ends with the connection.
func (c *Client) MigrateBegin(
	ctx context.Context, domain Domain, params []Param, flags MigrateFlags,
) (cookie []byte, xml string, err error) {
	var args encoder
	args.domain(domain)
	if err := args.params(params); err != nil {
		return nil, "", err
	}
	args.u32(uint32(flags))
	body, err := c.call(ctx, procMigrateBegin, args.buf)
	if err != nil {
		return nil, "", err
	}
	d := decoder{buf: body}
	cookie = d.opaque()
	return cookie, d.str(), d.err
}

// MigratePrepare starts the target's QEMU, which waits for the source's. libvirtd ends it if this connection ends
// before MigrateFinish has completed.
func (c *Client) MigratePrepare(
	ctx context.Context, params []Param, cookie []byte, flags MigrateFlags,
) (next []byte, uri string, err error) {
	var args encoder
	if err := args.params(params); err != nil {
		return nil, "", err
	}
	args.opaque(cookie)
	args.u32(uint32(flags))
	body, err := c.call(ctx, procMigratePrepare, args.buf)
	if err != nil {
		return nil, "", err
	}
	d := decoder{buf: body}
	next = d.opaque()
	return next, d.optionalStr(), d.err
}

// MigratePerform transfers the guest from the source. When it succeeds, the source's guest is suspended and transferred
// completely, or post-copy has started.
func (c *Client) MigratePerform(
	ctx context.Context, domain Domain, params []Param, cookie []byte, flags MigrateFlags,
) (next []byte, err error) {
	var args encoder
	args.domain(domain)
	args.optionalStr("") // no connection from libvirtd to libvirtd
	if err := args.params(params); err != nil {
		return nil, err
	}
	args.opaque(cookie)
	args.u32(uint32(flags))
	body, err := c.call(ctx, procMigratePerform, args.buf)
	if err != nil {
		return nil, err
	}
	d := decoder{buf: body}
	return d.opaque(), d.err
}

// MigrateFinish completes the target's guest, or destroys it if the migration was canceled. With MigratePaused the
// guest stays paused.
func (c *Client) MigrateFinish(
	ctx context.Context, params []Param, cookie []byte, flags MigrateFlags, canceled bool,
) (next []byte, err error) {
	var args encoder
	if err := args.params(params); err != nil {
		return nil, err
	}
	args.opaque(cookie)
	args.u32(uint32(flags))
	args.boolean(canceled)
	body, err := c.call(ctx, procMigrateFinish, args.buf)
	if err != nil {
		return nil, err
	}
	d := decoder{buf: body}
	_ = d.domain()
	return d.opaque(), d.err
}

// MigrateConfirm ends the source's guest as migrated, or resumes it if the migration was canceled.
func (c *Client) MigrateConfirm(
	ctx context.Context, domain Domain, params []Param, cookie []byte, flags MigrateFlags, canceled bool,
) error {
	var args encoder
	args.domain(domain)
	if err := args.params(params); err != nil {
		return err
	}
	args.opaque(cookie)
	args.u32(uint32(flags))
	args.boolean(canceled)
	_, err := c.call(ctx, procMigrateConfirm, args.buf)
	return err
}

func (e *encoder) boolean(b bool) {
	if b {
		e.u32(1)
		return
	}
	e.u32(0)
}
