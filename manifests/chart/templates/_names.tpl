{{- define "epp.selector" -}}
app.kubernetes.io/name: epp
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "epp.labels" -}}
{{ include "epp.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "epp.pool" -}}
{{ default .Release.Name .Values.pool.name }}
{{- end }}

{{- define "epp.peerSecret" -}}
{{ default (printf "%s-peers" .Release.Name) .Values.peers.keySecret }}
{{- end }}
