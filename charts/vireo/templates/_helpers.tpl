{{/* The reference of a component's image: vireo.image (dict "root" $ "name" "virt-api"). */}}
{{- define "vireo.image" -}}
{{- $image := .root.Values.image -}}
{{- with get $image.digests .name -}}
{{ $image.registry }}/{{ $.name }}@{{ . }}
{{- else -}}
{{ $image.registry }}/{{ .name }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The spec of the KubeVirt object: the values' own, and what other values add to it. */}}
{{- define "vireo.spec" -}}
{{- $added := dict -}}
{{- if .Values.emulation -}}
{{- $_ := set $added "configuration" (dict "developerConfiguration" (dict "useEmulation" true)) -}}
{{- end -}}
{{- with .Values.image.pullSecrets -}}
{{- $_ := set $added "imagePullSecrets" . -}}
{{- end -}}
{{- if ne .Values.image.pullPolicy "IfNotPresent" -}}
{{- $_ := set $added "imagePullPolicy" .Values.image.pullPolicy -}}
{{- end -}}
{{- $monitoring := .Values.monitoring | default dict -}}
{{- range $field, $value := dict "monitorNamespace" $monitoring.namespace "monitorAccount" $monitoring.account
  "serviceMonitorNamespace" $monitoring.serviceMonitorNamespace -}}
{{- if $value -}}
{{- $_ := set $added $field $value -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite $added (deepCopy .Values.kubevirt.spec) | toYaml -}}
{{- end -}}

{{/* A Job that runs a command of virt-controller: vireo.job (dict "root" $ "name" … "hooks" … "arguments" … "file" true). */}}
{{- define "vireo.job" -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  annotations:
    helm.sh/hook: {{ .hooks }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  backoffLimit: 3
  activeDeadlineSeconds: {{ .root.Values.hooks.activeDeadlineSeconds }}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: {{ .name }}
    spec:
      serviceAccountName: vireo-installation
      restartPolicy: Never
      {{- with .root.Values.image.pullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .root.Values.controller.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      tolerations:
        {{- with .root.Values.controller.tolerations }}
        {{- toYaml . | nindent 8 }}
        {{- else }}
        - {key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}
        - {key: node-role.kubernetes.io/master, operator: Exists, effect: NoSchedule}
        {{- end }}
      securityContext:
        runAsNonRoot: true
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: installation
          image: {{ include "vireo.image" (dict "root" .root "name" "virt-controller") }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command: [/usr/bin/virt-controller]
          args: {{ .arguments | toJson }}
          resources:
            requests: {cpu: 10m, memory: 64Mi}
            limits: {cpu: "1", memory: 256Mi}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          {{- if .file }}
          volumeMounts:
            - {name: kubevirt, mountPath: /etc/vireo, readOnly: true}
          {{- end }}
      {{- if .file }}
      volumes:
        - name: kubevirt
          configMap: {name: vireo-kubevirt}
      {{- end }}
{{- end -}}
