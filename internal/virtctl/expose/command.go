// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package expose implements the command expose, which creates a Service for a guest's ports.
package expose

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// options are the command's flags.
type options struct {
	name, clusterIP, externalIP, loadBalancerIP string
	port, nodePort                              int32
	protocol, targetPort, portName              string
	kind, ipFamily, ipFamilyPolicy              string
	labels                                      map[string]string
	dryRun                                      bool
	output                                      cli.Output
}

// Command returns the command expose.
func Command(c *cli.CLI) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "expose (vm|vmi|vmirs) (NAME)",
		Short: "Expose a virtual machine instance, virtual machine, or virtual machine instance replica set as a new service.",
		Long: "Create a Service for the guest of a virtual machine, or for those of a replica set. It selects the launcher Pods by the\n" +
			"name of the VM; without --port its ports are those that the VM's interface on the Pod network lists. It is deleted\n" +
			"with the object that it exposes.",
		Example: c.Examples(`
# Expose SSH of 'myvm' at port 5555 of a new service, and at port 30001 of each node:
virtctl expose vm myvm --port=5555 --node-port=30001 --target-port=22 --name=myvm-ssh --type=NodePort

# Expose a web server in the guests of a replica set:
virtctl expose vmirs web --port=80 --name=web`),
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), c, args[0], args[1]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.name, "name", "", "The service's name.")
	_ = cmd.MarkFlagRequired("name")
	flags.StringVar(&o.clusterIP, "cluster-ip", "",
		"The service's address; None for a headless one. By default the cluster chooses.")
	flags.StringVar(&o.externalIP, "external-ip", "",
		"An additional address, not managed by the cluster, at which nodes accept connections.")
	flags.StringVar(&o.loadBalancerIP, "load-balancer-ip", "",
		"The load balancer's address. By default the cloud provider chooses.")
	flags.Int32Var(&o.port, "port", 0, "The service's port.")
	flags.StringVar(&o.protocol, "protocol", "TCP", "TCP or UDP.")
	flags.StringVar(&o.targetPort, "target-port", "",
		"The guest's port, as a number or a name. By default that of the service.")
	flags.Int32Var(&o.nodePort, "node-port", 0,
		"The port on each node, for --type=NodePort. By default the cluster chooses.")
	flags.StringVar(&o.kind, "type", "ClusterIP", "ClusterIP, NodePort or LoadBalancer, in upper or lower case.")
	flags.StringVar(&o.portName, "port-name", "", "The port's name.")
	flags.StringVar(&o.ipFamily, "ip-family", "", "IPv4, IPv6, or both with the preferred first: IPv4,IPv6.")
	flags.StringVar(&o.ipFamilyPolicy, "ip-family-policy", "", "SingleStack, PreferDualStack or RequireDualStack.")
	flags.StringToStringVar(&o.labels, "labels", nil, "Labels of the service.")
	flags.BoolVar(&o.dryRun, "dry-run", false, "Print the service without creating it.")
	o.output.AddTo(cmd, "")
	return cmd
}

func (o *options) run(ctx context.Context, c *cli.CLI, kind, name string) error {
	service, err := o.service()
	if err != nil {
		return err
	}
	if service.Namespace, err = c.Namespace(); err != nil {
		return err
	}
	objects, err := c.Objects()
	if err != nil {
		return err
	}
	ports, err := o.selectPods(ctx, objects, service, strings.ToLower(kind), name)
	if err != nil {
		return err
	}
	if o.port == 0 {
		if len(ports) == 0 {
			return fmt.Errorf("couldn't find port via --port flag or introspection: the interfaces of %s list no ports, so --port is needed", name)
		}
		service.Spec.Ports = ports
	}
	if o.dryRun {
		service.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
		if !o.output.IsSet() {
			_, err = fmt.Fprintf(c.Out, "service/%s created (dry run)\n", service.Name)
			return err
		}
		return o.output.Print(c.Out, service)
	}
	if err := objects.Create(ctx, service); err != nil {
		return fmt.Errorf("service creation failed: %w", err)
	}
	if o.output.IsSet() {
		return o.output.Print(c.Out, service)
	}
	_, err = fmt.Fprintf(c.Out, "Service %s successfully exposed for %s %s\n", service.Name, kind, name)
	return err
}

// service returns the Service of the flags, without a selector.
func (o *options) service() (*corev1.Service, error) {
	protocol := corev1.Protocol(strings.ToUpper(o.protocol))
	if protocol != corev1.ProtocolTCP && protocol != corev1.ProtocolUDP {
		return nil, fmt.Errorf("unknown protocol: %s; it is TCP or UDP", o.protocol)
	}
	kinds := []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer}
	at := slices.IndexFunc(kinds, func(k corev1.ServiceType) bool { return strings.EqualFold(string(k), o.kind) })
	if at < 0 {
		return nil, fmt.Errorf("unknown service type: %s; it is ClusterIP, NodePort or LoadBalancer", o.kind)
	}
	service := &corev1.Service{}
	service.Name, service.Labels = o.name, o.labels
	service.Spec = corev1.ServiceSpec{Type: kinds[at], ClusterIP: o.clusterIP, LoadBalancerIP: o.loadBalancerIP}
	if o.externalIP != "" {
		service.Spec.ExternalIPs = []string{o.externalIP}
	}
	if o.port != 0 {
		port := corev1.ServicePort{Name: o.portName, Protocol: protocol, Port: o.port, NodePort: o.nodePort,
			TargetPort: intstr.FromInt32(o.port)}
		if o.targetPort != "" {
			port.TargetPort = intstr.Parse(o.targetPort)
		}
		service.Spec.Ports = []corev1.ServicePort{port}
	}
	return service, o.families(service)
}

