// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// maxVerbosity is the highest that zap's levels, which are 8 bits wide, can hold with room.
const maxVerbosity = 100

// Log is a logger whose verbosity follows the KubeVirt object.
type Log struct {
	logr.Logger
	level zap.AtomicLevel
	least int
}

// NewLog makes a logger that writes JSON lines to standard error.
func NewLog(verbosity int) (*Log, error) {
	config := zap.NewProductionConfig()
	config.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	config.Sampling = nil
	config.DisableStacktrace = true
	logger, err := config.Build()
	if err != nil {
		return nil, err
	}
	l := &Log{Logger: zapr.NewLogger(logger), level: config.Level, least: verbosity}
	l.set(verbosity)
	return l, nil
}

// follow raises the verbosity to what the KubeVirt object asks for on a node.
func (l *Log) follow(node string) func(clusterconfig.Config) {
	return func(c clusterconfig.Config) { l.set(int(min(c.Verbosity.HandlerOn(node), maxVerbosity))) }
}

// set sets the verbosity, never below the one that the process was started with.
func (l *Log) set(verbosity int) {
	// logr's V(n) is zap's level -n.
	l.level.SetLevel(zapcore.Level(-min(max(verbosity, l.least), maxVerbosity)))
}
