{{- define "safedelivr.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "safedelivr.selector" -}}
app.kubernetes.io/name: safedelivr
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "safedelivr.labels" -}}
{{ include "safedelivr.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "safedelivr.image" -}}
{{- $repository := required "image.repository is required: push the image that the Dockerfile builds, and name it" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ required "image.tag or image.digest is required" .Values.image.tag }}
{{- end -}}
{{- end }}

{{- define "safedelivr.secret" -}}
{{- if .Values.existingSecret -}}
{{- if .Values.secrets }}{{ fail "set existingSecret or secrets, not both" }}{{ end -}}
{{ .Values.existingSecret }}
{{- else -}}
{{- if not (hasKey .Values.secrets "SAFEDELIVR_AMQP_URL") -}}
{{- fail "set existingSecret, or secrets with SAFEDELIVR_AMQP_URL and the API keys of the providers" -}}
{{- end -}}
{{ include "safedelivr.name" . }}
{{- end -}}
{{- end }}

{{- define "safedelivr.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "safedelivr.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* The settings of every container. */ -}}
{{- define "safedelivr.env" -}}
envFrom:
  - configMapRef: {name: {{ include "safedelivr.name" . }}}
  - secretRef: {name: {{ include "safedelivr.secret" . }}}
{{- end }}
