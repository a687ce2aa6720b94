// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package livelog is the log of our components, whose verbosity follows the KubeVirt object while they run.
package livelog

import (
	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// maxVerbosity is the highest that zap's levels, which are 8 bits wide, can hold with room.
const maxVerbosity = 100

// Log is a logger whose verbosity can change while it is used.
type Log struct {
	logr.Logger
	level zap.AtomicLevel
	least int
}

// New makes a logger that writes JSON lines to standard error. The verbosity is the least that it will ever have.
func New(verbosity int) (*Log, error) {
	config := zap.NewProductionConfig()
	config.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	config.Sampling = nil
	config.DisableStacktrace = true
	config.Level = zap.NewAtomicLevel()
	logger, err := config.Build()
	if err != nil {
		return nil, err
	}
	l := &Log{Logger: zapr.NewLogger(logger), level: config.Level, least: verbosity}
	l.set(uint(max(verbosity, 0)))
	return l, nil
}

// Install makes it the log of the libraries too: controller-runtime's and client-go's. It is for a program's main, once: what these
// log with belongs to the process.
func (l *Log) Install() {
	ctrllog.SetLogger(l.Logger)
	klog.SetLogger(l.Logger)
}

// Follow gives a subscriber of a Store that sets the verbosity which the KubeVirt object asks for.
func (l *Log) Follow(of func(clusterconfig.Verbosity) uint) func(clusterconfig.Config) {
	return func(c clusterconfig.Config) { l.set(of(c.Verbosity)) }
}

func (l *Log) set(verbosity uint) {
	// logr's V(n) is zap's level -n.
	l.level.SetLevel(zapcore.Level(-min(max(int(min(verbosity, maxVerbosity)), l.least), maxVerbosity)))
}
