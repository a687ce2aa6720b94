// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package livelog provides the components' logger, whose verbosity can be changed at run time in the KubeVirt object.
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

// maxVerbosity is the highest supported verbosity. zap's levels are 8-bit integers.
const maxVerbosity = 100

// Log is a logger whose verbosity can be changed concurrently with its use.
type Log struct {
	logr.Logger
	level zap.AtomicLevel
	// minimum is the verbosity that the process was started with. The KubeVirt object can only raise it.
	minimum int
}

// New returns a logger that writes JSON lines to standard error, with a minimum verbosity (logr's V levels, at most
// 100).
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
	l := &Log{Logger: zapr.NewLogger(logger), level: config.Level, minimum: verbosity}
	l.set(uint(max(verbosity, 0)))
	return l, nil
}

// Install makes l the logger of controller-runtime and client-go too. These are global: call it once, in main.
func (l *Log) Install() {
	ctrllog.SetLogger(l.Logger)
	klog.SetLogger(l.Logger)
}

// Subscriber returns a function for clusterconfig.Store.Subscribe, which sets the verbosity that component selects.
func (l *Log) Subscriber(component func(clusterconfig.Verbosity) uint) func(clusterconfig.Config) {
	return func(c clusterconfig.Config) { l.set(component(c.Verbosity)) }
}

func (l *Log) set(verbosity uint) {
	// logr's V(n) is zap's level -n.
	l.level.SetLevel(zapcore.Level(-min(max(int(min(verbosity, maxVerbosity)), l.minimum), maxVerbosity)))
}
