// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command tools is the program in the image of the end-to-end tests' Pods: a web server, a web client, an
// SSH client and a metrics API, so that tests need no image from elsewhere.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"
)

const dialTimeout = 10 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	root := &cobra.Command{Use: "tools", Short: "Peers for end-to-end tests", SilenceUsage: true}
	root.AddCommand(serveCommand(), getCommand(), sshCommand(), resolveCommand(), metricsCommand())
	err := root.ExecuteContext(ctx)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

func serveCommand() *cobra.Command {
	var address, body, directory string
	cmd := &cobra.Command{
		Use: "serve", Short: "Serve every HTTP request until stopped", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			server := &http.Server{Addr: address, ReadHeaderTimeout: dialTimeout, Handler: http.HandlerFunc(
				func(w http.ResponseWriter, r *http.Request) {
					_, _ = fmt.Fprintf(cmd.OutOrStdout(), "request %q from %s\n", r.URL.Path, r.RemoteAddr)
					if directory != "" {
						http.FileServer(http.Dir(directory)).ServeHTTP(w, r)
						return
					}
					_, _ = io.WriteString(w, body+"\n")
				})}
			go func() {
				<-cmd.Context().Done()
				_ = server.Close()
			}()
			if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&address, "address", ":8080", "address to listen on")
	cmd.Flags().StringVar(&body, "body", "VIREO-POD", "line of each response")
	cmd.Flags().StringVar(&directory, "directory", "", "respond with the files of this directory instead")
	return cmd
}

func getCommand() *cobra.Command {
	return &cobra.Command{
		Use: "get URL", Short: "Print the response of a URL", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), dialTimeout)
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, args[0], nil)
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			defer func() { _ = response.Body.Close() }()
			_, err = io.Copy(cmd.OutOrStdout(), io.LimitReader(response.Body, 1<<20))
			return err
		},
	}
}

func resolveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "resolve NAME", Short: "Print the addresses of a name", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			addresses, err := net.DefaultResolver.LookupHost(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(addresses, "\n"))
			return err
		},
	}
}

func sshCommand() *cobra.Command {
	var user, password string
	cmd := &cobra.Command{
		Use: "ssh ADDRESS COMMAND…", Short: "Run a command over SSH with a password", Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			address := args[0]
			if !strings.Contains(address, ":") {
				address = net.JoinHostPort(address, "22")
			}
			client, err := ssh.Dial("tcp", address, &ssh.ClientConfig{
				User: user, Auth: []ssh.AuthMethod{ssh.Password(password)}, Timeout: dialTimeout,
				// The guest has just created its host key, which therefore cannot be verified.
				HostKeyCallback: ssh.InsecureIgnoreHostKey(),
			})
			if err != nil {
				return fmt.Errorf("log in to %s as %s: %w", address, user, err)
			}
			defer func() { _ = client.Close() }()
			session, err := client.NewSession()
			if err != nil {
				return err
			}
			session.Stdout, session.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return session.Run(strings.Join(args[1:], " "))
		},
	}
	cmd.Flags().StringVar(&user, "user", "debian", "account in the guest")
	cmd.Flags().StringVar(&password, "password", "vireo", "password of the account")
	return cmd
}
