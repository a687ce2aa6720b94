// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
)

// metricsAPI is the API from which an autoscaler gets metrics that are not the cluster's own.
const metricsAPI = "/apis/external.metrics.k8s.io/v1beta1"

// metricsCommand serves one number as aggregated APIs: under every external metric's name, and as the memory that Pods
// use together. GET /set/N changes it.
func metricsCommand() *cobra.Command {
	var address, control string
	cmd := &cobra.Command{
		Use: "metrics", Short: "Serve the metrics APIs; GET /set/N at the control address sets the metric",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serveMetrics(cmd.Context(), address, control) },
	}
	cmd.Flags().StringVar(&address, "address", ":8443", "address of the API, with TLS")
	cmd.Flags().StringVar(&control, "control", ":8080", "address at which the number is set")
	return cmd
}

func serveMetrics(ctx context.Context, address, control string) error {
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	var value atomic.Int64
	api, set := http.NewServeMux(), http.NewServeMux()
	api.HandleFunc("GET "+metricsAPI, func(w http.ResponseWriter, _ *http.Request) {
		write(w, map[string]any{"kind": "APIResourceList", "apiVersion": "v1",
			"groupVersion": "external.metrics.k8s.io/v1beta1", "resources": []any{}})
	})
	api.HandleFunc("GET "+metricsAPI+"/namespaces/{namespace}/{metric}", func(w http.ResponseWriter, r *http.Request) {
		write(w, map[string]any{
			"kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": map[string]any{},
			"items": []any{map[string]any{
				"metricName": r.PathValue("metric"), "metricLabels": map[string]string{},
				"timestamp": time.Now().UTC().Format(time.RFC3339), "value": strconv.FormatInt(value.Load(), 10),
			}},
		})
	})
	servePodMetrics(api, &value)
	set.HandleFunc("GET /set/{value}", func(w http.ResponseWriter, r *http.Request) {
		number, err := strconv.ParseInt(r.PathValue("value"), 10, 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		value.Store(number)
		_, _ = fmt.Fprintln(w, "SET", number)
	})
	servers := []*http.Server{
		{Addr: address, Handler: api, ReadHeaderTimeout: dialTimeout, TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate},
		}},
		{Addr: control, Handler: set, ReadHeaderTimeout: dialTimeout},
	}
	failed := make(chan error, len(servers))
	go func() { failed <- servers[0].ListenAndServeTLS("", "") }()
	go func() { failed <- servers[1].ListenAndServe() }()
	select {
	case <-ctx.Done():
		return errors.Join(servers[0].Close(), servers[1].Close())
	case err := <-failed:
		return err
	}
}

// selfSigned makes a self-signed certificate: the tests' APIService does not verify it.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"metrics"}, NotAfter: time.Now().Add(24 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
