{{/* Start of all names: the release's, and `coach` where that does not have it. */}}
{{- define "coach.name" -}}
{{- if contains "coach" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-coach" (.Release.Name | trunc 34 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "coach.labels" -}}
app.kubernetes.io/name: coach
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Labels by which a part's pods are found: (dict "root" $ "part" "handler"). */}}
{{- define "coach.selector" -}}
app.kubernetes.io/name: coach
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{/* (dict "root" $ "image" .Values.handler.image) */}}
{{- define "coach.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "coach.claim" -}}
{{ .Values.persistence.existingClaim | default (printf "%s-state" (include "coach.name" .)) }}
{{- end }}

{{- define "coach.tokenSecret" -}}
{{ .Values.token.existingSecret | default (printf "%s-token" (include "coach.name" .)) }}
{{- end }}

{{- define "coach.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "coach.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Where pods may run: .Values.handler, or .Values.scheduler. */}}
{{- define "coach.nodes" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
