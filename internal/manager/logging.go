// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// Log is a logger whose verbosity can change while it is used.
type Log struct {
	level zap.AtomicLevel
	least int
	logr.Logger
}

// NewLog makes a logger that writes JSON lines to standard error.
func NewLog(verbosity int) (*Log, error) {
	config := zap.NewProductionConfig()
	config.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	config.Sampling = nil
	config.DisableStacktrace = true
	config.Level = zap.NewAtomicLevel()
	logger, err := config.Build()
	if err != nil {
		return nil, err
	}
	l := &Log{level: config.Level, least: verbosity, Logger: zapr.NewLogger(logger)}
	l.SetVerbosity(verbosity)
	return l, nil
}

// Follow raises the verbosity to what the KubeVirt object asks for. It is a subscriber of a Store.
func (l *Log) Follow(c clusterconfig.Config) {
	l.SetVerbosity(int(min(c.Verbosity.Controller, maxVerbosity)))
}

// maxVerbosity is the highest that zap's levels, which are 8 bits wide, can hold with room.
const maxVerbosity = 100

// SetVerbosity sets the verbosity, never below the one that the process was started with.
func (l *Log) SetVerbosity(verbosity int) {
	verbosity = min(max(verbosity, l.least), maxVerbosity)
	// logr's V(n) is zap's level -n.
	l.level.SetLevel(zapcore.Level(-verbosity))
}
