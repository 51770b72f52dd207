{{/* netclaim is one per cluster, like its driver's name: its objects have fixed names. */}}

{{/* The image of agent or controller: (list $ "agent"). */}}
{{- define "netclaim.image" -}}
{{- $chart := first . -}}
{{- $image := (get $chart.Values (last .)).image -}}
{{- $registry := required "image.registry is empty: push netclaim's images and say where they are, see https://netclaim.dev/install.html" $chart.Values.image.registry -}}
{{ trimSuffix "/" $registry }}/{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $chart.Values.image.tag | default $chart.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/* CEL variables of a policy: whether the selector in its variable "selector" selects the namespace of the request. An empty selector
selects none. */}}
{{- define "netclaim.selected" -}}
- name: labels
  expression: 'namespaceObject.metadata.?labels.orValue({})'
- name: selected
  expression: >-
    (has(variables.selector.matchLabels) || has(variables.selector.matchExpressions)) &&
    variables.selector.?matchLabels.orValue({}).all(key, key in variables.labels &&
    variables.labels[key] == variables.selector.matchLabels[key]) &&
    variables.selector.?matchExpressions.orValue([]).all(e,
    e.operator == "In" ? e.key in variables.labels && variables.labels[e.key] in e.?values.orValue([]) :
    e.operator == "NotIn" ? !(e.key in variables.labels && variables.labels[e.key] in e.?values.orValue([])) :
    (e.operator == "Exists") == (e.key in variables.labels))
{{- end -}}

{{/* Namespaces whose pods netclaim's policies leave as they are, as a list. */}}
{{- define "netclaim.exceptNamespaces" -}}
{{- append .Values.defaultNetworks.exceptNamespaces .Release.Namespace | uniq | toJson -}}
{{- end -}}

{{/* The part of a policy by which it is for pods of all other namespaces. */}}
{{- define "netclaim.podsOfOthers" -}}
namespaceSelector:
  matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: {{ include "netclaim.exceptNamespaces" . }}
{{- end -}}

{{- define "netclaim.labels" -}}
app.kubernetes.io/part-of: netclaim
{{- end -}}

{{/* How the agent gets at the plugins of plugins.image: imageVolume or initContainer; nothing if there is no such image. */}}
{{- define "netclaim.pluginsMount" -}}
{{- if not .Values.plugins.image -}}
{{- if ne .Values.plugins.mount "imageVolume" }}{{ fail (printf "plugins.mount is %s and plugins.image is empty: name the image with the CNI plugins" .Values.plugins.mount) }}{{ end -}}
{{- else if .Values.agent.hostMounts -}}
{{- fail "plugins.image and agent.hostMounts exclude each other: plugins that run with the host's files are found on the host" -}}
{{- else -}}
{{- .Values.plugins.mount -}}
{{- end -}}
{{- end -}}

{{/* Where the agent has the image, and the image's folder of plugins there. */}}
{{- define "netclaim.pluginsRoot" -}}
/usr/libexec/netclaim/plugins
{{- end -}}
{{- define "netclaim.pluginsFolder" -}}
{{ include "netclaim.pluginsRoot" . }}{{ with trimAll "/" .Values.plugins.path }}/{{ . }}{{ end }}
{{- end -}}

{{/* The folders of CNI plugins, if they are not the default. */}}
{{- define "netclaim.cniBinDirs" -}}
{{- if include "netclaim.pluginsMount" . -}}
{{ include "netclaim.pluginsFolder" . }}:{{ .Values.agent.cniBinDir }}
{{- else if ne .Values.agent.cniBinDir "/opt/cni/bin" -}}
{{ .Values.agent.cniBinDir }}
{{- end -}}
{{- end -}}
