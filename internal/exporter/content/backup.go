// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package content

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
)

// AgentPort is the port on which the exporter of a backup waits for the agent of the guest's node, and AgentProtocol
// the protocol that both negotiate with TLS.
const (
	AgentPort     = 8444
	AgentProtocol = "nbd"
)

// Backup is a backup that is pulled. The exporter reads the disks of the guest by NBD, over connections of the agent of
// the guest's node.
type Backup struct {
	// Volumes are the names of the volumes, which are those of the NBD exports.
	Volumes []string `json:"volumes"`
	// Changes is the metadata context with what has changed, or empty if all data is in the backup.
	Changes string `json:"changes,omitempty"`
	// Client is the name in the certificate of the agent, and CA contains the certificates by which it is verified, as
	// PEM.
	Client string `json:"client"`
	CA     string `json:"ca"`
}

// check returns why a backup cannot be served.
func (b *Backup) check() error {
	errs := []error{}
	if len(b.Volumes) > maxVolumes {
		errs = append(errs, fmt.Errorf("the backup has %d volumes: at most %d are served", len(b.Volumes), maxVolumes))
	}
	for _, name := range b.Volumes {
		errs = append(errs, checkName("volume", name))
	}
	if b.Client == "" {
		errs = append(errs, errors.New("the backup names no client"))
	}
	return errors.Join(errs...)
}

// Paths of the volumes of a backup. KubeVirt's.
const backupPath = "/exports/"

// MapPath returns the path of the list of a volume's blocks.
func MapPath(volume string) string { return backupPath + volume + "/map" }

// DataPath returns the path of a volume's data.
func DataPath(volume string) string { return backupPath + volume + "/data" }

// backupParameters are the query parameters of these paths. KubeVirt's.
var backupParameters = []string{"offset", "length", "page_size"}

// BackupQuery returns the parameters in a query that are for the volumes of a backup. Others, such as the token, are
// left out.
func BackupQuery(query url.Values) url.Values {
	out := url.Values{}
	for _, name := range backupParameters {
		if value := query.Get(name); value != "" {
			out.Set(name, value)
		}
	}
	return out
}

// Report is what the exporter of a backup has sent to clients: the termination message of its container.
type Report struct {
	// Volumes is how many volumes the backup has, and Unread how many of them were not sent completely. Names are some
	// of these.
	Volumes int      `json:"volumes"`
	Unread  int      `json:"unread"`
	Names   []string `json:"names,omitempty"`
	// Forgot means that one of these may have been sent completely: clients have read so many separate ranges that the
	// exporter has forgotten some.
	Forgot bool `json:"forgot,omitempty"`
}

const (
	// maxReport is the maximum size of a termination message. Source: k8s.io/kubernetes pkg/kubelet/container,
	// MaxContainerTerminationMessageLength.
	maxReport = 4096
	// maxNamed is how many volumes a report names. Their names have at most 63 characters.
	maxNamed = 10
)

// NewReport returns the report of a backup with these volumes, of which some were not sent completely.
func NewReport(volumes int, unread []string) Report {
	return Report{Volumes: volumes, Unread: len(unread), Names: unread[:min(len(unread), maxNamed)]}
}

// Message returns the report as a termination message.
func (r Report) Message() ([]byte, error) { return json.Marshal(r) }

// ParseReport parses a termination message.
func ParseReport(message string) (Report, error) {
	if len(message) > maxReport {
		return Report{}, fmt.Errorf("the report has %d bytes: at most %d are accepted", len(message), maxReport)
	}
	r := Report{}
	if err := json.Unmarshal([]byte(message), &r); err != nil {
		return Report{}, fmt.Errorf("read the report of an exporter: %w", err)
	}
	if r.Volumes <= 0 || r.Unread < 0 || r.Unread > r.Volumes || len(r.Names) > min(r.Unread, maxNamed) {
		return Report{}, errors.New("the report of an exporter is not valid")
	}
	for _, name := range r.Names {
		if err := checkName("volume", name); err != nil {
			return Report{}, err
		}
	}
	return r, nil
}
