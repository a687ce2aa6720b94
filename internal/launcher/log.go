// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"io"
	"log/slog"
	"strings"
	"time"
)

// NewLogHandler returns a handler that logs JSON lines in the format of the other components. logr's verbosity n is slog's level -n.
func NewLogHandler(w io.Writer, level slog.Level) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) > 0 {
			return a
		}
		switch a.Key {
		case slog.TimeKey:
			return slog.String("ts", a.Value.Time().UTC().Format(time.RFC3339Nano))
		case slog.LevelKey:
			return slog.String("level", levelName(a.Value))
		case "err":
			a.Key = "error"
		}
		return a
	}})
}

func levelName(value slog.Value) string {
	level, ok := value.Any().(slog.Level)
	if ok && level < slog.LevelInfo {
		return "debug"
	}
	return strings.ToLower(value.String())
}
