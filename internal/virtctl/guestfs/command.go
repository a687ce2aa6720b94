// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package guestfs implements the command guestfs, which opens a shell with libguestfs's tools and the disk in a claim.
package guestfs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

const (
	// startTimeout is how long the Pod may take to start: its image has about 500 MB. KubeVirt's value.
	startTimeout = 500 * time.Second
	// requestTimeout limits the requests that create and delete the Pod.
	requestTimeout = 30 * time.Second
)

// options are the command's flags. Their names are KubeVirt's.
type options struct {
	image, pullPolicy, vm string
	kvm, root             bool
	uid, gid, fsGroup     string
}

// Command returns the command guestfs.
func Command(c *cli.CLI) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "guestfs (PVC)",
		Short: "Start a shell into the libguestfs pod",
		Long: "Create a Pod with libguestfs-tools and a claim, and attach a shell to it. A claim with a file system is mounted at /disk, a\n" +
			"block device is /dev/vda. The claim must not be in use. The Pod is removed when the shell ends.",
		Example: c.Examples(`
# Open the disk of a stopped VM:
virtctl guestfs myvm-disk

# Do not use KVM, and use the nodes on which the VM 'myvm' may run:
virtctl guestfs myvm-disk --kvm=false --vm=myvm`),
		Args: c.OneArgument("PVC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), c, args[0])
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.image, "image", "", "libguestfs-tools container image. By default the cluster's.")
	flags.StringVar(&o.pullPolicy, "pull-policy", string(corev1.PullIfNotPresent), "Pull policy for the libguestfs image.")
	flags.BoolVar(&o.kvm, "kvm", true, "Use kvm for the libguestfs-tools container.")
	flags.BoolVar(&o.root, "root", false, "Set uid 0 for the libguestfs-tools container.")
	flags.StringVar(&o.uid, "uid", "", "Set uid for the libguestfs-tools container. It doesn't work with root.")
	flags.StringVar(&o.gid, "gid", "",
		"Set gid for the libguestfs-tools container. This works only combined when the uid is manually set.")
	flags.StringVar(&o.fsGroup, "fsGroup", "", "Set the fsgroup for the libguestfs-tools container.")
	flags.StringVar(&o.vm, "vm", "", "Provide a VM to apply its scheduling constraints to the libguestfs-tools pod.")
	return cmd
}

// ids are the user and the groups of the container. Nil means those of the image.
type ids struct{ user, group, fsGroup *int64 }

// identity parses --root, --uid, --gid and --fsGroup. The error messages are KubeVirt's.
func (o *options) identity() (ids, error) {
	switch {
	case o.root && o.uid != "":
		return ids{}, errors.New("cannot set uid if root is true")
	case o.gid != "" && o.uid == "":
		return ids{}, errors.New("gid requires the uid to be set")
	case o.root && o.fsGroup != "":
		return ids{}, errors.New("cannot set fsGroup id with root")
	case o.root:
		return ids{new(int64(0)), new(int64(0)), new(int64(0))}, nil
	}
	var out ids
	for _, flag := range []struct {
		name, text string
		into       **int64
	}{{"uid", o.uid, &out.user}, {"gid", o.gid, &out.group}, {"fsGroup", o.fsGroup, &out.fsGroup}} {
		if flag.text == "" {
			continue
		}
		number, err := strconv.ParseInt(flag.text, 10, 64)
		if err != nil {
			return ids{}, fmt.Errorf("--%s: %w", flag.name, err)
		}
		*flag.into = &number
	}
	return out, nil
}

func (o *options) run(ctx context.Context, c *cli.CLI, claim string) error {
	user, err := o.identity()
	if err != nil {
		return err
	}
	switch corev1.PullPolicy(o.pullPolicy) {
	case corev1.PullAlways, corev1.PullNever, corev1.PullIfNotPresent:
	default:
		return fmt.Errorf("invalid pull policy: %s", o.pullPolicy)
	}
	namespace, err := c.Namespace()
	if err != nil {
		return err
	}
	objects, err := c.Objects()
	if err != nil {
		return err
	}
	s := &shell{cli: c, objects: objects, claim: client.ObjectKey{Namespace: namespace, Name: claim}}
	if o.image == "" {
		if o.image, err = clusterImage(ctx, c); err != nil {
			return err
		}
	}
	s.printf("Use image: %s", o.image)
	block, err := s.checkClaim(ctx)
	if err != nil {
		return err
	}
	pod, err := s.pod(ctx, o, user, block)
	if err != nil {
		return err
	}
	return s.run(ctx, pod)
}

// shell is a shell in a Pod with a claim.
type shell struct {
	cli     *cli.CLI
	objects client.Client
	claim   client.ObjectKey
}

