{{- define "dflash-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "dflash-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "dflash-operator.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "dflash-operator.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/*
Name of what does not live in the release's namespace: two releases of one name in two namespaces must not meet. No namespace has a colon.
*/}}
{{- define "dflash-operator.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "dflash-operator.fullname" .) -}}
{{- end -}}

{{/* The same for kinds whose names may have no colon. No namespace has a dot either. */}}
{{- define "dflash-operator.clusterDnsName" -}}
{{- printf "%s.%s" .Release.Namespace (include "dflash-operator.fullname" .) -}}
{{- end -}}

{{- define "dflash-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "dflash-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Ours win over the user's: upgrade and selectors rest on them. */}}
{{- define "dflash-operator.labels" -}}
{{- $own := include "dflash-operator.selectorLabels" . | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/version" .Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $_ := set $own "app.kubernetes.io/part-of" "dflash" -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") -}}
{{- toYaml (merge $own (.Values.commonLabels | default dict)) -}}
{{- end -}}

{{/* The metadata below a name: list of root context, labels and annotations of the kind. Those of the kind win over the common ones. */}}
{{- define "dflash-operator.metadata" -}}
{{- $root := index . 0 -}}
{{- $labels := merge (include "dflash-operator.labels" $root | fromYaml) (index . 1 | default dict) -}}
{{- $annotations := merge (deepCopy (index . 2 | default dict)) ($root.Values.commonAnnotations | default dict) -}}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "dflash-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "dflash-operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "dflash-operator.image" -}}
{{- $registry := default (.Values.global | default dict).imageRegistry .Values.image.registry | default "" | trimSuffix "/" -}}
{{- $repository := ternary (printf "%s/%s" $registry .Values.image.repository) .Values.image.repository (not (empty $registry)) -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* A list of {name: …}; global names may be strings or such objects. */}}
{{- define "dflash-operator.imagePullSecrets" -}}
{{- $names := list -}}
{{- range concat ((.Values.global | default dict).imagePullSecrets | default list) (.Values.imagePullSecrets | default list) -}}
{{- $names = append $names (kindIs "string" . | ternary . (get (kindIs "string" . | ternary dict .) "name")) -}}
{{- end -}}
{{- range uniq $names }}
- name: {{ . }}
{{- end -}}
{{- end -}}

{{/* Each release has a Lease of its own, also where two share a namespace. */}}
{{- define "dflash-operator.leaseName" -}}
{{- default (include "dflash-operator.fullname" .) (.Values.settings | default dict).leaseName -}}
{{- end -}}

{{/* Whether the cluster serves a kind of the Prometheus Operator: list of root context and kind. Empty means no. */}}
{{- define "dflash-operator.monitors" -}}
{{- if (index . 0).Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" (index . 1)) }}true{{ end -}}
{{- end -}}

{{/*
A file of rules or a dashboard with its links to the documentation: below docsUrl. Without one an annotation keeps the path in the project,
and a link in a dashboard, which would lead nowhere, goes.
*/}}
{{- define "dflash-operator.linked" -}}
{{- $base := "https://dflash-operator.example.com/docs" -}}
{{- $url := (index . 0).Values.docsUrl | default "" | trimSuffix "/" -}}
{{- $text := index . 1 -}}
{{- if not $url -}}
{{- $link := printf "\\{[^{}]*\"url\": \"%s[^{}]*\\}" (regexQuoteMeta $base) -}}
{{- $text = regexReplaceAll (printf ",\\s*%s" $link) $text "" -}}
{{- $text = regexReplaceAll (printf "%s(,\\s*)?" $link) $text "" -}}
{{- end -}}
{{- $text | replace $base ($url | default "docs") -}}
{{- end -}}

{{/*
Rules of Prometheus, grouped by further labels (tests/monitoring/grouping.py does the same, for promtool): they go in front of every clause's namespace. Labels of replicas
join those that say who scraped a pod.
*/}}
{{- define "dflash-operator.grouped" -}}
{{- $metrics := (index . 0).Values.metrics -}}
{{- $text := index . 1 -}}
{{- with $metrics.replicaLabels -}}
{{- $text = $text | replace "prometheus_replica," (printf "prometheus_replica, %s," (join ", " .)) -}}
{{- end -}}
{{- with $metrics.groupLabels -}}
{{- $labels := join ", " . -}}
{{- $text = regexReplaceAll `\b(by|on) \(namespace\b` $text (printf "${1} (%s, namespace" $labels) -}}
{{- $text = regexReplaceAll `\b(by|on) \(\)` $text (printf "${1} (%s)" $labels) -}}
{{- $named := "" -}}
{{- range . -}}
{{- $named = printf "%s{{ $labels.%s }}/" $named . -}}
{{- end -}}
{{- $text = $text | replace "{{ $labels.namespace }}" (printf "%s{{ $labels.namespace }}" $named) -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/*
A dashboard for a store that holds several clusters: a variable for each of metrics.groupLabels, which shows one cluster at a time, and its
matcher in every selector.
*/}}
{{- define "dflash-operator.ofOneCluster" -}}
{{- $text := index . 1 -}}
{{- with (index . 0).Values.metrics.groupLabels -}}
{{- $matchers := "" -}}
{{- $variables := "" -}}
{{- range . -}}
{{- $matchers = printf "%s%s=~\\\"$$%s\\\", " $matchers . . -}}
{{- $query := printf "label_values(dflash_leader, %s)" . -}}
{{- $source := dict "type" "prometheus" "uid" "${datasource}" -}}
{{- $variable := dict "name" . "label" (title .) "type" "query" "query" $query "datasource" $source "refresh" 2 "sort" 1 "multi" false "includeAll" false -}}
{{- $variables = printf "%s%s,\n      " $variables (toJson $variable) -}}
{{- end -}}
{{- $text = regexReplaceAll `([a-zA-Z0-9_:])\{([a-zA-Z_]+(=|!))` $text (printf "${1}{%s${2}" $matchers) -}}
{{- $text = regexReplaceAll `\((dflash[a-zA-Z0-9_:]+)(,|\[|\))` $text (printf "(${1}{%s}${2}" ($matchers | trimSuffix ", ")) -}}
{{- $text = regexReplaceAllLiteral `"templating": \{\s*"list": \[\s*` $text (printf "\"templating\": {\n    \"list\": [\n      %s" $variables) -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/* The pod of helm test must not be chosen by the Service it tests: no selector labels of ours. */}}
{{- define "dflash-operator.testLabels" -}}
app.kubernetes.io/name: {{ include "dflash-operator.name" . }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
