{{- define "tapestry.image" -}}
{{- $repository := required "image.repository is required: the image of Tapestry, for example registry.example.com/tapestry" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "tapestry.kubeconfigNamespaces" -}}
{{ prepend .Values.kubeconfigNamespaces .Release.Namespace | uniq | join "," }}
{{- end -}}

{{- define "tapestry.profile" -}}
{{ get (.Files.Get "files/profiles.yaml" | fromYaml) .Values.profile | toYaml }}
{{- end -}}

{{- define "tapestry.managerResources" -}}
{{ .Values.manager.resources | default (include "tapestry.profile" . | fromYaml) | toYaml }}
{{- end -}}

{{- define "tapestry.syncerResources" -}}
{{ .Values.syncer.resources | default (include "tapestry.profile" . | fromYaml) | toYaml }}
{{- end -}}

{{- define "tapestry.labels" -}}
app.kubernetes.io/part-of: tapestry
{{- end -}}

{{- define "tapestry.managementMounts" -}}
{{- if .Values.managementCluster.kubeconfigSecret -}}
- name: management
  mountPath: /etc/tapestry/management
  readOnly: true
{{- end -}}
{{- end -}}

{{- define "tapestry.managementVolumes" -}}
{{- with .Values.managementCluster.kubeconfigSecret -}}
- name: management
  secret:
    secretName: {{ . | quote }}
{{- end -}}
{{- end -}}
