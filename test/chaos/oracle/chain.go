// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package oracle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// RecordSize is how far apart the guest's records are: record n is at n times this.
const RecordSize = 4096

// First is what the first record names as the hash of the one before it.
const First = "none"

// Record is one of the guest's: "number boot uptime hash-of-the-one-before hash", the last over all before it.
type Record struct {
	Number uint64
	// Boot is the guest kernel's id of its boot.
	Boot string
	// Previous and Hash chain the records.
	Previous, Hash string
}

// ParseRecord reads a record, and checks its hash. A place where there is none yet is nil.
func ParseRecord(block []byte) (*Record, error) {
	line, _, _ := bytes.Cut(bytes.TrimRight(block, "\x00"), []byte("\n"))
	if len(line) == 0 {
		return nil, nil
	}
	fields := strings.Fields(string(line))
	if len(fields) != 5 {
		return nil, fmt.Errorf("no record: %.120q", line)
	}
	number, err := strconv.ParseUint(fields[0], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("no record: %.120q", line)
	}
	sum := sha256.Sum256([]byte(strings.Join(fields[:4], " ")))
	if hex.EncodeToString(sum[:]) != fields[4] {
		return nil, fmt.Errorf("the checksum is wrong: %.200q", line)
	}
	return &Record{Number: number, Boot: fields[1], Previous: fields[3], Hash: fields[4]}, nil
}

// Chain is the guest's log as it was read so far.
type Chain struct {
	// hashes of the records, from number 1 on.
	hashes []string
	// boots are the guest's boots, in their order.
	boots []string
}

// Length is the number of records.
func (c *Chain) Length() int { return len(c.hashes) }

// Boots is how often the guest has booted.
func (c *Chain) Boots() int { return len(c.boots) }

// beyond is how many places behind the last record are looked at: there must be none.
const beyond = 64

// Read checks the records from a number on, those that were read before among them, and takes the new ones.
func (c *Chain) Read(disk io.ReaderAt, from int) error {
	from = max(1, from)
	block := make([]byte, RecordSize)
	for number := from; ; number++ {
		record, err := readRecord(disk, block, number)
		if err != nil && number > len(c.hashes) {
			// What is being written right now may be there in part. It must be the last.
			return c.nothingAfter(disk, number, fmt.Errorf("record %d: %w", number, err))
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", number, err)
		}
		if record == nil {
			if number <= len(c.hashes) {
				return fmt.Errorf("record %d was there, and is gone", number)
			}
			return c.nothingAfter(disk, number, fmt.Errorf("record %d is missing", number))
		}
		if err := c.take(number, record); err != nil {
			return err
		}
	}
}

func readRecord(disk io.ReaderAt, block []byte, number int) (*Record, error) {
	n, err := disk.ReadAt(block, int64(number)*RecordSize)
	if err != nil && (err != io.EOF || n > 0) {
		return nil, err
	}
	return ParseRecord(block[:n])
}

func (c *Chain) take(number int, record *Record) error {
	previous := First
	if number > 1 {
		previous = c.hashes[number-2]
	}
	switch {
	case record.Number != uint64(number):
		return fmt.Errorf("record %d says that it is %d: the count is broken", number, record.Number)
	case record.Previous != previous:
		return fmt.Errorf("record %d does not follow the one before it: the log forks there", number)
	case number <= len(c.hashes) && c.hashes[number-1] != record.Hash:
		return fmt.Errorf("record %d was overwritten: the log forks there", number)
	case number <= len(c.hashes):
		return nil
	}
	c.hashes = append(c.hashes, record.Hash)
	if len(c.boots) == 0 || c.boots[len(c.boots)-1] != record.Boot {
		for _, earlier := range c.boots {
			if earlier == record.Boot {
				return fmt.Errorf("record %d is of boot %s, which had ended", number, record.Boot)
			}
		}
		c.boots = append(c.boots, record.Boot)
	}
	return nil
}

// nothingAfter fails with a reason if there is a record behind a place.
func (c *Chain) nothingAfter(disk io.ReaderAt, number int, why error) error {
	block := make([]byte, RecordSize)
	for next := number + 1; next <= number+beyond; next++ {
		if record, err := readRecord(disk, block, next); err == nil && record == nil {
			continue
		}
		// The guest has written on while we looked.
		if again, err := readRecord(disk, block, number); err == nil && again != nil {
			return c.Read(disk, number)
		}
		return fmt.Errorf("%w, and there is something behind it, at %d", why, next)
	}
	return nil
}
