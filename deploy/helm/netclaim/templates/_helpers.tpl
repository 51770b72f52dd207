{{/* netclaim is one per cluster, like its driver's name: its objects have fixed names. */}}

{{- define "netclaim.image" -}}
{{- $repository := required "image.repository is empty: push netclaim's image and name it, see docs/install.md" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "netclaim.labels" -}}
app.kubernetes.io/part-of: netclaim
{{- end -}}

{{/* Whether the API server lets the agent ask for the pods of its own node as that node. */}}
{{- define "netclaim.impersonates" -}}
{{- if semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version }}yes{{ end -}}
{{- end -}}

{{- define "netclaim.pluginsMount" -}}
/usr/libexec/netclaim/plugins
{{- end -}}

{{/* The folders of CNI plugins, if they are not the default. */}}
{{- define "netclaim.cniBinDirs" -}}
{{- if .Values.plugins.image -}}
{{- if .Values.agent.hostMounts }}{{ fail "plugins.image and agent.hostMounts exclude each other: plugins that run with the host's files are found on the host" }}{{ end -}}
{{- if semverCompare "<1.35-0" .Capabilities.KubeVersion.Version }}{{ fail "plugins.image needs image volumes, which are on from Kubernetes 1.35" }}{{ end -}}
{{ include "netclaim.pluginsMount" . }}{{ with trimAll "/" .Values.plugins.path }}/{{ . }}{{ end }}:{{ .Values.agent.cniBinDir }}
{{- else if ne .Values.agent.cniBinDir "/opt/cni/bin" -}}
{{ .Values.agent.cniBinDir }}
{{- end -}}
{{- end -}}
