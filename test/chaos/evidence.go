// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// maxLogBytes is how much of the end of a log is kept.
const maxLogBytes = 400 << 10

// keepJournal writes the journal of a run, whatever its outcome.
func (h *harness) keepJournal(r *result) {
	path := filepath.Join(h.evidence, "journals", fmt.Sprint(r.Seed)+".txt")
	text := []byte(strings.Join(h.observer.journal(), "\n") + "\n")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644)); err != nil {
		fmt.Fprintln(os.Stderr, "chaos: keep the journal:", err)
	}
}

// keepEvidence writes the journal, the objects and the logs of a failed run into a directory of its own.
func (h *harness) keepEvidence(ctx context.Context, r *result) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r.Evidence = filepath.Join(h.evidence, fmt.Sprint(r.Seed))
	keep := func(name string, text []byte) {
		path := filepath.Join(r.Evidence, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644)); err != nil {
			fmt.Fprintln(os.Stderr, "chaos: keep evidence:", err)
		}
	}
	keep("journal.txt", []byte(strings.Join(append(h.observer.journal(), r.Failures...), "\n")+"\n"))
	for name, list := range map[string]client.ObjectList{
		"vms.yaml": &v1.VirtualMachineList{}, "vmis.yaml": &v1.VirtualMachineInstanceList{},
		"migrations.yaml": &v1.VirtualMachineInstanceMigrationList{}, "pods.yaml": &corev1.PodList{}, "events.yaml": &corev1.EventList{},
	} {
		err := h.api.List(ctx, list, client.InNamespace(h.namespace))
		text, _ := yaml.Marshal(list)
		keep(name, append(text, fmt.Sprintf("# %v\n", err)...))
	}
	h.keepLogs(ctx, keep)
	for _, node := range h.cluster.nodes() {
		if text, err := tailOf(h.cluster.log(node + "/kubelet")); err == nil {
			keep("kubelet-"+node+".log", text)
		}
	}
	if processes, err := exec.CommandContext(ctx, "ps", "axo", "pid,ppid,lstart,stat,args").Output(); err == nil {
		keep("processes.txt", processes)
	}
}

// keepLogs writes the logs of the components and of the launchers, with those of their previous containers.
func (h *harness) keepLogs(ctx context.Context, keep func(string, []byte)) {
	pods, err := h.components(ctx)
	if err != nil {
		keep("logs/error.txt", []byte(err.Error()))
	}
	launchers := &corev1.PodList{}
	if err := h.api.List(ctx, launchers, client.InNamespace(h.namespace)); err == nil {
		pods = append(pods, launchers.Items...)
	}
	for i := range pods {
		pod := &pods[i]
		for _, of := range logsOf(pod) {
			stream, err := h.clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
				Container: of.container, Previous: of.previous, Timestamps: true, TailLines: new(int64(3000)),
			}).Stream(ctx)
			if err != nil {
				continue
			}
			text, _ := io.ReadAll(io.LimitReader(stream, 4<<20))
			_ = stream.Close()
			name := "logs/" + pod.Name + "-" + of.container
			if of.previous {
				name += "-previous"
			}
			keep(name+".log", text)
		}
	}
}

// containerLog identifies the log of a container, or of its previous instance.
type containerLog struct {
	container string
	previous  bool
}

func logsOf(pod *corev1.Pod) []containerLog {
	logs := make([]containerLog, 0, 2*len(pod.Spec.Containers))
	for i := range pod.Spec.Containers {
		name := pod.Spec.Containers[i].Name
		logs = append(logs, containerLog{name, false}, containerLog{name, true})
	}
	return logs
}

func tailOf(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	text := make([]byte, min(info.Size(), maxLogBytes))
	_, err = file.ReadAt(text, info.Size()-int64(len(text)))
	return text, err
}
