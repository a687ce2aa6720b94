// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// GuestUsers requests the users that are logged in.
func (c *Conn) GuestUsers(ctx context.Context, domain string) (list hypervisor.List[hypervisor.GuestUser], err error) {
	err = c.converse(ctx, domain, guestAgentTimeout, func(ctx context.Context, g guest) error {
		list, err = g.users(ctx)
		return err
	})
	return list, err
}

func (g guest) users(ctx context.Context) (hypervisor.List[hypervisor.GuestUser], error) {
	response, err := g.execute(ctx, "guest-get-users", agentTimeout*time.Second)
	if err != nil {
		return hypervisor.List[hypervisor.GuestUser]{}, err
	}
	return parseUsers(response)
}

// parseUsers decodes the response to guest-get-users. Source: QEMU qga/qapi-schema.json, GuestUser.
func parseUsers(response []byte) (hypervisor.List[hypervisor.GuestUser], error) {
	list, err := parseList[struct {
		User      string  `json:"user"`
		Domain    string  `json:"domain"`
		LoginTime float64 `json:"login-time"`
	}](response, maxGuestUsers)
	out := hypervisor.List[hypervisor.GuestUser]{Omitted: list.Omitted}
	for _, u := range list.Items {
		out.Items = append(out.Items,
			hypervisor.GuestUser{Name: hypervisor.Clean(u.User), Domain: hypervisor.Clean(u.Domain), LoginTime: u.LoginTime})
	}
	return out, err
}

// GuestFilesystems requests the mounted file systems.
func (c *Conn) GuestFilesystems(
	ctx context.Context, domain string,
) (list hypervisor.List[hypervisor.GuestFilesystem], err error) {
	err = c.converse(ctx, domain, guestAgentTimeout, func(ctx context.Context, g guest) error {
		list, err = g.filesystems(ctx)
		return err
	})
	return list, err
}

func (g guest) filesystems(ctx context.Context) (hypervisor.List[hypervisor.GuestFilesystem], error) {
	response, err := g.execute(ctx, "guest-get-fsinfo", agentTimeout*time.Second)
	if err != nil {
		return hypervisor.List[hypervisor.GuestFilesystem]{}, err
	}
	return parseFilesystems(response)
}

// parseFilesystems decodes the response to guest-get-fsinfo. Source: as above, GuestFilesystemInfo and
// GuestDiskAddress.
func parseFilesystems(response []byte) (hypervisor.List[hypervisor.GuestFilesystem], error) {
	list, err := parseList[struct {
		Name       string          `json:"name"`
		Mountpoint string          `json:"mountpoint"`
		Type       string          `json:"type"`
		Used       int64           `json:"used-bytes"`
		Total      int64           `json:"total-bytes"`
		Disks      json.RawMessage `json:"disk"`
	}](response, maxGuestFilesystems)
	out := hypervisor.List[hypervisor.GuestFilesystem]{Omitted: list.Omitted}
	if err != nil {
		return out, err
	}
	for _, f := range list.Items {
		disks, err := parseInner[struct {
			Serial string `json:"serial"`
			Bus    string `json:"bus-type"`
		}](f.Disks, maxGuestDisks)
		if err != nil {
			return out, err
		}
		filesystem := hypervisor.GuestFilesystem{
			Name: hypervisor.Clean(f.Name), Mountpoint: hypervisor.Clean(f.Mountpoint), Type: hypervisor.Clean(f.Type),
			UsedBytes: f.Used, TotalBytes: f.Total,
		}
		for _, d := range disks {
			filesystem.Disks = append(filesystem.Disks,
				hypervisor.GuestDisk{Serial: hypervisor.Clean(d.Serial), Bus: hypervisor.Clean(d.Bus)})
		}
		out.Items = append(out.Items, filesystem)
	}
	return out, nil
}

// GuestAgent requests everything that the guest agent reports. The agent of a frozen guest accepts few commands.
func (c *Conn) GuestAgent(ctx context.Context, domain string) (*hypervisor.GuestAgent, error) {
	agent := &hypervisor.GuestAgent{}
	err := c.converse(ctx, domain, guestAgentTimeout, func(ctx context.Context, g guest) error {
		if err := g.about(ctx, agent); err != nil {
			return err
		}
		for _, request := range []func() error{
			func() error { return g.timezone(ctx, agent) },
			func() error {
				info, err := g.info(ctx)
				if err == nil {
					agent.Info = *info
				}
				return err
			},
			func() (err error) { agent.Users, err = g.users(ctx); return err },
			func() (err error) { agent.Filesystems, err = g.filesystems(ctx); return err },
			func() (err error) { agent.Frozen, err = g.frozen(ctx); return err },
		} {
			// A command that fails in the guest is omitted.
			if err := request(); err != nil && !errors.Is(err, hypervisor.ErrGuestRefused) && !errors.Is(err, errResponse) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return agent, nil
}

// about requests the agent's version and commands. Source: as above, GuestAgentInfo.
func (g guest) about(ctx context.Context, into *hypervisor.GuestAgent) error {
	var about struct {
		Version  string          `json:"version"`
		Commands json.RawMessage `json:"supported_commands"`
	}
	if err := g.get(ctx, "guest-info", &about); err != nil {
		return err
	}
	commands, err := parseInner[struct {
		Name    string `json:"name"`
		Enabled bool   `json:"enabled"`
	}](about.Commands, maxGuestCommands)
	if err != nil {
		return err
	}
	into.Version = hypervisor.Clean(about.Version)
	for _, c := range commands {
		into.Commands = append(into.Commands, hypervisor.GuestCommand{Name: hypervisor.Clean(c.Name), Enabled: c.Enabled})
	}
	return nil
}

// timezone requests the guest's time zone. Source: as above, GuestTimezone.
func (g guest) timezone(ctx context.Context, into *hypervisor.GuestAgent) error {
	var zone struct {
		Zone   string `json:"zone"`
		Offset int64  `json:"offset"`
	}
	if err := g.get(ctx, "guest-get-timezone", &zone); err != nil {
		return err
	}
	into.Timezone = fmt.Sprintf("%s, %d", hypervisor.Clean(zone.Zone), zone.Offset)
	return nil
}

// frozen reports whether the guest's file systems are frozen. Source: as above, GuestFsfreezeStatus.
func (g guest) frozen(ctx context.Context) (bool, error) {
	var status string
	err := g.get(ctx, "guest-fsfreeze-status", &status)
	return status == "frozen", err
}