func (o *options) families(service *corev1.Service) error {
	switch policy := corev1.IPFamilyPolicy(o.ipFamilyPolicy); policy {
	case "":
	case corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack:
		service.Spec.IPFamilyPolicy = &policy
	default:
		return fmt.Errorf("unknown IPFamilyPolicy/s: %s", policy)
	}
	if o.ipFamily == "" {
		return nil
	}
	for family := range strings.SplitSeq(strings.ToLower(o.ipFamily), ",") {
		switch family {
		case "ipv4":
			service.Spec.IPFamilies = append(service.Spec.IPFamilies, corev1.IPv4Protocol)
		case "ipv6":
			service.Spec.IPFamilies = append(service.Spec.IPFamilies, corev1.IPv6Protocol)
		default:
			return fmt.Errorf("unknown IPFamily/s: %s", o.ipFamily)
		}
	}
	return nil
}

// selectPods sets the service's selector to the object's launcher Pods and its owner to the object. It returns the
// ports that their interface on the Pod network lists.
func (o *options) selectPods(
	ctx context.Context, objects client.Client, service *corev1.Service, kind, name string,
) ([]corev1.ServicePort, error) {
	key := client.ObjectKey{Namespace: service.Namespace, Name: name}
	switch kind {
	case "vmirs", "vmirss", "virtualmachineinstancereplicaset", "virtualmachineinstancereplicasets":
		set := &v1.VirtualMachineInstanceReplicaSet{}
		if err := objects.Get(ctx, key, set); err != nil {
			return nil, fmt.Errorf("error fetching VirtualMachineInstance ReplicaSet: %w", err)
		}
		if set.Spec.Selector == nil || len(set.Spec.Selector.MatchExpressions) > 0 {
			return nil, errors.New(
				"cannot expose VirtualMachineInstance ReplicaSet with match expressions: the selector of a Service has only labels")
		}
		service.Spec.Selector = set.Spec.Selector.MatchLabels
		own(service, set, v1.VirtualMachineInstanceReplicaSetGroupVersionKind)
		if set.Spec.Template == nil {
			return nil, nil
		}
		return ports(&set.Spec.Template.Spec), nil
	}
	resource, err := cli.Resource(kind)
	if err != nil {
		return nil, err
	}
	if resource == "virtualmachines" {
		vm := &v1.VirtualMachine{}
		if err := objects.Get(ctx, key, vm); err != nil {
			return nil, fmt.Errorf("error fetching VirtualMachine: %w", err)
		}
		service.Spec.Selector = byName(name)
		own(service, vm, v1.VirtualMachineGroupVersionKind)
		if vm.Spec.Template == nil {
			return nil, nil
		}
		return ports(&vm.Spec.Template.Spec), nil
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := objects.Get(ctx, key, vmi); err != nil {
		return nil, fmt.Errorf("error fetching VirtualMachineInstance: %w", err)
	}
	service.Spec.Selector = byName(name)
	own(service, vmi, v1.VirtualMachineInstanceGroupVersionKind)
	return ports(&vmi.Spec), nil
}

// own makes the cluster delete the service with the object. As in KubeVirt, the reference does not block the deletion
// of the object, for which a user would need the right to update its finalizers.
func own(service *corev1.Service, owner metav1.Object, kind schema.GroupVersionKind) {
	service.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: owner.GetName(), UID: owner.GetUID(),
		BlockOwnerDeletion: ptr.To(false),
	}}
}

// byName returns a selector of the launcher Pods of one instance.
func byName(name string) map[string]string {
	return map[string]string{v1.VirtualMachineInstanceIDLabel: launcherpod.InstanceID(name)}
}

// ports returns the ports that the interface on the Pod network lists, which is the only one that a Service reaches.
// They have names, because a Service with several ports requires them.
func ports(spec *v1.VirtualMachineInstanceSpec) []corev1.ServicePort {
	network := slices.IndexFunc(spec.Networks, func(n v1.Network) bool { return n.Pod != nil })
	if network < 0 {
		return nil
	}
	var found []corev1.ServicePort
	for _, i := range spec.Domain.Devices.Interfaces {
		if i.Name != spec.Networks[network].Name {
			continue
		}
		for _, p := range i.Ports {
			name := p.Name
			if name == "" {
				name = fmt.Sprintf("port-%d", len(found)+1)
			}
			protocol := corev1.Protocol(p.Protocol)
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			found = append(found, corev1.ServicePort{Name: name, Protocol: protocol, Port: p.Port,
				TargetPort: intstr.FromInt32(p.Port)})
		}
	}
	return found
}
