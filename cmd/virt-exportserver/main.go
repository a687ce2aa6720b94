// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virt-exportserver serves the volumes of a VirtualMachineExport for download. It runs in the namespace of the
// export, without privileges and without access to the API server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/internal/component/memorylimit"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/exporter/server"
	"github.com/vireo-project/vireo/internal/limits"
)

const (
	// maxConnections limits the open connections, since every Pod of the cluster can connect, and by way of
	// virt-exportproxy anyone. More than the server's downloads, whose connections are not closed for new ones.
	maxConnections = 256
	// keepAlive is the interval of TCP keep-alive probes, which detect dead clients.
	keepAlive = 15 * time.Second
	// drain is how long downloads may go on after SIGTERM. The Pod's grace period is longer.
	drain = 20 * time.Second
	// maxVerbosity is the highest log verbosity: zap's levels are 8-bit integers.
	maxVerbosity = 100
)

// options are the options of the command line.
type options struct {
	address                     string
	port, agentPort, verbosity  int
	certificate, token, content string
	report                      string
}

func (o *options) bind(flags *flag.FlagSet) {
	flags.StringVar(&o.address, "listen", "", "IP address to serve on; the default are all of them")
	flags.IntVar(&o.port, "port", content.Port, "HTTPS port")
	flags.IntVar(&o.agentPort, "agent-port", content.AgentPort,
		"port for the agent of the guest's node, if a backup is exported")
	flags.StringVar(&o.report, "termination-message", corev1.TerminationMessagePathDefault,
		"file for what was read of a backup")
	flags.StringVar(&o.certificate, "certificate-dir", content.CertificateDirectory, "directory with tls.crt and tls.key")
	flags.StringVar(&o.token, "token-dir", content.TokenDirectory, "directory with the token")
	flags.StringVar(&o.content, "content-dir", content.ContentDirectory, "directory with the description of the export")
	flags.IntVar(&o.verbosity, "v", 0, "log verbosity")
}

// logger returns a logger that writes lines of JSON.
func logger(verbosity int) (logr.Logger, error) {
	config := zap.NewProductionConfig()
	config.Sampling, config.DisableStacktrace = nil, true
	// logr's V(n) is zap's level -n
	config.Level = zap.NewAtomicLevelAt(zapcore.Level(-min(max(verbosity, 0), maxVerbosity)))
	made, err := config.Build()
	if err != nil {
		return logr.Logger{}, err
	}
	return zapr.NewLogger(made), nil
}

func run(ctx context.Context, o options) error {
	log, err := logger(o.verbosity)
	if err != nil {
		return fmt.Errorf("cannot start logging: %w", err)
	}
	if err := memorylimit.Apply(memorylimit.PureGo); err != nil {
		return err
	}
	exporter, err := server.New(server.Options{Content: server.ContentFrom(o.content), Token: server.TokenFrom(o.token),
		Log: log})
	if err != nil {
		return err
	}
	certificate := &server.Certificate{Directory: o.certificate}
	if exporter.IsPulled() {
		return o.pull(ctx, exporter, certificate)
	}
	listener, err := o.listen(ctx, o.port)
	if err != nil {
		return err
	}
	log.Info("Serving the export", "port", o.port)
	go exporter.Prepare(ctx)
	return serve(ctx, httpServer(exporter, certificate), listener)
}

func (o options) listen(ctx context.Context, port int) (net.Listener, error) {
	config := net.ListenConfig{KeepAlive: keepAlive}
	return config.Listen(ctx, "tcp", net.JoinHostPort(o.address, strconv.Itoa(port)))
}

func httpServer(exporter *server.Server, certificate *server.Certificate) *http.Server {
	http1 := exporter.HTTP()
	http1.TLSConfig = certificate.TLS()
	return http1
}

// pull serves a backup, and at the end writes what clients have read of it, for virt-controller. Downloads that go on
// at the end still need the connections of the agent.
func (o options) pull(ctx context.Context, exporter *server.Server, certificate *server.Certificate) error {
	forAgent, err := o.listen(ctx, o.agentPort)
	if err != nil {
		return err
	}
	listener, err := o.listen(ctx, o.port)
	if err != nil {
		return errors.Join(err, forAgent.Close())
	}
	agentCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	go exporter.ServeAgent(agentCtx, forAgent, certificate.Current)
	if err := serve(ctx, httpServer(exporter, certificate), listener); err != nil {
		return err
	}
	message, err := exporter.Report().Message()
	if err != nil {
		return err
	}
	return os.WriteFile(o.report, message, 0o600)
}

// serve serves until the context ends, and then as long as downloads go on, up to drain.
func serve(ctx context.Context, http1 *http.Server, listener net.Listener) error {
	done := make(chan error, 1)
	go func() {
		<-ctx.Done()
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
		defer cancel()
		err := http1.Shutdown(stopCtx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = http1.Close()
		}
		done <- err
	}()
	if err := http1.ServeTLS(limits.Connections(listener, maxConnections), "", ""); !errors.Is(err,
		http.ErrServerClosed) {
		return err
	}
	return <-done
}

func main() {
	o := options{}
	o.bind(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	if err := run(ctx, o); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "virt-exportserver:", err)
		os.Exit(1) //nolint:gocritic // there is nothing left to stop
	}
}
