{{/*
Lay one map over another, in place: list of the lower and the upper one. Maps are merged key by key, everything else replaces, null removes.
(The merge functions of the template language drop false, 0 and null of the upper map.)
*/}}
{{- define "dflash-models.overlay" -}}
{{- $lower := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $lower $key -}}
{{- else if kindIs "map" $value -}}
{{- if not (kindIs "map" (get $lower $key)) -}}
{{- $_ := set $lower $key dict -}}
{{- end -}}
{{- include "dflash-models.overlay" (list (get $lower $key) $value) -}}
{{- else -}}
{{- $_ := set $lower $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
A name made of the last part of a model's: Qwen/Qwen3.5-9B becomes qwen3-5-9b. Empty where no valid one can be made.
*/}}
{{- define "dflash-models.name" -}}
{{- $made := regexReplaceAll "[^a-z0-9]+" (base . | lower) "-" | trimAll "-" -}}
{{- if and (le (len $made) 40) (regexMatch "^[a-z]" $made) -}}
{{- $made -}}
{{- end -}}
{{- end -}}

{{/*
Name, labels, annotations and spec of every model, as JSON {"models": […]}. Fails with everything that is wrong.
*/}}
{{- define "dflash-models.models" -}}
{{- $problems := list -}}
{{- $models := list -}}
{{- $places := dict -}}
{{- range $index, $entry := .Values.models -}}
{{- $own := dict -}}
{{- include "dflash-models.overlay" (list $own (pick $entry "spec")) -}}
{{- $written := dig "spec" "target" "model" "" $own -}}
{{- $object := dict "labels" dict "annotations" dict "spec" dict -}}
{{- range $part := list (default dict $.Values.defaults) $entry -}}
{{- include "dflash-models.overlay" (list $object (pick $part "labels" "annotations" "spec")) -}}
{{- end -}}
{{- with $entry.model -}}
{{- include "dflash-models.overlay" (list $object (dict "spec" (dict "target" (dict "model" .)))) -}}
{{- end -}}
{{- $model := dig "spec" "target" "model" "" $object -}}
{{- $name := default (include "dflash-models.name" $model) $entry.name -}}
{{- $where := printf "models[%d]%s" $index (ternary (printf " (%s)" $name) "" (ne $name "")) -}}
{{- if not $model -}}
{{- $problems = append $problems (printf "%s: no model is named; set model, for instance Qwen/Qwen3.5-9B" $where) -}}
{{- else if not $name -}}
{{- $problems = append $problems (printf "%s: no name can be made of model %s; set name to at most 40 lower-case letters, digits and dashes, beginning with a letter" $where $model) -}}
{{- end -}}
{{- if and $name (hasKey $places $name) -}}
{{- $problems = append $problems (printf "%s: the name %s is that of models[%d] already; set another name" $where $name (int (get $places $name))) -}}
{{- else -}}
{{- $_ := set $places $name $index -}}
{{- end -}}
{{- if and $entry.model $written (ne $written $model) -}}
{{- $problems = append $problems (printf "%s: model is %s and spec.target.model is %s; keep one of them" $where $model $written) -}}
{{- end -}}
{{- $storage := keys (dig "spec" "storage" dict $object) | sortAlpha -}}
{{- if gt (len $storage) 1 -}}
{{- $problems = append $problems (printf "%s: spec.storage has %s, defaults included; set the one you do not want to null" $where (join " and " $storage)) -}}
{{- end -}}
{{- $models = append $models (set $object "name" $name) -}}
{{- end -}}
{{- if $problems -}}
{{- fail (printf "\n- %s" (join "\n- " $problems)) -}}
{{- end -}}
{{- toJson (dict "models" $models) -}}
{{- end -}}

{{- define "dflash-models.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: dflash
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* A value that only a parent chart's condition reads has no effect without one. */}}
{{- define "dflash-models.checkEnabled" -}}
{{- if and .Chart.IsRoot (eq (.Values.enabled | toString) "false") -}}
{{- fail "enabled=false: only a parent chart reads enabled, by its condition. This chart is not in one; uninstall the release instead" -}}
{{- end -}}
{{- end -}}