// printf prints a line on the error output, without control characters.
func (s *shell) printf(format string, arguments ...any) {
	_, _ = fmt.Fprintln(s.cli.ErrOut, cli.Plain(fmt.Sprintf(format, arguments...)))
}

// checkClaim returns an error if the claim does not exist or is in use, and reports whether it is a block device.
func (s *shell) checkClaim(ctx context.Context) (block bool, err error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := s.objects.Get(ctx, s.claim, claim); err != nil {
		if apierrors.IsNotFound(err) {
			return false, fmt.Errorf("the PVC %s doesn't exist", s.claim.Name)
		}
		return false, err
	}
	pods := &corev1.PodList{}
	if err := s.objects.List(ctx, pods, client.InNamespace(s.claim.Namespace)); err != nil {
		return false, fmt.Errorf("check whether the PVC %s is in use: %w", s.claim.Name, err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if podstate.Terminal(pod) {
			continue
		}
		for _, volume := range pod.Spec.Volumes {
			if volume.PersistentVolumeClaim != nil && volume.PersistentVolumeClaim.ClaimName == s.claim.Name {
				return false, fmt.Errorf("PVC %s is used by another pod: %s. Stop the VM first, or exit the other shell",
					s.claim.Name, pod.Name)
			}
		}
	}
	return claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock, nil
}

// pod returns the Pod to create.
func (s *shell) pod(ctx context.Context, o *options, user ids, block bool) (*corev1.Pod, error) {
	pod := newPod(s.claim, o, user, block)
	if o.vm == "" {
		return pod, nil
	}
	vm := &v1.VirtualMachine{}
	if err := s.objects.Get(ctx, client.ObjectKey{Namespace: s.claim.Namespace, Name: o.vm}, vm); err != nil {
		return nil, fmt.Errorf("get the VM of --vm: %w", err)
	}
	if template := vm.Spec.Template; template != nil {
		pod.Labels = template.ObjectMeta.Labels
		pod.Spec.Tolerations, pod.Spec.Affinity, pod.Spec.NodeSelector = template.Spec.Tolerations,
			template.Spec.Affinity, template.Spec.NodeSelector
	}
	return pod, nil
}

// run creates the Pod, attaches to it when it runs, and always deletes it afterwards.
func (s *shell) run(ctx context.Context, pod *corev1.Pod) error {
	if err := s.create(ctx, pod); err != nil {
		return fmt.Errorf("create the Pod %s: %w", pod.Name, err)
	}
	defer s.delete(ctx, pod)
	if err := s.wait(ctx, pod); err != nil {
		return err
	}
	s.printf("The PVC is at %s. If you don't see a command prompt, try pressing enter.", claimPath(pod))
	return s.attach(ctx, pod)
}

// create creates the Pod. Ctrl+C does not cancel the request, because it would then be unknown whether the Pod has to
// be deleted.
func (s *shell) create(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	return s.objects.Create(ctx, pod)
}

// delete deletes the Pod, even after Ctrl+C.
func (s *shell) delete(ctx context.Context, pod *corev1.Pod) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	if err := s.objects.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); client.IgnoreNotFound(err) != nil {
		s.printf("The Pod %s could not be deleted (%v). Delete it: kubectl delete pod -n %s %s", pod.Name,
			err, pod.Namespace, pod.Name)
	}
}

// wait waits until the Pod runs, and prints the reasons why it does not run yet.
func (s *shell) wait(ctx context.Context, pod *corev1.Pod) error {
	limited, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	reported := ""
	err := cli.Poll(limited, func(ctx context.Context) (bool, error) {
		if err := s.objects.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return false, err
		}
		switch pod.Status.Phase {
		case corev1.PodRunning:
			return true, nil
		case corev1.PodPending, "":
		default:
			return false, fmt.Errorf("the Pod %s is not running but %s: %s", pod.Name, pod.Status.Phase,
				cli.Plain(pod.Status.Message))
		}
		if reason := pendingReason(pod); reason != reported {
			reported = reason
			s.printf("Waiting for the Pod %s: %s", pod.Name, reason)
		}
		return false, nil
	})
	if limited.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("the Pod %s does not run after %s: %s", pod.Name, startTimeout, reported)
	}
	return err
}

// pendingReason returns why a Pod does not run yet.
func pendingReason(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			return fmt.Sprintf("%s %s", w.Reason, w.Message)
		}
	}
	if c := podstate.Condition(pod, corev1.PodScheduled); c != nil && c.Status != corev1.ConditionTrue {
		return c.Message
	}
	return "it is starting"
}

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
	request := clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource(
		"attach").
		VersionedParams(&corev1.PodAttachOptions{Container: container, Stdin: true, Stdout: true, TTY: true},
			scheme.ParameterCodec)
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
