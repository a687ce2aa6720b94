// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"fmt"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	// installNamespace is the namespace in config/.
	installNamespace = "kubevirt"
	namespaceValue   = "{{ .Release.Namespace }}"
	// aggregationLabel is the beginning of the labels by which a role becomes part of others.
	aggregationLabel = "rbac.authorization.k8s.io/aggregate-to-"
)

// image matches a reference to an image in config/default.
var image = regexp.MustCompile(`localhost/vireo/([a-z-]+):dev`)

// templates replace fields of an object. Each has a token in the object, and a template that replaces the token's line
// in its YAML.
type templates struct {
	lines map[string]string
}

// set replaces a field by a template, which is indented like the field. Lines of the template that begin with a minus
// sign keep the field's own indentation.
func (t *templates) set(fields map[string]any, field, template string) {
	token := fmt.Sprintf("vireo-template-%d", len(t.lines))
	fields[field] = token
	t.lines[token] = template
}

// render returns the template of an object. value is the condition under which it is installed; empty means always.
func render(o object, value string) (string, error) {
	t := &templates{lines: map[string]string{}}
	conditions := []string{}
	if value != "" {
		conditions = append(conditions, value)
	}
	metadata := child(o, "metadata")
	switch o.kind() {
	case "Namespace":
		conditions = append(conditions, ".Values.namespace.create")
		metadata["name"] = installNamespace
		t.set(metadata, "name", "name: "+namespaceValue)
		t.set(metadata, "annotations", "annotations:\n  helm.sh/resource-policy: keep")
	case "CustomResourceDefinition":
		conditions = append(conditions, ".Values.crds.enabled")
		t.keep(metadata)
	case "ClusterRole":
		t.aggregation(metadata)
	case "Deployment":
		t.deployment(o)
	}
	t.namespaces(o)
	raw, err := yaml.Marshal(map[string]any(o))
	if err != nil {
		return "", err
	}
	content := t.fill(escape(string(raw)))
	content = strings.ReplaceAll(content, "system:serviceaccount:"+installNamespace+":",
		"system:serviceaccount:"+namespaceValue+":")
	content = image.ReplaceAllString(content, `{{ include "vireo.image" (dict "root" . "name" "$1") }}`)
	content = "---\n" + content
	for _, condition := range conditions {
		content = "{{- if " + condition + " }}\n" + content + "{{- end }}\n"
	}
	return content, nil
}

// keep adds the annotation that keeps a CRD when the release is removed.
func (t *templates) keep(metadata map[string]any) {
	annotations := child(metadata, "annotations")
	annotations["helm.sh/resource-policy"] = ""
	t.set(annotations, "helm.sh/resource-policy",
		"-{{- if .Values.crds.keep }}\nhelm.sh/resource-policy: keep\n-{{- end }}")
}

// aggregation replaces whether a role becomes part of one of Kubernetes' own. With --reuse-values, values that an
// earlier chart did not have are missing.
func (t *templates) aggregation(metadata map[string]any) {
	labels, _ := metadata["labels"].(map[string]any)
	for label := range labels {
		if strings.HasPrefix(label, aggregationLabel) {
			t.set(labels, label, label+`: {{ (.Values.roles | default dict).aggregate | toString | ne "false" | quote }}`)
		}
	}
}

// namespaces replaces the install namespace by that of the release.
func (t *templates) namespaces(value any) {
	switch v := value.(type) {
	case object:
		t.namespaces(map[string]any(v))
	case map[string]any:
		for field, inner := range v {
			if field == "namespace" && inner == installNamespace {
				t.set(v, field, "namespace: "+namespaceValue)
				continue
			}
			t.namespaces(inner)
		}
	case []any:
		for _, inner := range v {
			t.namespaces(inner)
		}
	}
}

// deployment replaces virt-controller's replicas, placement, resources, environment and pull settings by values of the
// chart. The default placement is that of config/.
func (t *templates) deployment(o object) {
	spec := child(o, "spec")
	t.set(spec, "replicas", "replicas: {{ .Values.controller.replicas }}")
	pod := child(child(spec, "template"), "spec")
	for _, field := range []string{"nodeSelector", "tolerations", "affinity"} {
		inner, err := yaml.Marshal(pod[field])
		if err != nil {
			continue // it was YAML before
		}
		t.set(pod, field, field+":\n-{{- with .Values.controller."+field+" }}\n-{{- toYaml . | nindent 8 }}\n-{{- else }}\n"+
			indent(strings.TrimSuffix(string(inner), "\n"), "  ")+"\n-{{- end }}")
	}
	t.set(pod, "imagePullSecrets",
		"-{{- with .Values.image.pullSecrets }}\nimagePullSecrets:\n-{{- toYaml . | nindent 6 }}\n-{{- end }}")
	containers, _ := pod["containers"].([]any)
	for _, c := range containers {
		container, ok := c.(map[string]any)
		if !ok {
			continue
		}
		t.set(container, "imagePullPolicy", "imagePullPolicy: {{ .Values.image.pullPolicy }}")
		t.add(container, "args",
			"-{{- if (.Values.monitoring | default dict).authorization }}\n- --metrics-authorization\n-{{- end }}")
		t.add(container, "env",
			"-{{- with (.Values.monitoring | default dict).runbookURL }}\n- name: RUNBOOK_URL_TEMPLATE\n  value: {{ . | quote }}\n-{{- end }}\n"+
				"-{{- with .Values.controller.env }}\n-{{- toYaml . | nindent 8 }}\n-{{- end }}")
		inner, err := yaml.Marshal(container["resources"])
		if err != nil {
			continue // it was YAML before
		}
		t.set(container, "resources",
			"resources:\n-{{- with .Values.controller.resources }}\n-{{- toYaml . | nindent 10 }}\n-{{- else }}\n"+
				indent(strings.TrimSuffix(string(inner), "\n"), "  ")+"\n-{{- end }}")
	}
}

// add appends a template to a list.
func (t *templates) add(fields map[string]any, field, template string) {
	inner, err := yaml.Marshal(fields[field])
	if err != nil {
		return // it was YAML before
	}
	t.set(fields, field, field+":\n"+string(inner)+template)
}

// fill replaces the lines with tokens by their templates.
func (t *templates) fill(content string) string {
	var out strings.Builder
	for line := range strings.Lines(content) {
		at := strings.Index(line, "vireo-template-")
		if at < 0 {
			out.WriteString(line)
			continue
		}
		template := t.lines[strings.TrimSpace(line[at:])]
		field := strings.TrimLeft(line, " ")
		space := line[:len(line)-len(field)]
		if strings.HasPrefix(field, "- ") {
			// The first field of an item of a list.
			template = "- " + strings.ReplaceAll(strings.ReplaceAll(template, "\n", "\n  "), "\n  -{{", "\n-{{")
		}
		for part := range strings.SplitSeq(template, "\n") {
			if action, ok := strings.CutPrefix(part, "-{{"); ok {
				out.WriteString("{{" + action + "\n")
				continue
			}
			out.WriteString(space + part + "\n")
		}
	}
	return out.String()
}

// escape makes braces of an object plain text in a template.
func escape(content string) string {
	return strings.ReplaceAll(content, "{{", `{{ "{{" }}`)
}

func indent(content, space string) string {
	return space + strings.ReplaceAll(content, "\n", "\n"+space)
}

// child returns a field that contains fields, and creates it if there is none.
func child(fields map[string]any, field string) map[string]any {
	inner, ok := fields[field].(map[string]any)
	if !ok {
		inner = map[string]any{}
		fields[field] = inner
	}
	return inner
}

func text(value any) string {
	s, _ := value.(string)
	return s
}
