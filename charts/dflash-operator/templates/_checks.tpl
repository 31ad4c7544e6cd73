{{/*
What about the CustomResourceDefinition, as JSON: render says whether this release brings it, manager whose it is otherwise. Fails where the
one in the cluster is another's and differs. Without a cluster (helm template) it is always rendered.
*/}}
{{- define "dflash-operator.crd" -}}
{{- $name := "dflashdeployments.serving.dflash.io" -}}
{{- $live := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name -}}
{{- $annotations := dig "metadata" "annotations" dict $live | default dict -}}
{{- $release := get $annotations "meta.helm.sh/release-name" -}}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" -}}
{{- if or (not $live) (and (eq $release .Release.Name) (eq $namespace .Release.Namespace)) -}}
{{- dict "render" true | toJson -}}
{{- else -}}
{{- $manager := empty $release | not | ternary (printf "release %s in namespace %s" $release $namespace) "no Helm release" -}}
{{- $ours := .Files.Get "files/crd.yaml" | fromYaml -}}
{{- range $ours.spec.versions -}}
{{- range .additionalPrinterColumns -}}
{{- /* The API server does not keep a zero here. */ -}}
{{- if not .priority }}{{ $_ := unset . "priority" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if ne (toJson $live.spec.versions) (toJson $ours.spec.versions) -}}
{{- fail (printf (include "dflash-operator.crdRemedy" .) $manager) -}}
{{- end -}}
{{- dict "render" false "manager" $manager | toJson -}}
{{- end -}}
{{- end -}}

{{- define "dflash-operator.crdRemedy" }}

The CustomResourceDefinition dflashdeployments.serving.dflash.io is in the cluster already, belongs to %s and differs from the one of
this chart. Either upgrade it there (see its contents with: helm template CHART --show-only templates/crd.yaml) and set crds.install=false here;
or hand it over to this release, and run the same command again:

  kubectl label crd dflashdeployments.serving.dflash.io --overwrite app.kubernetes.io/managed-by=Helm
  kubectl annotate crd dflashdeployments.serving.dflash.io --overwrite \
    meta.helm.sh/release-name={{ .Release.Name }} meta.helm.sh/release-namespace={{ .Release.Namespace }}
{{- end -}}

{{/*
Fails where another release with an operator serves one of the same namespaces. The main role of each carries the label
serving.dflash.io/watches; who may make roles may read them.
*/}}
{{- define "dflash-operator.refuseOverlap" -}}
{{- $root := . -}}
{{- $roles := list -}}
{{- if .Values.watchNamespaces -}}
{{- range .Values.watchNamespaces -}}
{{- $roles = concat $roles (dig "items" list (lookup "rbac.authorization.k8s.io/v1" "Role" . "")) -}}
{{- end -}}
{{- else -}}
{{- range list "Role" "ClusterRole" -}}
{{- $roles = concat $roles (dig "items" list (lookup "rbac.authorization.k8s.io/v1" . "" "")) -}}
{{- end -}}
{{- end -}}
{{- range $roles -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $namespace := splitList ":" .metadata.name | first -}}
{{- $release := get $labels "app.kubernetes.io/instance" -}}
{{- if and (get $labels "serving.dflash.io/watches") (not (and (eq $release $root.Release.Name) (eq $namespace $root.Release.Namespace))) -}}
{{- $served := empty .metadata.namespace | ternary "all namespaces" (printf "namespace %s" (toString .metadata.namespace)) -}}
{{- fail (printf (include "dflash-operator.overlapRemedy" $root) $served $release $namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dflash-operator.overlapRemedy" }}

DFlashDeployments of %s are served already, by release %s in namespace %s; two operators would undo each other's work. Give the releases
different watchNamespaces, or uninstall one. Where that release's role was left behind by mistake, delete it or set refuseOverlap=false.
{{- end -}}

{{/* The API server takes no binding that both refuses and warns. */}}
{{- define "dflash-operator.checkAdmissionPolicy" -}}
{{- $actions := .Values.admissionPolicy.validationActions -}}
{{- if and (has "Deny" $actions) (has "Warn" $actions) -}}
{{- fail "admissionPolicy.validationActions: Deny and Warn exclude each other; what is refused needs no warning, so remove one" -}}
{{- end -}}
{{- end -}}

{{- define "dflash-operator.podMonitorRemedy" }}

metrics.enginePodMonitor.enabled is true, and this cluster does not serve PodMonitor (monitoring.coreos.com/v1). Install Prometheus Operator
first, or set metrics.enginePodMonitor.enabled=false. helm template asks no cluster; tell it what yours serves:

  --api-versions monitoring.coreos.com/v1/PodMonitor
{{- end -}}

{{/* What the operator would refuse at its start, and a schema cannot say. The times not given are the operator's own. */}}
{{- define "dflash-operator.checkSettings" -}}
{{- $settings := .Values.settings | default dict -}}
{{- if and (eq (get $settings "leaderElection" | toString) "false") (gt (int .Values.replicaCount) 1) -}}
{{- fail "settings.leaderElection=false allows one replica only: two would undo each other's work; set replicaCount=1" -}}
{{- end -}}
{{- $duration := get $settings "leaseDurationSeconds" | default 15 | float64 -}}
{{- $deadline := get $settings "renewDeadlineSeconds" | default 10 | float64 -}}
{{- $retry := get $settings "retryPeriodSeconds" | default 2 | float64 -}}
{{- if not (and (gt $duration $deadline) (gt $deadline $retry)) -}}
{{- fail (printf (include "dflash-operator.leaseRemedy" .) $duration $deadline $retry) -}}
{{- end -}}
{{- $file := "files/oldest_releases.yaml" -}}
{{- range $name, $oldest := .Files.Get $file | required (printf "%s is missing from this chart; run make chart" $file) | fromYaml -}}
{{- $release := get $settings $name | default $oldest | trimPrefix "v" -}}
{{- $numbers := regexFind "^[0-9]+\\.[0-9]+\\.[0-9]+" $release -}}
{{- $before := and (eq $numbers $oldest) (regexMatch "^[0-9.]+(dev|a|b|rc)[0-9]" $release) -}}
{{- if or (semverCompare (printf "< %s" $oldest) $numbers) $before -}}
{{- fail (printf "settings.%s: %s is older than %s, the oldest that is served" $name $release $oldest) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dflash-operator.leaseRemedy" -}}
settings: leaseDurationSeconds (%v) must be more than renewDeadlineSeconds (%v), and that more than retryPeriodSeconds (%v)
{{- end -}}

{{/* Names in the operator's pod that are taken. */}}
{{- define "dflash-operator.checkPod" -}}
{{- range .Values.extraEnv -}}
{{- if hasPrefix "DFLASH_" .name -}}
{{- fail (printf "extraEnv: %s is a setting of the operator; it belongs into settings, prometheus or watchNamespaces" .name) -}}
{{- else if has .name (list "POD_IPS" "POD_NAME" "POD_NAMESPACE") -}}
{{- fail (printf "extraEnv: the chart sets %s itself" .name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraVolumes -}}
{{- if has .name (list "tmp" "prometheus") -}}
{{- fail (printf "extraVolumes: the chart has a volume %s of its own; give yours another name" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A value that only a parent chart's condition reads has no effect without one. */}}
{{- define "dflash-operator.checkEnabled" -}}
{{- if and .Chart.IsRoot (eq (.Values.enabled | toString) "false") -}}
{{- fail "enabled=false: only a parent chart reads enabled, by its condition. This chart is not in one; uninstall the release instead" -}}
{{- end -}}
{{- end -}}
