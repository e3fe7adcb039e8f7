{{- define "tapestry-worker.accountName" -}}
{{ printf "tapestry-syncer-%s-%s" (.Values.binding | trunc 34 | trimSuffix "-") (.Values.virtualCluster | trunc 12) }}
{{- end -}}

{{- define "tapestry-worker.policyName" -}}
{{ printf "%s-%s" (.Values.binding | trunc 50 | trimSuffix "-") (.Values.virtualCluster | trunc 12) }}
{{- end -}}

{{- define "tapestry-worker.quota" -}}
{{- $hard := dict -}}
{{- range $resource, $amount := dict "requests.cpu" .Values.quota.cpu "requests.memory" .Values.quota.memory "pods" .Values.quota.pods -}}
{{- if $amount -}}{{- $_ := set $hard $resource ($amount | toString) -}}{{- end -}}
{{- end -}}
{{ toYaml $hard }}
{{- end -}}

{{- define "tapestry-worker.totalLimits" -}}
{{- $limits := list -}}
{{- range $resource, $amount := .Values.quota -}}
{{- if $amount -}}{{- $limits = append $limits (dict "resource" $resource "quantity" ($amount | toString)) -}}{{- end -}}
{{- end -}}
{{ toYaml $limits }}
{{- end -}}

{{- define "tapestry-worker.safeguards" -}}
{{- $names := list (ternary "network-policy" "no-network-policy" .Values.networkPolicy.enabled) -}}
{{- if include "tapestry-worker.quota" . | fromYaml -}}{{- $names = append $names "quota" -}}{{- end -}}
{{- if .Values.allowedVolumes.drivers -}}{{- $names = append $names "volume-policies" -}}{{- end -}}
{{- if not .Values.exec -}}{{- $names = append $names "no-exec" -}}{{- end -}}
{{ $names | sortAlpha | join "," }}
{{- end -}}

{{- define "tapestry-worker.ingress" -}}
{{- $sources := list (dict "podSelector" dict) -}}
{{- with .Values.networkPolicy.ingressFrom -}}
{{- $expression := dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" (. | sortAlpha) -}}
{{- $sources = append $sources (dict "namespaceSelector" (dict "matchExpressions" (list $expression))) -}}
{{- end -}}
{{ list (dict "from" $sources) | toYaml }}
{{- end -}}

{{- define "tapestry-worker.drivers" -}}
{{- range $index, $driver := .Values.allowedVolumes.drivers }}{{ if $index }}, {{ end }}{{ $driver | quote }}{{ end -}}
{{- end -}}

{{- define "tapestry-worker.handles" -}}
{{- range .Values.allowedVolumes.volumeHandles }} || object.spec.csi.volumeHandle.matches("(?s)^{{ regexQuoteMeta . | replace "\\*" ".*" | replace "\\" "\\\\" }}$"){{ end -}}
{{- end -}}
