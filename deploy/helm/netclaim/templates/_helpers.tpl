{{/* netclaim is one per cluster, like its driver's name: its objects have fixed names. */}}

{{/* A page about netclaim: (list $ "install"). */}}
{{- define "netclaim.page" -}}
{{- $docs := trimSuffix "/" (first .).Values.docsURL -}}
{{ $docs }}/{{ last . }}{{ ternary ".md" ".html" (contains "/blob/" $docs) }}
{{- end -}}

{{/* The image of agent or controller: (list $ "agent"). */}}
{{- define "netclaim.image" -}}
{{- $chart := first . -}}
{{- $image := (get $chart.Values (last .)).image -}}
{{- $registry := required "image.registry is empty: push netclaim's images and say where they are, see docs/install.md" $chart.Values.image.registry -}}
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
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
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

{{/* The folders of CNI plugins, as --cni-bin-dir. */}}
{{- define "netclaim.cniBinDirs" -}}
{{- if include "netclaim.pluginsMount" . -}}
{{ include "netclaim.pluginsFolder" . }}:
{{- end -}}
{{ .Values.agent.cniBinDir }}
{{- end -}}

{{/*
The directories of the node that the agent has. Its variables, mounts and volumes are made of this one table.
  value, default  the chart's value that says where it is; for another one than the default, `env` is set
  env             variables that name the directory; agent.extraEnv may not set them, since the mount would be elsewhere
  path            on the node
  mountPath       in the container; by default the same, which it has to be where the path is told to the kubelet or the runtime
  exists          the kubelet does not make it: where it is not, `value` is wrong
*/}}
{{- define "netclaim.directories" -}}
{{- $agent := .Values.agent -}}
{{- if and $agent.hostMounts (ne $agent.cniStateDir "/var/lib/cni") }}
{{- fail "agent.cniStateDir and agent.hostMounts exclude each other: plugins that run with the host's files have the host's /var/lib/cni" }}
{{- end }}
- name: plugin
  about: "Sockets for the kubelet: their paths are told to it, so they are the same inside and outside."
  value: kubeletDir
  default: /var/lib/kubelet
  env: {NETCLAIM_KUBELET_DIR: {{ $agent.kubeletDir }}}
  path: {{ $agent.kubeletDir }}/plugins/netclaim.dev
- name: registration
  value: kubeletDir
  default: /var/lib/kubelet
  env: {NETCLAIM_REGISTRY_DIR: {{ $agent.kubeletDir }}/plugins_registry}
  path: {{ $agent.kubeletDir }}/plugins_registry
  exists: true
- name: pods-api
  about: The kubelet's own list of pods (Kubernetes 1.37). The folder, as the kubelet makes a new socket when it starts.
  path: {{ $agent.kubeletDir }}/pods-api
  readOnly: true
- name: state
  about: "The journal, and programs for the host: the hook for its runtime, plugins where they run there. The same path again."
  value: stateDir
  default: /var/lib/netclaim
  env: {NETCLAIM_STATE_DIR: {{ $agent.stateDir }}, NETCLAIM_CNI_CACHE: {{ $agent.stateDir }}/cni}
  path: {{ $agent.stateDir }}
- name: run
  about: The hook's socket and the markers of sandboxes that have their networks; gone after a reboot, like the sandboxes.
  value: runDir
  default: /run/netclaim
  env: {NETCLAIM_RUN_DIR: {{ $agent.runDir }}, NETCLAIM_CNI_SOCKETS: {{ $agent.runDir }}/cni}
  path: {{ $agent.runDir }}
# Made where it is missing: an agent without NRI runs, and says so.
- name: nri
  about: "The folder, not the socket: the runtime makes a new socket when it starts."
  value: nriSocket
  default: /run/nri/nri.sock
  env: {NETCLAIM_NRI_SOCKET: {{ $agent.nriSocket }}}
  path: {{ dir $agent.nriSocket }}
- name: cdi
  value: cdiDir
  default: /run/cdi
  env: {NETCLAIM_CDI_DIR: {{ $agent.cdiDir }}}
  path: {{ $agent.cdiDir }}
- name: netns
  about: Network namespaces of pods; those made after the agent's start have to show here too.
  path: /run/netns
  propagation: HostToContainer
# Made where it is missing: an agent without plugins runs, and says which ones lack.
- name: cni-bin
  about: CNI plugins of the node.
  value: cniBinDir
  default: {{ ternary "/opt/cni/bin" "" (empty (include "netclaim.pluginsMount" .)) | quote }}
  env: {NETCLAIM_CNI_BIN_DIR: {{ include "netclaim.cniBinDirs" . | quote }}}
  path: {{ $agent.cniBinDir }}
  readOnly: true
- name: cni-lib
  about: The address lists of host-local, shared with the cluster's primary network.
  path: {{ $agent.cniStateDir }}
  mountPath: /var/lib/cni
- name: cni-run
  about: The socket of the dhcp plugin's daemon.
  path: /run/cni
{{- end -}}

{{/* Fails where agent.extraEnv sets what the table sets. */}}
{{- define "netclaim.checkExtraEnv" -}}
{{- range $row := include "netclaim.directories" . | fromYamlArray -}}
{{- range $variable := $.Values.agent.extraEnv -}}
{{- if hasKey ($row.env | default dict) $variable.name -}}
{{- fail (printf "agent.extraEnv: %s names a directory that is not mounted: set agent.%s, which changes both" $variable.name $row.value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
