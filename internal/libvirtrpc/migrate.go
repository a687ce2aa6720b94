// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtrpc

import (
	"context"
	"encoding/binary"
	"errors"
)

// A migration is five requests: Begin to the source, Prepare to the target, Perform to the source, Finish to the target and
// Confirm to the source. libvirt's C library makes them in one call, and decides by itself what a lost answer means. What
// must never go wrong is in between, so whoever migrates makes them one by one. Each hands an opaque cookie to the next.
// Source: libvirt src/libvirt-domain.c, virDomainMigrateVersion3Full, and docs/migration.

// MigrateFlags say what kind of migration it is (virDomainMigrateFlags).
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

// errParam is a parameter whose value is of no kind that is known here.
var errParam = errors.New("a parameter is no int32, uint64 or string")

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

// opaque reads bytes of their own.
func (d *decoder) opaque() []byte {
	n := d.u32()
	if d.err == nil && n > maxMessage {
		d.err = errShort
	}
	return append([]byte(nil), d.take(int(n))...)
}

// MigrateBegin has the source describe its guest for the target. The job of the migration begins with it when the flags have
// MigrateProtect, and ends with the connection.
func (c *Client) MigrateBegin(ctx context.Context, domain Domain, params []Param, flags MigrateFlags) (cookie []byte, xml string, err error) {
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

// MigratePrepare has the target start a guest that waits for the source's. libvirtd ends it when this connection ends before
// MigrateFinish was carried out.
func (c *Client) MigratePrepare(ctx context.Context, params []Param, cookie []byte, flags MigrateFlags) (next []byte, uri string, err error) {
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

// MigratePerform has the source copy its guest. When it answers without an error the source's guest is suspended and all of
// it is with the target, or post-copy has begun.
func (c *Client) MigratePerform(ctx context.Context, domain Domain, params []Param, cookie []byte, flags MigrateFlags) (next []byte, err error) {
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

// MigrateFinish has the target complete its guest, or end it when the migration was canceled. It leaves the guest paused if
// the flags say so.
func (c *Client) MigrateFinish(ctx context.Context, params []Param, cookie []byte, flags MigrateFlags, canceled bool) (next []byte, err error) {
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

// MigrateConfirm has the source end its guest as migrated, or let it go on when the migration was canceled.
func (c *Client) MigrateConfirm(ctx context.Context, domain Domain, params []Param, cookie []byte, flags MigrateFlags, canceled bool) error {
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
