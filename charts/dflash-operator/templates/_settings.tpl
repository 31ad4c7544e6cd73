{{/*
The operator's settings as one map of DFLASH_ variables to strings. Names in camel case become capitals with underscores; lists and maps are
joined by commas, as the operator reads them.
*/}}
{{- define "dflash-operator.settings" -}}
{{- include "dflash-operator.checkSettings" . -}}
{{- $prometheus := .Values.prometheus -}}
{{- $all := dict "HTTP_PORT" .Values.metrics.port "LEASE_NAME" (include "dflash-operator.leaseName" .) "NAMESPACES" .Values.watchNamespaces -}}
{{- /* Engine pods lack the operator's pull secrets, which are objects of its own namespace. */ -}}
{{- if not (include "dflash-operator.imagePullSecrets" .) -}}
{{- $_ := set $all "FETCH_IMAGE" (include "dflash-operator.image" .) -}}
{{- end -}}
{{- range $name, $value := .Values.settings -}}
{{- $_ := set $all (snakecase $name | upper) $value -}}
{{- end -}}
{{- $_ := set $all "HUGGING_FACE_ENDPOINT" (include "dflash-operator.hub" .) -}}
{{- if $prometheus.url -}}
{{- $_ := set $all "PROMETHEUS_URL" $prometheus.url -}}
{{- $_ := set $all "PROMETHEUS_TENANT" $prometheus.tenant -}}
{{- $_ := set $all "PROMETHEUS_MATCHER" $prometheus.matcher -}}
{{- $_ := set $all "PROMETHEUS_REPLICA_LABELS" .Values.metrics.replicaLabels -}}
{{- range .Values.metrics.groupLabels -}}
{{- if not (hasKey $prometheus.matcher .) -}}
{{- fail (printf "metrics.groupLabels has %s, so prometheus.url serves several clusters: set prometheus.matcher.%s to the value of this cluster" . .) -}}
{{- end -}}
{{- end -}}
{{- range $name, $source := include "dflash-operator.prometheusFiles" . | fromYaml -}}
{{- $_ := set $all (printf "PROMETHEUS_%s_FILE" $name) (printf "/etc/dflash/prometheus/%s" $source.path) -}}
{{- end -}}
{{- if $prometheus.bearerToken.serviceAccount -}}
{{- $_ := set $all "PROMETHEUS_BEARER_TOKEN_FILE" "/var/run/secrets/kubernetes.io/serviceaccount/token" -}}
{{- end -}}
{{- else if or $prometheus.tenant $prometheus.matcher $prometheus.bearerToken.serviceAccount (include "dflash-operator.prometheusFiles" . | fromYaml) -}}
{{- fail "prometheus.url is needed where anything else of prometheus is set" -}}
{{- end -}}
{{- range $name, $value := $all }}
{{- $text := "" }}
{{- if kindIs "slice" $value }}
{{- $text = join "," $value }}
{{- else if kindIs "map" $value }}
{{- $pairs := list }}
{{- range $label, $wanted := $value }}
{{- $pairs = append $pairs (printf "%s=%s" $label $wanted) }}
{{- end }}
{{- $text = join "," $pairs }}
{{- else if kindIs "float64" $value }}
{{- $text = eq $value (floor $value) | ternary (int64 $value | toString) (toString $value) }}
{{- else if not (kindIs "invalid" $value) }}
{{- $text = toString $value }}
{{- end }}
{{- if $text }}
DFLASH_{{ $name }}: {{ $text | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The model hub. YAML reads an unquoted off as false. */}}
{{- define "dflash-operator.hub" -}}
{{- .Values.huggingFace.endpoint | default "off" -}}
{{- end -}}

{{/* The files of Prometheus' section by setting: where each comes from, and its path below /etc/dflash/prometheus. */}}
{{- define "dflash-operator.prometheusFiles" -}}
{{- $prometheus := .Values.prometheus -}}
{{- $tls := $prometheus.tls -}}
{{- $bearer := or $prometheus.bearerToken.secretName $prometheus.bearerToken.serviceAccount -}}
{{- if and $bearer $prometheus.basicAuth.secretName -}}
{{- fail "prometheus.bearerToken and prometheus.basicAuth exclude each other: a request has one Authorization header" -}}
{{- end -}}
{{- if and $prometheus.bearerToken.secretName $prometheus.bearerToken.serviceAccount -}}
{{- fail "prometheus.bearerToken: secretName and serviceAccount exclude each other" -}}
{{- end -}}
{{- if and $tls.caSecretName $tls.caConfigMapName -}}
{{- fail "prometheus.tls: caSecretName and caConfigMapName exclude each other" -}}
{{- end -}}
{{- with $prometheus.bearerToken.secretName }}
BEARER_TOKEN: {kind: secret, name: {{ . }}, key: {{ $prometheus.bearerToken.key | quote }}, path: token}
{{- end }}
{{- with $prometheus.basicAuth.secretName }}
BASIC_AUTH: {kind: secret, name: {{ . }}, key: {{ $prometheus.basicAuth.key | quote }}, path: basic-auth}
{{- end }}
{{- with $tls.caSecretName }}
CA: {kind: secret, name: {{ . }}, key: {{ $tls.caKey | quote }}, path: ca.crt}
{{- end }}
{{- with $tls.caConfigMapName }}
CA: {kind: configMap, name: {{ . }}, key: {{ $tls.caKey | quote }}, path: ca.crt}
{{- end }}
{{- with $tls.clientSecretName }}
CERT: {kind: secret, name: {{ . }}, key: {{ $tls.clientCertKey | quote }}, path: tls.crt}
KEY: {kind: secret, name: {{ . }}, key: {{ $tls.clientKeyKey | quote }}, path: tls.key}
{{- end }}
{{- end -}}
