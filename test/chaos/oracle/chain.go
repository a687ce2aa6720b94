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

// RecordSize is the size of a block with one record, in bytes: record n is at offset n*RecordSize.
const RecordSize = 4096

// First is the previous hash of the first record.
const First = "none"

// Record is a record of the guest: "number boot uptime previous hash". The hash is of the four fields before it.
type Record struct {
	Number uint64
	// Boot is the boot ID of the guest's kernel.
	Boot string
	// Previous is the hash of the previous record.
	Previous, Hash string
}

// ParseRecord parses a record and checks its hash. It returns nil for an empty block.
func ParseRecord(block []byte) (*Record, error) {
	line, _, _ := bytes.Cut(bytes.TrimRight(block, "\x00"), []byte("\n"))
	if len(line) == 0 {
		return nil, nil
	}
	fields := strings.Fields(string(line))
	if len(fields) != 5 {
		return nil, fmt.Errorf("not a record: %.120q", line)
	}
	number, err := strconv.ParseUint(fields[0], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("not a record: %.120q", line)
	}
	sum := sha256.Sum256([]byte(strings.Join(fields[:4], " ")))
	if hex.EncodeToString(sum[:]) != fields[4] {
		return nil, fmt.Errorf("the checksum is wrong: %.200q", line)
	}
	return &Record{Number: number, Boot: fields[1], Previous: fields[3], Hash: fields[4]}, nil
}

// Chain is the part of the guest's log that has been read.
type Chain struct {
	// hashes of the records, beginning with number 1.
	hashes []string
	// boots are the boot IDs in their order.
	boots []string
}

// Length is the number of records.
func (c *Chain) Length() int { return len(c.hashes) }

// Boots is the number of boots of the guest.
func (c *Chain) Boots() int { return len(c.boots) }

// beyond is how many blocks after the last record must be empty.
const beyond = 64

// Read checks the records from a number on, known ones too, and appends the new ones.
func (c *Chain) Read(disk io.ReaderAt, from int) error {
	from = max(1, from)
	block := make([]byte, RecordSize)
	for number := from; ; number++ {
		record, err := readRecord(disk, block, number)
		if err != nil && number > len(c.hashes) {
			// The last record may be incomplete, as it is being written.
			return c.nothingAfter(disk, number, fmt.Errorf("record %d: %w", number, err))
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", number, err)
		}
		if record == nil {
			if number <= len(c.hashes) {
				return fmt.Errorf("record %d has disappeared", number)
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
		return fmt.Errorf("record %d has number %d", number, record.Number)
	case record.Previous != previous:
		return fmt.Errorf("record %d does not contain the hash of the previous one: the log has forked", number)
	case number <= len(c.hashes) && c.hashes[number-1] != record.Hash:
		return fmt.Errorf("record %d was overwritten: the log has forked", number)
	case number <= len(c.hashes):
		return nil
	}
	c.hashes = append(c.hashes, record.Hash)
	if len(c.boots) == 0 || c.boots[len(c.boots)-1] != record.Boot {
		for _, earlier := range c.boots {
			if earlier == record.Boot {
				return fmt.Errorf("record %d is of the earlier boot %s", number, record.Boot)
			}
		}
		c.boots = append(c.boots, record.Boot)
	}
	return nil
}

// nothingAfter returns the given error if there is a record after a number.
func (c *Chain) nothingAfter(disk io.ReaderAt, number int, why error) error {
	block := make([]byte, RecordSize)
	for next := number + 1; next <= number+beyond; next++ {
		if record, err := readRecord(disk, block, next); err == nil && record == nil {
			continue
		}
		// The guest has written more records in the meantime.
		if again, err := readRecord(disk, block, number); err == nil && again != nil {
			return c.Read(disk, number)
		}
		return fmt.Errorf("%w, but block %d is not empty", why, next)
	}
	return nil
}
