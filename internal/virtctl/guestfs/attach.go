// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package guestfs

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// attach connects the terminal with the Pod's shell until the shell exits.
func (s *shell) attach(ctx context.Context, pod *corev1.Pod) error {
	executor, err := s.executor(pod)
	if err != nil {
		return fmt.Errorf("attach to the Pod %s: %w", pod.Name, err)
	}
	streams := remotecommand.StreamOptions{Stdin: s.cli.In, Stdout: s.cli.Out, Tty: true}
	restore, err := s.cli.MakeRaw()
	if err != nil {
		return err
	}
	defer restore()
	if fd, isTerminal := cli.Terminal(s.cli.In); isTerminal {
		streams.TerminalSizeQueue = newSizes(fd)
	}
	err = executor.StreamWithContext(ctx, streams)
	var exited exec.ExitError
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.As(err, &exited) && exited.Exited():
		// The exit code of the shell's last command is not an error of this command.
		return nil
	default:
		return fmt.Errorf("the connection to the Pod %s ended: %w", pod.Name, err)
	}
}

// executor returns an executor that uses websockets, which Kubernetes supports since 1.31.
func (s *shell) executor(pod *corev1.Pod) (remotecommand.Executor, error) {
	config, err := s.cli.Config()
	if err != nil {
		return nil, err
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	request := clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("attach").
		VersionedParams(&corev1.PodAttachOptions{Container: container, Stdin: true, Stdout: true, TTY: true}, scheme.ParameterCodec)
	return remotecommand.NewWebSocketExecutor(config, http.MethodGet, request.URL().String())
}

// sizes returns the terminal's initial size.
type sizes struct {
	once chan remotecommand.TerminalSize
}

func newSizes(terminal int) *sizes {
	s := &sizes{once: make(chan remotecommand.TerminalSize, 1)}
	if width, height, err := term.GetSize(terminal); err == nil {
		s.once <- remotecommand.TerminalSize{Width: uint16(width), Height: uint16(height)}
	}
	close(s.once)
	return s
}

// Next implements remotecommand.TerminalSizeQueue.
func (s *sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s.once
	if !ok {
		return nil
	}
	return &size
}
